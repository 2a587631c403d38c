"""Questions: windows of contexts -> a model, and its outputs -> answers.

These are the functions of the rows of TASKS whose contexts are read in
windows. A model that may find no answer has NAMES and the head of SQuAD 2.0;
any other has no names, and the head of 1.1.

Letters: Q questions, W windows, S tokens a row, K beam.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import keras
import numpy as np
from scipy import special

from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Field, Table, read_text
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.tasks.metrics import Scores, collapsed
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
)
from keras_albert.tasks.question_answering.decoding import (
    Prediction,
    decode_beam,
    decode_logits,
)
from keras_albert.tasks.question_answering.metrics import score_v1, score_v2
from keras_albert.tasks.question_answering.squad import (
    Answer,
    Question,
    questions_of,
)
from keras_albert.tasks.question_answering.windows import Window, make_windows
from keras_albert.text.model_inputs import Row
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.losses import WeightedMean

NAMES = ("answer", "no answer")
ANSWERS = "answers"  # the field, and the column if no other is named
QUESTION = "question"
# What speaks against an answer where there is no candidate; finite, for files
# (reference squad_utils.py, score_null).
NO_CANDIDATE = 1_000_000.0
MARGIN = 1.0  # of a threshold to the scores, where all are on one side of it

Outputs = list[dict[str, np.ndarray]]
"""of each window: `start` and `end` [S], or the beam, see decode_beam"""


@dataclasses.dataclass(frozen=True)
class Asked:
    """Questions, their windows, and how to take answers from these."""

    questions: Sequence[Question]
    windows: Sequence[Window]
    config: AnswerConfig
    threshold: float | None
    """see `ReadingConfig`"""

    def __len__(self) -> int:
        return len(self.questions)


def question_fields(columns: TableColumns) -> dict[str, Field]:
    """`Task.inputs`."""
    return {
        "context": Field(columns.context, read_text),
        QUESTION: Field(columns.question or QUESTION, read_text),
    }


def names_of_questions(table: Table) -> tuple[str, str] | None:
    """`Task.names`: whether there are questions without an answer."""
    return NAMES if not all(table.values[ANSWERS]) else None


def question_features(
    tokenizer: Tokenizer,
    table: Table,
    names: tuple[str, str] | None,
    reading: ReadingConfig,
) -> Features:
    """`Task.features`: the windows of all questions, one example each."""
    questions = questions_of(table)
    windows = make_windows(tokenizer, questions, reading.windows)
    rows = [
        Row(window.token_ids, window.context_start, window.is_cut)
        for window in windows
    ]
    asked = Asked(questions, windows, reading.answers, reading.threshold)
    if ANSWERS not in table.values:
        return Features(rows, source=asked)
    start = np.array([window.start for window in windows], "int32")
    target = {
        "start": start,
        "end": np.array([window.end for window in windows], "int32"),
    }
    if names:
        target["answer_class"] = (start == 0).astype("float32")[:, None]
    lost = np.array([window.is_lost for window in windows])
    return Features(
        rows,
        target,
        weight=1 - lost.astype("float32") if lost.any() else None,
        given={"start_positions": "start"} if names else {},
        source=asked,
    )


def question_head(
    backbone: AlbertBackbone, names: tuple[str, str] | None, dropout: float
) -> keras.Model:
    """`Task.head`."""
    if names:
        return AlbertForQuestionAnsweringV2(backbone, dropout=dropout)
    return AlbertForQuestionAnswering(backbone)


def question_loss(
    names: tuple[str, str] | None,
) -> dict[str, keras.losses.Loss]:
    """`Task.loss`: of each output."""
    options = {"from_logits": True, "reduction": "none"}
    losses = {
        name: WeightedMean(
            keras.losses.SparseCategoricalCrossentropy(**options)
        )
        for name in ("start", "end")
    }
    if names:
        losses["answer_class"] = WeightedMean(
            keras.losses.BinaryCrossentropy(**options)
        )
    return losses


def predictions_of(outputs: Outputs, features: Features) -> list[Prediction]:
    """The answers to each question, the best first."""
    asked = features.source
    if "start" not in outputs[0]:
        stacked = {
            name: np.stack([output[name] for output in outputs])
            for name in outputs[0]
        }
        return decode_beam(
            asked.questions, asked.windows, stacked, asked.config
        )
    start, end = (
        [
            output[name][: len(window.token_ids)]
            for output, window in zip(outputs, asked.windows, strict=True)
        ]
        for name in ("start", "end")
    )
    return decode_logits(
        asked.questions, asked.windows, start, end, asked.config
    )


def against_of(predictions: Sequence[Prediction]) -> dict[str, float]:
    """How much speaks for "no answer", by question; finite."""
    return {p.id: min(p.no_answer, NO_CANDIDATE) for p in predictions}


def limit_of(names: tuple[str, str] | None, asked: Asked) -> float:
    """Where more than this speaks for "no answer", that is the answer."""
    if names is None or asked.threshold is None:
        return math.inf  # it always answers
    return asked.threshold


def decode_questions(
    outputs: Outputs, features: Features, names: tuple[str, str] | None
) -> list[dict[str, object]]:
    """`Task.decode`: the answer, its probability and its characters.

    The probability is that among the answers that were considered; of no
    answer, what the model gives to there being none.
    """
    limit = limit_of(names, features.source)
    predictions = predictions_of(outputs, features)
    return [_decoded(each, limit) for each in predictions]


def _decoded(prediction: Prediction, limit: float) -> dict[str, object]:
    text = prediction.text(limit)
    if not text:
        score = float(special.expit(prediction.no_answer))
        start = end = None
    else:
        best = next(c for c in prediction.candidates if c.text)
        score, start, end = best.probability, best.start, best.end
    return {
        "prediction": text,
        "score": round(score, 6),
        "start": start,
        "end": end,
    }


def question_scores(
    outputs: Outputs, features: Features, names: tuple[str, str] | None
) -> Scores:
    """`Task.scores`: in percent, as the official scorers.

    With `threshold` where the model may find no answer: the one of the source,
    or the best one for these questions.
    """
    asked = features.source
    predictions = predictions_of(outputs, features)
    texts = {p.id: p.text() for p in predictions}
    if names is None and all(each.answers for each in asked.questions):
        report = score_v1(asked.questions, texts)
        return _scores(report, texts.values(), asked)
    against = against_of(predictions)
    tuned = names is not None and asked.threshold is None
    if tuned:
        best = score_v2(asked.questions, texts, against)["best_f1_thresh"]
        threshold = _above(best, np.array([*against.values()]))
        asked = dataclasses.replace(asked, threshold=threshold)
    limit = limit_of(names, asked)
    report = score_v2(asked.questions, texts, against, limit)
    if tuned:
        report = {k: v for k, v in report.items() if not k.startswith("best_")}
    if names:
        report["threshold"] = asked.threshold
    return _scores(report, [p.text(limit) for p in predictions], asked)


def _scores(
    report: dict[str, float], answers: Iterable[str], asked: Asked
) -> Scores:
    """The values of a report, and what is to be known of the answers."""
    values = {k: v for k, v in report.items() if isinstance(v, float)}
    first, *others = set(answers)
    expected = {_texts(each.answers[:1]) for each in asked.questions}
    if others or len(expected) == 1:
        return Scores(values)
    return Scores(values, (collapsed(f"question is answered with {first!r}"),))


def _texts(answers: tuple[Answer, ...]) -> tuple[str, ...]:
    return tuple(answer.text for answer in answers)


def _above(threshold: float, against: np.ndarray) -> float:
    """Halfway to the next score, or clear of all of them.

    So other roundings change no answer.
    """
    higher = against[against > threshold]
    if len(higher) == len(against):  # every question is refused
        return min(threshold, float(higher.min()) - MARGIN)
    if not len(higher):
        return threshold + MARGIN
    return float((threshold + higher.min()) / 2)


def refuse_all(features: Features) -> float | None:
    """`Task.guess`: F1 of "no answer" to every question, in percent."""
    questions = features.source.questions
    share = sum(not each.answers for each in questions) / len(questions)
    return 100 * share or None


def submitted(
    outputs: Outputs,
    features: Features,
    names: tuple[str, str] | None,
    ids: Sequence[str],
) -> tuple[dict, dict, dict]:
    """What SQuAD's scorers take, each by the questions' ids in their file.

    Returns:
        the answer; all candidates, under the reference's names; and how much
        speaks for "no answer".
    """
    predictions = predictions_of(outputs, features)
    limit = limit_of(names, features.source)
    texts = [each.text(limit) for each in predictions]
    candidates = [
        [
            {
                "text": candidate.text,
                "probability": candidate.probability,
                "start_log_prob": candidate.start_score,
                "end_log_prob": candidate.end_score,
            }
            for candidate in each.candidates
        ]
        for each in predictions
    ]
    against = against_of(predictions).values()
    return tuple(
        dict(zip(ids, column, strict=True))
        for column in (texts, candidates, against)
    )
