"""Text to ids: normalisation, SentencePiece, and the twin inside a graph."""
