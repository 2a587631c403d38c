"""Tasks: their columns, labels, heads, losses, answers, scores and graphs."""
