"""What a model is fine-tuned for: columns, labels, losses, answers, scores."""
