"""Devices and processes of a run, on every backend."""
