"""Text to ids: normalization, SentencePiece, and both in TensorFlow graphs."""
