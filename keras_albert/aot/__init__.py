"""Compiles training steps ahead of time for TPU slices."""
