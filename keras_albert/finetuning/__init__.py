"""Fine-tuning runs, and predictions of fine-tuned models."""
