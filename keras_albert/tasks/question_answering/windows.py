"""Divides questions and contexts of any length into windows.

Letters: T tokens of a window, C of them of the context.

A window is `[CLS] question [SEP] part of the context [SEP]`; the windows of a
long context overlap. A token that is in several windows is answered in the one
that has most tokens on its shorter side, its "max context".

Source: reference squad_utils.py, convert_examples_to_features. It drops
questions that it cannot align (see text/alignment.py); here none is dropped.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_albert.tasks.question_answering.config import WindowConfig
from keras_albert.tasks.question_answering.squad import Question
from keras_albert.text.alignment import AlignedPieces, Aligner
from keras_albert.text.special_tokens import CLS_ID, SEP_ID
from keras_albert.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A question with a part of its context, without padding."""

    question: int  # index of the question
    token_ids: np.ndarray  # int32 [T]
    # position of the first token of the context, where segment 1 begins
    context_start: int
    # int32 [C], first character of each token in the raw context
    starts: np.ndarray
    ends: np.ndarray  # int32 [C], the character after its last one
    # bool [C], whether this window has most context for the token
    max_context: np.ndarray
    # position of the first token of the answer; 0 if not all is in here
    start: int
    end: int  # position of its last token, or 0
    # whether the question was cut; only set in its first window
    is_cut: bool = False
    # whether the tokenizer drops all of the answer, which cannot be learned
    is_lost: bool = False


def make_windows(
    tokenizer: Tokenizer, questions: Sequence[Question], config: WindowConfig
) -> list[Window]:
    """The windows of all questions, in their order; at least one for each.

    The first answer of a question is marked.
    """
    aligner = Aligner(tokenizer)
    aligned: dict[str, AlignedPieces] = {}
    queries = tokenizer.encode_batch([question.text for question in questions])
    windows = []
    for index, question in enumerate(questions):
        if question.context not in aligned:
            aligned[question.context] = aligner(question.context)
        pieces = aligned[question.context]
        answer = None
        if question.answers:
            first = question.answers[0]
            # The white space before a word belongs to its first piece, so that
            # an answer that ends in white space would take it along.
            end = first.start + len(first.text.rstrip())
            answer = pieces.covering(first.start, end)
        query = queries[index][: config.query_length]
        own = _windows_of(index, query, pieces, answer, config)
        if len(query) < len(queries[index]):
            own[0] = dataclasses.replace(own[0], is_cut=True)
        if question.answers and answer is None:
            own = [dataclasses.replace(each, is_lost=True) for each in own]
        windows += own
    return windows


def _windows_of(
    index: int,
    query: list[int],
    pieces: AlignedPieces,
    answer: tuple[int, int] | None,
    config: WindowConfig,
) -> list[Window]:
    before = [CLS_ID, *query, SEP_ID]
    room = config.sequence_length - len(before) - 1
    spans = window_spans(len(pieces.ids), room, config.stride)
    windows = []
    for (start, end), is_best in zip(spans, max_context(spans), strict=True):
        marked = (0, 0)
        if answer is not None and start <= answer[0] and answer[1] < end:
            shift = len(before) - start
            marked = answer[0] + shift, answer[1] + shift
        windows.append(
            Window(
                question=index,
                token_ids=np.concatenate(
                    [before, pieces.ids[start:end], [SEP_ID]], dtype="int32"
                ),
                context_start=len(before),
                starts=pieces.starts[start:end],
                ends=pieces.ends[start:end],
                max_context=is_best,
                start=marked[0],
                end=marked[1],
            )
        )
    return windows


def window_spans(count: int, room: int, stride: int) -> list[tuple[int, int]]:
    """The tokens of a context in each window, as [start, end).

    >>> window_spans(10, room=6, stride=3)
    [(0, 6), (3, 9), (6, 10)]

    `room` is the most tokens of a window, `stride` the tokens from one window
    to the next; a larger one than `room` counts as `room`, so that no token is
    left out.
    """
    spans = [(0, min(room, count))]
    while (start := spans[-1][0]) + room < count:
        start += min(room, stride)
        spans.append((start, min(start + room, count)))
    return spans


def max_context(spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """The tokens that have their most context in each window, bool [C].

    A token's context is the smaller number of tokens beside it in the window,
    plus a hundredth of the window's length; of equal windows the first one
    counts. Each token is therefore marked in exactly one window.

    >>> max_context([(0, 6), (3, 9)])
    [[T, T, T, T, T, F], [F, F, T, T, T, T]]
    """
    count = spans[-1][1]
    best = np.full(count, -1.0)
    owner = np.zeros(count, int)
    for number, (start, end) in enumerate(spans):
        tokens = np.arange(start, end)
        context = np.minimum(tokens - start, end - 1 - tokens)
        context = context + 0.01 * (end - start)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    return [owner[a:b] == number for number, (a, b) in enumerate(spans)]
