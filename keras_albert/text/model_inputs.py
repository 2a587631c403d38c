"""Tokenizes texts, pairs, words and choices into rows, without padding.

A row is [CLS] a [SEP] or [CLS] a [SEP] b [SEP], cut to a maximal length.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_albert.text.special_tokens import UNK_ID
from keras_albert.text.tokenizer import Tokenizer, check_texts

LINES_AT_ONCE = 2_000  # texts tokenized in one call, enough to be fast


class Row(NamedTuple):
    """The tokens of a text or a pair of texts."""

    token_ids: np.ndarray
    """int32 [T], with [CLS] and [SEP]"""
    first: int
    """number of tokens of segment 0"""
    is_cut: bool = False
    """whether the text was cut off"""


def text_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    longest: int,
) -> list[Row]:
    """Makes a row of each text, or of each pair of texts."""
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


def window_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    longest: int,
    overlap: float = 0.0,
) -> tuple[list[Row], np.ndarray]:
    """Makes rows of texts of any length, as many as each needs.

    A text that is too long becomes windows, one after another, of which the
    last one may be shorter. `overlap` is the share of a window that the next
    one repeats, in [0, 1). Returns the rows, of at most `longest` tokens, and
    for each row the index of its text.
    """
    check_texts(texts, None)
    room = longest - 2  # [CLS], [SEP]
    stride = max(round(room * (1 - overlap)), 1)
    rows, owners = [], []
    for number, ids in enumerate(tokenizer.encode_batch(texts)):
        # the last window begins where the one before it does not reach the end
        for start in range(0, max(len(ids) - room, 0) + stride, stride):
            part = ids[start : start + room]
            rows.append(_row(tokenizer, part, None, longest))
            owners.append(number)
    return rows, np.array(owners, int)


def word_rows(
    tokenizer: Tokenizer, words: Sequence[str], longest: int
) -> list[tuple[Row, list[int]]]:
    """Makes rows of a text that is split into words, as many as needed.

    A word is never divided between rows; it is only cut off if it is longer
    than a row. Returns rows of at most `longest` tokens, each with the position
    of the first piece of each of its words.
    """
    room = longest - 2  # [CLS], [SEP]
    rows = [([], [])]
    for pieces in tokenizer.encode_batch(words):
        # A word has a label, even if all of its characters are dropped.
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
    """Makes a row of each choice: the context, then question and choice.

    A choice replaces the blanks "_" in its question (which may be ""), or
    follows it if there is no blank. A context that is too long is cut at its
    end; question and choice are cut at their start, since the choices differ at
    the end. The rows of the first context come first.

    Source: reference race_utils.py, which reserves 128 of 512 tokens for
    question and choice. Here they may have half of the row, or more if the
    context is short.
    """
    room = longest - 3  # [CLS], two [SEP]
    rows = []
    for context, question, row in zip(
        tokenizer.encode_batch(contexts), questions, choices, strict=True
    ):
        most = max(room // 2, room - len(context))
        for ids in tokenizer.encode_batch(
            _with_choice(question, choice) for choice in row
        ):
            read = _row(tokenizer, context, ids[-most:], longest)
            rows.append(read._replace(is_cut=read.is_cut or len(ids) > most))
    return rows


def _with_choice(question: str, choice: str) -> str:
    if "_" in question:
        return question.replace("_", choice)
    return f"{question} {choice}"


def _row(tokenizer: Tokenizer, a, b, longest: int) -> Row:
    tokens, segments = tokenizer.pack(a, b, longest)
    whole = len(a) + len(b) + 3 if b else len(a) + 2
    is_cut = len(tokens) < whole
    return Row(np.array(tokens, "int32"), segments.count(0), is_cut)
