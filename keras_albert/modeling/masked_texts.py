"""Texts with "[MASK]": their ids, and the pieces that may stand there."""

from typing import NamedTuple

import numpy as np

from keras_albert.errors import AlbertError, check_positive
from keras_albert.modeling.inputs import (
    as_texts,
    check_equally_many,
    named_texts,
    round_length,
    vocabulary_of,
)
from keras_albert.text.special_tokens import MASK_ID, SPECIAL_PIECES
from keras_albert.text.tokenizer import WORD_MARK, Tokenizer

MASK = SPECIAL_PIECES[MASK_ID]


class Fill(NamedTuple):
    """A prediction for one [MASK] of a text."""

    piece: str
    """the predicted piece, as written in the vocabulary: it begins with the
    word mark if it begins a word"""
    probability: float
    """probability of the piece, from 0 to 1"""
    text: str
    """the text with this [MASK] replaced; others are kept"""


def filled(text: str, number: int, piece: str, probability: float) -> Fill:
    """Replaces one [MASK] of a text, counted from 0, by a piece."""
    parts = text.split(MASK)
    before = MASK.join(parts[: number + 1])
    after = MASK.join(parts[number + 1 :])
    word = piece.replace(WORD_MARK, " ").lstrip()
    return Fill(piece, probability, before + word + after)


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without [CLS] and [SEP]; "[MASK]" gives MASK_ID."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    blank = tokenizer.piece_to_id(WORD_MARK)
    for part in others:
        following = tokenizer.encode(part)
        # SentencePiece puts a word mark before each text, as if a blank came
        # first. In "[MASK]." there is no blank before ".": remove the mark.
        if not part[:1].isspace() and following[:1] == [blank]:
            following = following[1:]
        ids += [MASK_ID, *following]
    return ids


def masked_rows(model, texts) -> dict:
    """The arrays of `model.preprocess` for texts, or pairs, with "[MASK]"."""
    tokenizer = vocabulary_of(model)
    texts = named_texts(texts)
    texts, pairs = as_texts(texts["text"]), texts.get("pair")
    rows_a = [masked_ids(tokenizer, text) for text in texts]
    rows_b = [None] * len(rows_a)
    if pairs is not None:
        pairs = as_texts(pairs, "pairs")
        check_equally_many(texts=texts, pairs=pairs)
        rows_b = [masked_ids(tokenizer, text) for text in pairs]
    longest = model.config.max_position_embeddings
    rows = [
        tokenizer.pack(a, b, longest)
        for a, b in zip(rows_a, rows_b, strict=True)
    ]
    return round_length(tokenizer.pad(rows), longest)


def fill_masks(model, texts, top_k: int) -> list[list[list[Fill]]]:
    """The predictions of `model.fill_mask`."""
    check_positive("top_k", top_k)
    texts = as_texts(texts)
    x = model.preprocess(texts)
    masks = [np.flatnonzero(row == MASK_ID) for row in x["token_ids"]]
    for text, found in zip(texts, masks, strict=True):
        written = text.count(MASK)
        if len(found) != written or not written:
            raise AlbertError(
                f'each text needs "{MASK}" within the first '
                f"{model.config.max_position_embeddings} tokens. "
                f"Received: {text!r:.80} ({written} masks, {len(found)} "
                "of them in reach). Write one, or shorten the text."
            )
    positions = np.zeros((len(texts), max(map(len, masks))), "int32")
    for row, found in enumerate(masks):
        positions[row, : len(found)] = found
    outputs = model.predict({**x, "masked_positions": positions}, verbose=0)
    logits = outputs["mlm"] if isinstance(outputs, dict) else outputs
    return [
        [
            _fills(model.tokenizer, text, number, of_mask, top_k)
            for number, of_mask in enumerate(of_text[: len(found)])
        ]
        for text, found, of_text in zip(texts, masks, logits, strict=True)
    ]


def _fills(
    tokenizer: Tokenizer, text: str, number: int, logits: np.ndarray, top_k: int
) -> list[Fill]:
    probabilities = np.exp(logits - logits.max())  # [V]
    probabilities /= probabilities.sum()
    # The vocabulary may have fewer pieces than the model's vocab_size.
    named = probabilities[: tokenizer.vocab_size]
    return [
        filled(text, number, tokenizer.id_to_piece(i), float(named[i]))
        for i in np.argsort(-named)[:top_k]
    ]
