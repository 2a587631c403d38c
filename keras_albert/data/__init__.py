"""Reads tables and published data sets, and makes batches of examples."""
