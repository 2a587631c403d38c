"""Texts, words and choices -> rows of tokens, as long as each is.

A row is [CLS] a [SEP] or [CLS] a [SEP] b [SEP]; what is too long is cut off.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_albert.text.special_tokens import UNK_ID
from keras_albert.text.tokenizer import Tokenizer, check_texts

LINES_AT_ONCE = 2_000  # tokenized together: long enough to be fast


class Row(NamedTuple):
    """Tokens of a text or a pair."""

    token_ids: np.ndarray
    """int32 [T], [CLS] and [SEP] included"""
    first: int
    """how many of them are segment 0"""
    is_cut: bool = False
    """whether there was more than a row holds"""


def text_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    longest: int,
) -> list[Row]:
    """A row for each text, or pair of texts."""
    check_texts(texts, pairs)
    rows = []
    for start in range(0, len(texts), LINES_AT_ONCE):
        part = slice(start, start + LINES_AT_ONCE)
        firsts = tokenizer.encode_batch(texts[part])
        seconds = [None] * len(firsts)
        if pairs is not None:
            seconds = tokenizer.encode_batch(pairs[part])
        rows += [
            _row(tokenizer, first, second, longest)
            for first, second in zip(firsts, seconds, strict=True)
        ]
    return rows


def word_rows(
    tokenizer: Tokenizer, words: Sequence[str], longest: int
) -> list[tuple[Row, list[int]]]:
    """A text that is split into words, in rows of as many as fit.

    Only a word that fills more than a row is cut off.

    Returns:
        one or more rows; and where each word of a row begins.
    """
    room = longest - 2  # [CLS], [SEP]
    rows = [([], [])]
    for pieces in tokenizer.encode_batch(words):
        # A word of nothing but dropped characters has a label all the same.
        pieces = pieces or [UNK_ID]
        if rows[-1][0] and len(rows[-1][0]) + len(pieces) > room:
            rows.append(([], []))
        ids, starts = rows[-1]
        starts.append(len(ids) + 1)  # after [CLS]
        ids += pieces
    return [
        (_row(tokenizer, ids, None, longest), starts) for ids, starts in rows
    ]


def choice_rows(
    tokenizer: Tokenizer,
    contexts: Sequence[str],
    questions: Sequence[str],
    choices: Sequence[Sequence[str]],
    longest: int,
) -> list[Row]:
    """A row for each choice: the context, and the question with the choice.

    A choice fills the blank "_" in its question, or stands behind it. What is
    too long is cut off the end of the context; of question and choice, which
    differ at the end, off the start.

    Args:
        questions: "" where there is none.

    Source: reference race_utils.py, which gives question and choice 128 of 512
    tokens; here it is half, or what the context leaves.
    """
    room = longest - 3  # [CLS], two [SEP]
    rows = []
    for context, question, row in zip(
        tokenizer.encode_batch(contexts), questions, choices, strict=True
    ):
        least = max(room // 2, room - len(context))
        for ids in tokenizer.encode_batch(
            _with_choice(question, choice) for choice in row
        ):
            read = _row(tokenizer, context, ids[-least:], longest)
            rows.append(read._replace(is_cut=read.is_cut or len(ids) > least))
    return rows


def _with_choice(question: str, choice: str) -> str:
    if "_" in question:
        return question.replace("_", choice)
    return f"{question} {choice}"


def _row(tokenizer: Tokenizer, a, b, longest: int) -> Row:
    tokens, segments = tokenizer.pack(a, b, longest)
    whole = len(a) + len(b) + 3 if b else len(a) + 2
    return Row(
        np.array(tokens, "int32"), segments.count(0), len(tokens) < whole
    )
