"""Questions and contexts as windows of tokens."""

import numpy as np
import pytest

from keras_albert.tasks.question_answering.config import WindowConfig
from keras_albert.tasks.question_answering.squad import Answer, Question
from keras_albert.tasks.question_answering.windows import (
    make_windows,
    max_context,
    window_spans,
)
from keras_albert.text import model_inputs
from keras_albert.text.alignment import Aligner
from keras_albert.text.model_inputs import text_rows, window_rows, word_rows
from keras_albert.text.special_tokens import CLS_ID, SEP_ID, UNK_ID

pytestmark = pytest.mark.any_backend


def question(context, answer=None):
    answers = ()
    if answer:
        answers = (Answer(answer, context.index(answer)),)
    text = "Who found the barn?"
    return Question("q1", text, context, answers, not answers)


@pytest.mark.parametrize(
    ("overlap", "room", "count", "starts"),
    [
        # [CLS] and [SEP] are two of the tokens of a row.
        (0.5, 6, 7, [0, 3]),
        (0.5, 6, 10, [0, 3, 6]),
        (0.0, 6, 14, [0, 6, 12]),
        (0.5, 1, 3, [0, 1, 2]),
        (0.5, 6, 0, [0]),
    ],
)
def test_windows_of_a_text(tokenizer, overlap, room, count, starts):
    ids = tokenizer.encode("the fox sold two hens " * 3)[:count]
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    rows, owners = window_rows(tokenizer, ["", text], room + 2, overlap)
    assert owners.tolist() == [0] + [1] * len(starts)
    assert [row.token_ids.tolist() for row in rows[1:]] == [
        [CLS_ID, *ids[start : start + room], SEP_ID] for start in starts
    ]
    assert not any(row.is_cut for row in rows)


def marked(window, context):
    """The characters that a window says are the answer."""
    first, last = window.start, window.end
    start = window.starts[first - window.context_start]
    return context[start : window.ends[last - window.context_start]].strip()


def test_tokens_and_marks(tokenizer):
    context = "Élodie sold two hens. The fox found the old barn near Prague."
    asked = [question(context, "the old barn")]
    (answer,) = make_windows(tokenizer, asked, WindowConfig())
    query = tokenizer.encode("Who found the barn?")
    body = tokenizer.encode(context)
    tokens = [CLS_ID, *query, SEP_ID, *body, SEP_ID]
    assert answer.token_ids.tolist() == tokens
    assert answer.token_ids.dtype == np.int32
    assert answer.context_start == len(query) + 2
    assert answer.max_context.all()
    pieces = tokens[answer.start : answer.end + 1]
    assert pieces == tokenizer.encode("the old barn")
    assert marked(answer, context) == "the old barn"


def test_long_context_is_read_in_windows(tokenizer):
    context = "The fox found two hens. " * 6 + "A dog sold the old barn."
    config = WindowConfig(sequence_length=40, stride=10, query_length=8)
    asked = question(context, "the old barn")
    windows = make_windows(tokenizer, [asked, asked], config)
    half = len(windows) // 2
    assert [w.question for w in windows] == [0] * half + [1] * half
    query = tokenizer.encode(asked.text)[:8]
    assert len(query) == 8 < len(tokenizer.encode(asked.text))
    cut = [w.is_cut for w in windows]
    assert cut == [True, *[False] * (half - 1)] * 2, "once a question"
    body = tokenizer.encode(context)
    place = context.index("the old barn"), len(context) - 1
    first, last = Aligner(tokenizer)(context).covering(*place)
    spans = window_spans(len(body), 40 - 8 - 3, 10)
    assert len(spans) == half > 3
    with_answer = 0
    for window, (start, end) in zip(windows, spans, strict=False):
        assert len(window.token_ids) <= 40
        assert window.token_ids[10:-1].tolist() == body[start:end]
        if start <= first and last < end:
            with_answer += 1
            assert window.start == first - start + 10
            assert window.end == last - start + 10
        else:  # all of it, or nothing
            assert (window.start, window.end) == (0, 0)
    assert 0 < with_answer < half
    owners = sum(int(window.max_context.sum()) for window in windows[:half])
    assert owners == len(body)


