"""Token ids and pieces that the vocabulary recipe fixes.

Source: README of google-research/albert, "sentencepiece"."""

# Token ids fixed by the vocabulary recipe (reference README, "sentencepiece").
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)


SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
