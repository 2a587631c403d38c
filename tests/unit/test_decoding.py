"""Answers from the outputs of the models, by hand."""

import math

import numpy as np
import pytest

from keras_albert.errors import AlbertError
from keras_albert.tasks.question_answering.config import AnswerConfig
from keras_albert.tasks.question_answering.decoding import (
    Candidate,
    Prediction,
    decode_beam,
    decode_logits,
)
from keras_albert.tasks.question_answering.squad import Question
from keras_albert.tasks.question_answering.task import _decoded
from keras_albert.tasks.question_answering.windows import Window

pytestmark = pytest.mark.any_backend

CONTEXT = "the fox saw the fox"
WORDS = [(0, 3), (3, 7), (7, 11), (11, 15), (15, 19)]  # a piece each
FULL = AnswerConfig(n_best=20, answer_length=30)
LOW = -50.0


def ask(context=CONTEXT, name="q"):
    return Question(name, "what?", context, (), True)


def window(first=0, after=5, best=None, question=0):
    """[CLS] what [SEP], pieces [first, after) of the context, [SEP]."""
    count = after - first
    spans = np.array(WORDS[first:after], "int32").reshape(count, 2)
    return Window(
        question=question,
        token_ids=np.arange(count + 4, dtype="int32"),
        context_start=3,
        starts=spans[:, 0],
        ends=spans[:, 1],
        max_context=np.array([True] * count if best is None else best),
        start=0,
        end=0,
    )


def row(size=12, **scores):
    """Logits of positions p0, p1, ...; LOW elsewhere."""
    logits = np.full(size, LOW, "float32")
    for name, value in scores.items():
        logits[int(name[1:])] = value
    return logits


def texts(prediction):
    return [candidate.text for candidate in prediction.candidates]


def read_logits(start, end, **options):
    """The prediction from one window of the whole context."""
    (prediction,) = decode_logits(
        [ask()], [window()], [start], [end], AnswerConfig(**options)
    )
    return prediction


def test_candidates_and_their_probabilities():
    # Starts: "the" 3, "saw" 2; ends: "fox" 1, "saw" 0.
    start, end = row(p3=3, p5=2), row(p4=1, p5=0)
    prediction = read_logits(start, end, n_best=2)
    assert prediction.id == "q"
    # "saw fox" would end before it starts.
    probability = 1 / (1 + math.exp(-1))
    assert prediction.candidates == (
        Candidate("the fox", 0, 7, probability, 3.0, 1.0),
        Candidate(
            "the fox saw", 0, 11, pytest.approx(1 - probability), 3.0, 0.0
        ),
    )
    more = read_logits(start, end, n_best=3)
    assert texts(more)[:3] == ["the fox", "the fox saw", "saw"]
    assert more.candidates[2].start == 8
    assert CONTEXT[8:11] == "saw"
    assert sum(c.probability for c in more.candidates) == pytest.approx(1)


def test_only_the_context_answers():
    # [CLS], the question, both [SEP] and the padding are all more likely.
    outside = {f"p{p}": 9 for p in (0, 1, 2, 8, 9, 10, 11)}
    scores = row(p4=1, **outside)
    assert texts(read_logits(scores, scores, n_best=8)) == ["fox"]
    # Positions outside take part before they are dropped, as published.
    prediction = read_logits(scores, scores, n_best=7)
    assert prediction.candidates == ()
    assert prediction.text() == ""
    assert prediction.no_answer == math.inf


def test_answer_length():
    start, end = row(p3=2), row(p7=2, p6=1)
    for length, expected in ((5, CONTEXT), (4, "the fox saw the")):
        found = read_logits(start, end, n_best=2, answer_length=length)
        assert found.text() == expected


def test_each_text_once():
    # "fox" twice in the context: the more likely place is kept.
    scores = row(p4=1, p7=2)
    prediction = read_logits(scores, scores, n_best=2)
    assert texts(prediction) == ["fox", "fox saw the fox"]
    assert [c.start for c in prediction.candidates] == [16, 4]


def test_windows_of_a_question_compete():
    windows = [
        window(0, 3, best=[True, True, False]),
        window(question=1),
        window(2, 5, best=[True, True, True]),
    ]
    start = [row(p3=1, p5=8), row(p3=4), row(p3=2)]
    end = [row(p4=1, p5=0), row(p4=4), row(p5=2, p3=1)]
    first, other = decode_logits(
        [ask(), ask(name="other")], windows, start, end, AnswerConfig(n_best=2)
    )
    # "saw" is sure in the first window, but has more context in the other.
    assert texts(first) == ["saw the fox", "saw"]
    assert first.candidates[1].start_score == 2
    assert (other.id, other.text()) == ("other", "the fox")


