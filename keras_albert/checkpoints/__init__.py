"""Weights and the outside world: one name table, one reader per format."""
