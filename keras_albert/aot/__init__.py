"""Training steps compiled ahead of time for TPU slices."""
