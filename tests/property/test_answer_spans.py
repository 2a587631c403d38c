"""Pieces, windows and answers of any Unicode text lead back to its characters.

What is compared is what one can see: the pieces of a text without word marks.
"""

import itertools
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import keras_albert as ka
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowConfig,
)
from keras_albert.tasks.question_answering.decoding import decode_logits
from keras_albert.tasks.question_answering.squad import Answer, Question
from keras_albert.tasks.question_answering.windows import (
    make_windows,
    max_context,
    window_spans,
)
from keras_albert.text.alignment import Aligner, normalize_with_sources
from keras_albert.text.normalization import normalize, to_text
from keras_albert.text.tokenizer import WORD_MARK

pytestmark = pytest.mark.any_backend

# Digits and commas, sigmas, dotted I, marks, NUL and other controls, odd and
# invisible spaces, characters that become several (½ ﬁ 🄁) or one of several
# (the jamo of 한, ｶﾞ), half a character.
LIKELY = st.text(
    "0129,,, aAbcx.'\"(-£ΣσİI\u0301\u0345\0\x01\x1c\x85\u00a0\u3000¨ﬁ½²٣한"
    "\u1112\u1161\u11abｶﾞ\u200b\u200d\u200e\ufeff\u00ad\U0001f101😀▁[<>"
    "\ud800",
    max_size=30,
)
TEXTS = st.one_of(st.text(max_size=30), LIKELY)


@pytest.fixture(scope="module", params=["lower", "cased", "accents"])
def tokenizer(request, digit_comma_vocab):
    return ka.Tokenizer(
        digit_comma_vocab,
        lower_case=request.param != "cased",
        keep_accents=request.param == "accents",
    )


@pytest.fixture(scope="module")
def aligner(tokenizer):
    return Aligner(tokenizer)


def visible(tokenizer, text):
    return letters("".join(tokenizer.tokenize(text)))


def letters(pieces):
    """What can be compared.

    The small form of a sigma depends on what follows it. Marks that are kept
    belong to the letter before them, and are sorted with its others.
    """
    pieces = unicodedata.normalize("NFKD", pieces.replace(WORD_MARK, ""))
    pieces = pieces.replace("ς", "σ")
    return "".join(c for c in pieces if not unicodedata.combining(c))


@given(text=TEXTS, lower_case=st.booleans(), keep_accents=st.booleans())
@example("İstanbul", True, True)
def test_normal_text_and_its_sources(text, lower_case, keep_accents):
    found, sources = normalize_with_sources(text, lower_case, keep_accents)
    # Half a character between spaces leaves two of them.
    expected = normalize(to_text(text), lower_case, keep_accents)
    assert found.split() == expected.split()
    if to_text(text) == text:
        assert found == expected
    assert len(sources) == len(found)
    assert sources == sorted(sources)
    for character, source in zip(found, sources, strict=True):
        if text[source].isspace():
            assert character == " "
        else:
            form = normalize(text[source], lower_case, keep_accents)
            form = form.replace("σ", "ς")
            assert character.replace("σ", "ς") in form


@given(text=TEXTS)
@example("x1990, 9,9, 1990,a \U0001f101a ½,")
@example("\u200b")
@example("a \ufeff b\ufeff")
def test_each_piece_is_in_its_characters(tokenizer, aligner, text):
    pieces = aligner(text)
    assert pieces.ids.tolist() == tokenizer.encode(text)
    spans = list(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))
    written = tokenizer.tokenize(text)
    assert len(spans) == len(written)
    left = list(text)
    for (start, end), piece in zip(spans, written, strict=True):
        assert 0 <= start <= end <= len(text)
        assert letters(piece) in visible(tokenizer, text[start:end])
        left[start:end] = " " * (end - start)
    # Characters of no piece are those that the tokenizer drops.
    assert visible(tokenizer, "".join(left)) == ""
    for values in (pieces.starts, pieces.ends):
        assert np.all(np.diff(values) >= 0)


@given(text=TEXTS, data=st.data())
def test_covering_is_what_overlaps(aligner, text, data):
    start, end = sorted(
        data.draw(st.integers(0, len(text)), label=name) for name in "ab"
    )
    pieces = aligner(text)
    overlapping = np.flatnonzero((pieces.starts < end) & (pieces.ends > start))
    found = pieces.covering(start, end)
    if not len(overlapping) or start == end:
        assert found is None or start == end
    else:
        assert found == (overlapping[0], overlapping[-1])


@given(count=st.integers(0, 90), room=st.integers(1, 20), data=st.data())
def test_windows_have_all_tokens(count, room, data):
    stride = data.draw(st.integers(1, 25))
    spans = window_spans(count, room, stride)
    assert set().union(*(range(*span) for span in spans)) == set(range(count))
    assert all(end - start <= room for start, end in spans)
    assert all(end - start == room for start, end in spans[:-1])
    steps = {b[0] - a[0] for a, b in itertools.pairwise(spans)}
    assert steps <= {min(room, stride)}
    # Of the windows that have a token, the first of the highest scores.
    owners = np.full(count, -1)
    for number, (best, (start, end)) in enumerate(
        zip(max_context(spans), spans, strict=True)
    ):
        assert best.shape == (end - start,)
        assert np.all(owners[start:end][best] == -1), "two windows"
        owners[start:end][best] = number
    for token, owner in enumerate(owners):
        scores = [
            min(token - start, end - 1 - token) + 0.01 * (end - start)
            if start <= token < end
            else -1.0
            for start, end in spans
        ]
        assert owner == scores.index(max(scores))


@given(context=TEXTS.filter(str.strip), data=st.data())
@example("서울은 대한민국의 수도이다", (3, 8))
@example("00\u200b 0", (0, 4))
def test_an_answer_comes_back(tokenizer, aligner, context, data):
    """Marked in windows, read by a model that is sure, found in the text."""
    if isinstance(data, tuple):
        start, end = data
    else:
        start = data.draw(st.integers(0, len(context) - 1), label="start")
        end = data.draw(st.integers(start + 1, len(context)), label="end")
    answer = Answer(context[start:end], start)
    question = Question("q", "a 9,b", context, (answer,), False)
    config = WindowConfig(sequence_length=16, stride=4, query_length=3)
    windows = make_windows(tokenizer, [question], config)
    if windows[0].is_lost:
        assert visible(tokenizer, answer.text) == ""
        assert not any(window.start for window in windows)
        return
    assert [w.question for w in windows] == [0] * len(windows)
    logits = np.zeros((2, len(windows), 16), "float32")
    marked = [w for w, window in enumerate(windows) if window.start]
    for w in marked:
        logits[0, w, windows[w].start] = logits[1, w, windows[w].end] = 9.0
    (prediction,) = decode_logits(
        [question], windows, *logits, AnswerConfig(answer_length=16)
    )
    # The window with most context for the start may not have all of a long
    # answer.
    if not any(
        windows[w].max_context[windows[w].start - windows[w].context_start]
        for w in marked
    ):
        return
    pieces = aligner(context)
    # White space at the end of an answer does not count.
    first, last = pieces.covering(start, start + len(answer.text.rstrip()))
    best = prediction.candidates[0]
    assert (
        best.text == context[pieces.starts[first] : pieces.ends[last]].strip()
    )
    assert best.text == context[best.start : best.end]
    assert visible(tokenizer, answer.text) in visible(tokenizer, best.text)
