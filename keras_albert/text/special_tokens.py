"""The special tokens of every ALBERT vocabulary, with their fixed ids.

Source: README of google-research/albert, "sentencepiece"."""

PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
