"""Exports models as files that other programs run, and checks them."""
