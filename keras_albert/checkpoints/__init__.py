"""Reads and writes checkpoints of other formats: a module for each format."""
