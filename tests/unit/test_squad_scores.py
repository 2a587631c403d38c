"""Exact match, F1 and thresholds, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from keras_albert.errors import AlbertError
from keras_albert.tasks.question_answering.metrics import (
    best_no_answer_threshold,
    f1,
    score_v1,
    score_v2,
    words,
)
from keras_albert.tasks.question_answering.squad import Answer, Question

pytestmark = pytest.mark.any_backend


def asked(name, *answers):
    return Question(
        name, "?", "...", tuple(Answer(a, 0) for a in answers), not answers
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat's  hat, a U.S. model", "cats hat us model"),
        ("an  apple\n", "apple"),
        ("A-theme another Athens", "atheme another athens"),
        ("the", ""),
        ("£9 — “quoted”", "£9 — “quoted”"),  # ASCII punctuation only
        ("a.m.", "am"),  # articles go after punctuation
        ("(the)", ""),
        ("a1 a_b", "a1 ab"),
        ("Ünder THE", "ünder"),
        ("x—a—b", "x— —b"),  # a space takes the place of an article
    ],
)
def test_words(text, expected):
    assert words(text) == expected.split()


def test_f1():
    # 2 of 3 are right and 2 of 4 found: 2 * 2/3 * 1/2 / (2/3 + 1/2)
    assert f1(["x", "b", "c"], ["b", "c", "d", "e"]) == pytest.approx(4 / 7)
    # A word counts as often as it is in both.
    assert f1(["b", "b", "b"], ["b", "b"]) == pytest.approx(0.8)
    assert f1(["x"], ["y"]) == f1([], ["y"]) == f1(["x"], []) == 0
    assert f1(["x"], ["x"]) == 1


def test_score_v1():
    questions = [
        asked("1", "the old oak", "old oak tree"),  # exact with the first
        asked("2", "five hens", "hens"),  # best F1 with the second: 2/3
        asked("3", "nothing"),
        asked("4", "Prague"),
        asked("5", "!?"),  # equal, but no word is shared
    ]
    texts = {"1": "Old oak!", "2": "two hens", "3": "all", "5": "the", "9": "x"}
    assert score_v1(questions, texts) == {
        "exact_match": pytest.approx(100 * 2 / 5),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 5),
        "total": 5,
        "unanswered": 1,
    }


QUESTIONS = [asked("a", "old oak"), asked("b", "two hens")]
QUESTIONS += [asked("c"), asked("d")]
TEXTS = {"a": "the old oak", "b": "hens", "c": "a barn", "d": ""}
AGAINST = {"a": -1.0, "b": 0.5, "c": 2.0, "d": 3.0}


def test_score_v2():
    halves = ("exact", "HasAns_exact", "NoAns_exact", "NoAns_f1")  # a, d
    counts = {"total": 4, "HasAns_total": 2, "NoAns_total": 2, "unanswered": 0}
    assert score_v2(QUESTIONS, TEXTS) == {
        **dict.fromkeys(halves, 50.0),
        **counts,
        "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 4),
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
    }


def test_score_v2_of_one_kind():
    report = score_v2(QUESTIONS[:2], {"a": "old oak"})
    scores = dict.fromkeys(["exact", "f1", "HasAns_exact", "HasAns_f1"], 50.0)
    assert report == {**scores, "total": 2, "HasAns_total": 2, "unanswered": 1}
    report = score_v2(QUESTIONS[2:], {"c": "the", "d": ""})
    assert report["NoAns_exact"] == report["NoAns_f1"] == 100.0
    assert "HasAns_exact" not in report
    # Answers without words count only where there is no other.
    questions = [asked("1", "...", "oak"), asked("2", "the")]
    report = score_v2(questions, {"1": "", "2": ""})
    assert report["HasAns_exact"] == report["HasAns_f1"] == 50.0


def test_score_v2_with_a_threshold():
    report = score_v2(QUESTIONS, TEXTS, AGAINST, threshold=0.0)
    # b, c and d are refused: a, c and d are right.
    assert report["exact"] == report["f1"] == 75.0
    assert report["HasAns_f1"] == 50.0
    assert report["NoAns_f1"] == 100.0
    # Refusing b gains nothing in exact match and loses two thirds in F1; at
    # its score b is answered.
    assert report["best_exact"] == 75.0
    assert report["best_exact_thresh"] == -1.0
    assert report["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
    assert report["best_f1_thresh"] == 0.5
    tuned = score_v2(QUESTIONS, TEXTS, AGAINST, threshold=0.5)
    assert tuned["f1"] == report["best_f1"]


def test_refusing_all():
    def best(*scores):
        return best_no_answer_threshold(
            np.zeros(2), np.ones(2), np.array(scores)
        )

    # Probabilities: the official 0. Other scores: below all of them.
    assert best(0.2, 0.1) == (100, 0)
    for lowest in (0.0, -3.0):
        accuracy, threshold = best(2.0, lowest)
        assert accuracy == 100 and threshold < lowest


def test_what_cannot_be_scored():
    with pytest.raises(AlbertError, match="question 1 has no answers"):
        score_v1([asked("1")], {"1": ""})
    for score in (score_v1, score_v2):
        with pytest.raises(AlbertError, match="no questions to score"):
            score([], {})
    with pytest.raises(AlbertError, match="lacks 1 of 4 questions: d"):
        score_v2(QUESTIONS, TEXTS, {"a": 0.0, "b": 0.0, "c": 0.0})
    with pytest.raises(AlbertError, match="must be numbers"):
        best_no_answer_threshold(
            np.zeros(2), np.ones(2), np.array([0.0, math.nan])
        )


SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
AGAINST_ANY = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, math.inf])


@given(st.lists(st.tuples(SCORES, st.booleans(), AGAINST_ANY), min_size=1))
def test_no_threshold_is_better(rows):
    answered, refused, against = np.array(rows, float).T
    best, threshold = best_no_answer_threshold(answered, refused, against)

    def average(at):
        return 100 * np.where(against > at, refused, answered).mean()

    assert best == pytest.approx(average(threshold))
    tried = [-3.0, *against.tolist()]
    assert best == pytest.approx(max(average(at) for at in tried))
