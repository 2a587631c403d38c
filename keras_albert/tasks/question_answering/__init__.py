"""Answers to questions in windows of a context, as in SQuAD."""
