"""Exact match and F1 of answers, as SQuAD reports them.

Both compare words after normalization, and use the accepted answer that matches
best; the averages over questions are percentages.

Source: Rajpurkar et al. 2016 (arXiv:1606.05250), section 6.1, and 2018
(arXiv:1806.03822), section 5; equal to the official scorers of 1.1 and 2.0.
"""

import collections
import math
import re
import string
from collections.abc import Mapping, Sequence

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.tasks.question_answering.squad import Question

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def words(text: str) -> list[str]:
    """Lower-case words without ASCII punctuation and English articles.

    >>> words("The cat's  hat, a U.S. model")
    ['cats', 'hat', 'us', 'model']
    """
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def f1(predicted: Sequence[str], accepted: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words; 0 if none is shared.

    >>> f1(["big", "red", "bus"], ["red", "bus"])
    0.8
    """
    shared = collections.Counter(predicted) & collections.Counter(accepted)
    if not shared:
        return 0.0
    precision = shared.total() / len(predicted)
    recall = shared.total() / len(accepted)
    return 2 * precision * recall / (precision + recall)


def score_v1(
    questions: Sequence[Question], texts: Mapping[str, str]
) -> dict[str, float]:
    """`exact_match` and `f1` of SQuAD 1.1, in percent, and two numbers.

    `texts` has the predicted answer for each id; other ids are ignored. `total`
    is the number of questions, `unanswered` that of those which score 0 because
    they are not in `texts`.
    """
    for question in questions:
        if not question.answers:
            raise AlbertError(
                f"question {question.id} has no answers, but SQuAD 1.1 scores "
                "compare with answers. Take the scores of SQuAD 2.0."
            )
    accepted = [[words(a.text) for a in each.answers] for each in questions]
    exact, f1_ = _scores(questions, texts, accepted)
    return {
        "exact_match": _percent(exact),
        "f1": _percent(f1_),
        "total": len(questions),
        "unanswered": _unanswered(questions, texts),
    }


def score_v2(
    questions: Sequence[Question],
    texts: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    threshold: float = math.inf,
) -> dict[str, float]:
    """The scores of SQuAD 2.0, in percent, under their official names.

    The text "" means that there is no answer. `texts` has the predicted answer
    for each id, before a threshold is applied. A question is answered with ""
    if its `no_answer` score is above the `threshold`.

    Returns:
        `exact`, `f1`, `total`; the same for the questions with an answer
        (`HasAns_...`) and without (`NoAns_...`), if there are any;
        `unanswered`, the number of questions that score 0 because they are not
        in `texts` (the official scorer stops there). With `no_answer` also
        `best_exact`, `best_f1`, `best_exact_thresh` and `best_f1_thresh`: the
        best scores of any threshold, and these thresholds.
    """
    accepted = []
    for question in questions:
        with_words = filter(None, (words(a.text) for a in question.answers))
        accepted.append(list(with_words) or [[]])
    exact, f1_ = _scores(questions, texts, accepted)
    f1_ = np.maximum(f1_, exact)  # 1 if neither has any words
    has_answer = np.array([bool(question.answers) for question in questions])
    refused = np.where(has_answer, 0.0, 1.0)
    null_scores = np.full(len(questions), -math.inf)
    best = {}
    if no_answer is not None:
        null_scores = _null_scores(questions, no_answer)
        for name, answered in (("exact", exact), ("f1", f1_)):
            score, at = best_no_answer_threshold(answered, refused, null_scores)
            best |= {f"best_{name}": score, f"best_{name}_thresh": at}
    is_refused = null_scores > threshold
    exact, f1_ = (np.where(is_refused, refused, x) for x in (exact, f1_))
    parts = {"": refused >= 0, "HasAns_": has_answer, "NoAns_": ~has_answer}
    report = {}
    for name, part in parts.items():
        if part.any():
            report |= {
                f"{name}exact": _percent(exact[part]),
                f"{name}f1": _percent(f1_[part]),
                f"{name}total": int(part.sum()),
            }
    return {**report, "unanswered": _unanswered(questions, texts), **best}


def best_no_answer_threshold(
    answered: np.ndarray, refused: np.ndarray, no_answer: np.ndarray
) -> tuple[float, float]:
    """The best average score of any threshold, in percent, and the threshold.

    As in the official scorer of 2.0, which goes through the questions by their
    score and keeps the first best threshold. Unlike there, it is never between
    equal scores; if it is best to answer no question, the threshold is below
    the lowest score even if that is not above 0; and a predicted text without a
    word, such as "the", is scored like "" also here.

    `answered` and `refused` are scores [Q] of predicted texts and of "".
    """
    if np.isnan(no_answer).any():
        raise AlbertError(
            "the scores for no answer must be numbers. Received: nan. The "
            "model computes no numbers: train it again with a lower learning "
            "rate or longer warm-up."
        )
    order = np.argsort(no_answer, kind="stable")
    scores = no_answer[order]
    thresholds = [min(0.0, np.nextafter(scores[0], -math.inf)), *scores]
    gains = (answered - refused)[order]
    totals = np.cumsum([refused.sum(), *gains])
    ends_equals = [True, *(scores[1:] > scores[:-1]), True]
    best = np.argmax(np.where(ends_equals, totals, -math.inf))
    return 100.0 * totals[best] / len(scores), float(thresholds[best])


def _scores(
    questions: Sequence[Question],
    texts: Mapping[str, str],
    accepted: Sequence[Sequence[list[str]]],
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of each question, in [0, 1], float64 [Q]."""
    if not questions:
        raise AlbertError("no questions to score. Expected one or more.")
    exact, f1_ = np.zeros((2, len(questions)))
    pairs = zip(questions, accepted, strict=True)
    for q, (question, answers) in enumerate(pairs):
        if question.id in texts:
            predicted = words(texts[question.id])
            exact[q] = predicted in answers
            f1_[q] = max(f1(predicted, answer) for answer in answers)
    return exact, f1_


def _null_scores(
    questions: Sequence[Question], no_answer: Mapping[str, float]
) -> np.ndarray:
    missing = [q.id for q in questions if q.id not in no_answer]
    if missing:
        raise AlbertError(
            f"`no_answer` lacks {len(missing)} of {len(questions)} questions: "
            f"{', '.join(missing[:3])} ... Give a score for each."
        )
    return np.array([no_answer[q.id] for q in questions], "float64")


def _unanswered(questions: Sequence[Question], texts: Mapping[str, str]) -> int:
    return sum(question.id not in texts for question in questions)


def _percent(scores: np.ndarray) -> float:
    return 100.0 * float(np.mean(scores))
