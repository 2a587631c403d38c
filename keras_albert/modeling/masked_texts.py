"""Texts with "[MASK]": their ids, and the pieces that may stand there.

Letters: B texts, S tokens, M masks of a text, K best pieces, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

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
BATCH_SIZE = 32  # texts whose probabilities of all pieces are held at once


class Fill(NamedTuple):
    """A prediction for one [MASK] of a text."""

    piece: str
    """the predicted piece, as written in the vocabulary: it begins with the
    word mark if it begins a word"""
    probability: float
    """probability of the piece, from 0 to 1"""
    text: str
    """the text with this [MASK] replaced; others are kept"""


def fills(
    text: str, pieces: Sequence[Sequence[str]], scores: Sequence[Sequence]
) -> list[list[Fill]]:
    """The predictions for each [MASK] of a text.

    Args:
        text: with one [MASK] or more.
        pieces: [M, K], of which those beyond the text's masks are left out.
        scores: their probabilities, [M, K].
    """
    parts, found = text.split(MASK), []
    for number in range(len(parts) - 1):
        before = MASK.join(parts[: number + 1])
        after = MASK.join(parts[number + 1 :])
        found.append([])
        for piece, score in zip(pieces[number], scores[number], strict=True):
            word = piece.replace(WORD_MARK, " ").lstrip()
            found[-1].append(Fill(piece, float(score), before + word + after))
    return found


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
    counts = (x["token_ids"] == MASK_ID).sum(axis=1)
    for text, count in zip(texts, counts, strict=True):
        written = text.count(MASK)
        if count != written or not written:
            raise AlbertError(
                f'each text needs "{MASK}" within the first '
                f"{model.config.max_position_embeddings} tokens. "
                f"Received: {text!r:.80} ({written} masks, {count} "
                "of them in reach). Write one, or shorten the text."
            )

    found = []
    for first in range(0, len(texts), BATCH_SIZE):
        rows = slice(first, first + BATCH_SIZE)
        some = {name: array[rows] for name, array in x.items()}
        best = best_pieces(model, some, top_k)
        found += map(fills, texts[rows], best["pieces"], best["scores"])
    return found


def best_pieces(
    model, x: Mapping[str, np.ndarray], top_k: int
) -> dict[str, np.ndarray]:
    """The most probable pieces for each mask of each row, the first the best.

    Args:
        model: with a masked-LM head and a tokenizer.
        x: the arrays of `model.preprocess`, [B, S], of one batch; each row has
            a mask.
        top_k: K.

    Returns:
        `pieces`, `scores` (their probabilities) and `ids`, [B, M, K]. M is the
        largest number of masks, rounded up to a power of two so that few shapes
        are compiled. Beyond the masks of a row they are those of its first
        token, and mean nothing.
    """
    is_mask = x["token_ids"] == MASK_ID
    most = int(is_mask.sum(axis=1).max())
    positions = np.zeros((len(is_mask), 1 << (most - 1).bit_length()), "int32")
    for row, found in enumerate(is_mask):
        found = np.flatnonzero(found)
        positions[row, : len(found)] = found
    outputs = model.predict_on_batch({**x, "masked_positions": positions})
    logits = outputs["mlm"] if isinstance(outputs, dict) else outputs
    probs = special.softmax(np.asarray(logits), axis=-1)
    # The model may have more ids than the vocabulary has pieces.
    probs = probs[..., : model.tokenizer.vocab_size]
    ids = np.argsort(-probs, axis=-1)[..., :top_k]
    pieces = np.vectorize(model.tokenizer.id_to_piece, otypes=[object])
    return {
        "pieces": pieces(ids),
        "scores": np.take_along_axis(probs, ids, axis=-1),
        "ids": ids.astype("int32"),
    }
