"""Searches for the best options of pretraining and fine-tuning."""