def test_the_length_of_a_window_counts():
    """Token 225 has 74 + 3.00 and 75 + 1.60, token 226 73 + 3.00 and
    76 + 1.60: the first is the last that belongs to the longer window.
    """
    first, second = max_context([(0, 300), (150, 310)])
    assert (first.sum(), second.sum()) == (226, 84)


def test_no_answer_and_no_context(tokenizer):
    asked = [question("A dog."), question("\u0301")]
    without_answer, vanished = make_windows(tokenizer, asked, WindowConfig())
    assert (without_answer.start, without_answer.end) == (0, 0)
    assert vanished.token_ids[-2:].tolist() == [SEP_ID, SEP_ID]
    assert len(vanished.starts) == len(vanished.max_context) == 0


def test_answer_that_vanishes(tokenizer):
    asked = [question("A dog. \ufeff", "\ufeff"), question("A dog.", "dog")]
    lost, found = make_windows(tokenizer, asked, WindowConfig())
    assert lost.is_lost and (lost.start, lost.end) == (0, 0)
    assert not found.is_lost and found.start


def test_white_space_behind_an_answer(tokenizer):
    """It would belong to the first piece of the next word."""
    context = "The fox sold two hens."
    for answer in ("fox sold", "fox sold ", " fox sold"):
        (window,) = make_windows(
            tokenizer, [question(context, answer)], WindowConfig()
        )
        assert marked(window, context) == "fox sold"


def test_what_the_reference_drops_is_kept(tokenizer):
    # It gives a question up where less than 80 % of the characters of its
    # context can be matched; Hangul decomposes, so none of these can.
    context = "서울은 대한민국의 수도이다."
    assert sum(char.isascii() for char in context) < 0.8 * len(context)
    asked = [question(context, "대한민국의")]
    (window,) = make_windows(tokenizer, asked, WindowConfig())
    assert marked(window, context) == "대한민국의"


# Rows of texts, pairs and words.


def test_pairs_of_many_texts(tokenizer, monkeypatch):
    """Those of a later part are tokenized with their own partners."""
    monkeypatch.setattr(model_inputs, "LINES_AT_ONCE", 2)
    texts, pairs = ["a", "fox", "hens"], ["barn", "dog", "London"]
    rows = text_rows(tokenizer, texts, pairs, 40)
    assert [row.token_ids.tolist() for row in rows] == [
        [CLS_ID, *tokenizer.encode(a), SEP_ID, *tokenizer.encode(b), SEP_ID]
        for a, b in zip(texts, pairs, strict=True)
    ]


def test_a_word_without_pieces_has_a_place(tokenizer):
    """A mark alone is dropped, and still has a label."""
    words = ["fox", "\u0301", "hens"]
    fox, nothing, hens = tokenizer.encode_batch(words)
    assert nothing == []
    ((row, starts),) = word_rows(tokenizer, words, 40)
    ids = [CLS_ID, *fox, UNK_ID, *hens, SEP_ID]
    assert row.token_ids.tolist() == ids
    assert starts == [1, 1 + len(fox), 2 + len(fox)]


def test_words_that_just_fit_share_a_row(tokenizer):
    words = ["committee", "London"] * 2
    pieces = sum(map(len, tokenizer.encode_batch(words)))
    ((row, starts),) = word_rows(tokenizer, words, pieces + 2)
    assert len(row.token_ids) == pieces + 2 and len(starts) == 4
    assert len(word_rows(tokenizer, words, pieces + 1)) == 2


def test_windows_that_overlap_by_a_quarter(tokenizer):
    ids = tokenizer.encode("the fox sold two hens " * 9)[:18]
    rows, _ = window_rows(tokenizer, [tokenizer.decode(ids)], 10, 0.25)
    assert [row.token_ids[1] for row in rows] == [ids[0], ids[6], ids[12]]
