"""Optimizer, schedules, losses, and the runs that use them."""
