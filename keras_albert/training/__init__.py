"""Optimizer, schedules, losses, and the training loop."""