def test_no_answer_of_logits():
    windows = [window(0, 3), window(2, 5)]
    start = [row(p0=5, p3=1), row(p0=2, p3=3)]
    end = [row(p0=4, p4=1), row(p0=2, p4=3)]
    (prediction,) = decode_logits([ask()], windows, start, end, FULL)
    # min(5 + 4, 2 + 2) - (3 + 3)
    assert prediction.no_answer == -2
    assert prediction.text() == prediction.text(-2.0) == "saw the"
    assert prediction.text(-2.1) == ""


def test_white_space_is_no_answer():
    candidates = tuple(
        Candidate(text, 0, len(text), 0.5, 0.0, 0.0) for text in ("", "fox")
    )
    assert Prediction("q", candidates, 0.0).text() == "fox"
    # A candidate of white space keeps its place in the list, as published.
    (prediction,) = decode_logits(
        [ask(context="   " + CONTEXT[3:])],
        [window()],
        [row(p3=1)],
        [row(p3=1, p4=0)],
        AnswerConfig(n_best=2),
    )
    assert texts(prediction) == ["", "fox"]
    assert prediction.text() == "fox"
    # Its place and probability are those of the answer.
    best = prediction.candidates[1]
    decoded = _decoded(prediction, 0.0)
    assert (decoded["start"], decoded["end"]) == (best.start, best.end)
    assert decoded["score"] == round(best.probability, 6)
    assert prediction.candidates[0].probability > best.probability


def beam(**changes):
    """K = 2; the starts at 4 and 5, each with its ends."""
    outputs = {
        "start_top_index": [[4, 5]],
        "start_top_log_probs": [[-0.5, -1.0]],
        "end_top_index": [[[4, 7], [5, 4]]],
        "end_top_log_probs": [[[-1.0, -2.0], [-0.25, -0.1]]],
        "answer_class": [[0.75]],
    } | changes
    return {name: np.array(value) for name, value in outputs.items()}


def test_beam():
    (prediction,) = decode_beam([ask()], [window()], beam(), FULL)
    assert texts(prediction) == ["saw", "fox", "fox saw the fox"]
    weights = [math.exp(s) for s in (-1.25, -1.5, -2.5)]
    assert [c.probability for c in prediction.candidates] == pytest.approx(
        [w / sum(weights) for w in weights], rel=1e-12
    )
    best = prediction.candidates[0]
    assert (best.start_score, best.end_score) == (-1.0, -0.25)
    assert prediction.no_answer == 0.75
    assert prediction.text(0.75) == "saw"
    assert prediction.text(0.7) == ""
    # Of two windows the lower score counts.
    both = {name: np.concatenate([a, a]) for name, a in beam().items()}
    both["answer_class"] = np.array([[0.75], [-0.5]])
    (prediction,) = decode_beam([ask()], [window()] * 2, both, FULL)
    assert prediction.no_answer == -0.5
    assert texts(prediction) == ["saw", "fox", "fox saw the fox"]


def test_beam_outside_of_the_context():
    # [CLS] and [SEP] come up where the context is shorter than the beam.
    outputs = beam(start_top_index=[[0, 8]], end_top_index=[[[0, 4], [8, 9]]])
    (prediction,) = decode_beam([ask()], [window()], outputs, FULL)
    assert (prediction.text(), prediction.no_answer) == ("", math.inf)


def test_questions_that_nothing_was_read_of():
    flat = np.zeros(12, "float32")
    (empty,) = decode_logits([ask()], [window(0, 0)], [flat], [flat], FULL)
    (without_window,) = decode_logits([ask()], [], [], [], FULL)
    for prediction in (empty, without_window):
        assert (prediction.text(), prediction.no_answer) == ("", math.inf)


def test_mistakes():
    """Rows of padding that were not taken off."""
    flat = np.zeros((2, 12), "float32")
    with pytest.raises(AlbertError, match=r"`start` .* 2 rows, 1 windows"):
        decode_logits([ask()], [window()], flat, flat, FULL)
    outputs = beam(answer_class=[[0.0], [0.0]])
    with pytest.raises(AlbertError, match=r"`answer_class` .* 2 rows, 1 win"):
        decode_beam([ask()], [window()], outputs, FULL)
