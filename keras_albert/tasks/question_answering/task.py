"""The part of a context that answers a question.

Contexts of any length are read in windows. A model that may find no answer has
the labels NAMES and the head of SQuAD 2.0; any other has no labels, and the
head of SQuAD 1.1.

Letters: S tokens of a row.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import keras
import numpy as np
from scipy import special

from keras_albert.data.batches import Features
from keras_albert.data.tables import Field, read_text
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.tasks import classes
from keras_albert.tasks.labels import ClassNames, Labels, NoLabels
from keras_albert.tasks.metrics import Scores, collapsed
from keras_albert.tasks.question_answering.config import AnswerConfig
from keras_albert.tasks.question_answering.decoding import (
    Prediction,
    decode_beam,
    decode_logits,
)
from keras_albert.tasks.question_answering.metrics import score_v1, score_v2
from keras_albert.tasks.question_answering.squad import (
    Question,
    questions_of,
    read_answers,
    read_question_parts,
)
from keras_albert.tasks.question_answering.windows import Window, make_windows
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import LearnedTask
from keras_albert.text.model_inputs import Row

# What the heads predict.
ANSWER, ANSWER_OR_NONE = "an answer", "an answer, or none"
NAMES = ("answer", "no answer")
ANSWERS = "answers"  # the field, and the column if no other is named
QUESTION = "question"
# The no-answer score without a candidate (reference squad_utils.py).
NO_CANDIDATE = 1_000_000.0
MARGIN = 1.0  # between a threshold and scores that are all on one side of it

# for each window `start` and `end` [S], or the beam, see decode_beam
WindowOutputs = list[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """Questions and their windows, with the settings of answers."""

    questions: Sequence[Question]
    windows: Sequence[Window]
    config: AnswerConfig
    # the no-answer score above which no answer is given; None: not chosen yet
    threshold: float | None

    def __len__(self) -> int:
        return len(self.questions)


class _AnswerNames(Labels):
    """NAMES if the model may find no answer, else no labels."""

    def __init__(self, may_refuse: bool | None):
        self.may_refuse = may_refuse

    def of_table(self, table):
        may_refuse = self.may_refuse
        if may_refuse is None:
            may_refuse = not all(table.values[ANSWERS])
        return NAMES if may_refuse else None

    def of_head(self, model, labels, task):
        if labels is None:
            may_refuse = isinstance(model, AlbertForQuestionAnsweringV2)
            return NAMES if may_refuse else None
        if tuple(labels) == NAMES:
            return NAMES
        raise AlbertError(
            f"a model that answers questions has the labels {list(NAMES)}, if "
            "it may find no answer, or no labels. Received: "
            f"{labels!r:.80}."
        )

    def check(self, labels, task):
        if self.may_refuse is False:
            NoLabels().check(labels, task)
        elif labels is None and self.may_refuse:
            ClassNames().check(labels, task)
        elif labels not in (None, list(NAMES)):
            raise AlbertError(
                f"`labels` must be {list(NAMES)}"
                f"{' or null' if self.may_refuse is None else ''}. "
                f"Received: {labels!r:.80}."
            )

    def check_head(self, labels, head):
        may_refuse = head.predicts == ANSWER_OR_NONE
        if may_refuse != (labels is not None):
            raise AlbertError(
                f"`labels` must be {list(NAMES) if may_refuse else 'null'}: "
                f"the model predicts {head.predicts}. "
                f"Received: {labels!r:.60}."
            )


class _AnswerServing(Serving):
    """The signature of an exported model that answers questions.

    It takes `question` and `context`, string [B], and returns for each question
    `answer`, its `score`, the characters at which it starts and ends in the
    context, and `no_answer`, the score for no answer.
    """

    def signatures(self, graph):
        from keras_albert.tasks.question_answering.graph import serve_questions

        return {"serving_default": serve_questions(graph)}

    def answer(self, outputs, given):
        # Not the positions: a context may have the same text twice.
        characters = given["context"][outputs["start"] : outputs["end"]]
        answer = outputs["answer"]
        return answer if answer == characters else None, outputs["score"]


class QuestionAnswering(LearnedTask):
    """The part of a context that answers a question.

    `may_refuse`: whether questions may have no answer; None: the table decides.
    """

    serving = _AnswerServing()
    adds = frozenset({"prediction", "score", "start", "end"})
    target = ANSWERS
    best = "f1"
    highest = 100.0
    constant = '"no answer"'
    reads_contexts = True
    rows = "windows"

    def __init__(self, name: str, may_refuse: bool | None = None):
        super().__init__(name)
        self.labels = _AnswerNames(may_refuse)
        self.heads = {}
        if not may_refuse:
            self.heads[ANSWER] = AlbertForQuestionAnswering
        if may_refuse is not False:
            self.heads[ANSWER_OR_NONE] = AlbertForQuestionAnsweringV2

    def inputs(self, columns):
        return {
            "context": Field(columns.context, read_text),
            QUESTION: Field(columns.question or QUESTION, read_text),
        }

    def reads_pairs(self, columns):
        return True

    def label_reader(self, names):
        return read_answers

    def parts(self, *arguments, **options):
        """Reads questions from a table or from SQuAD's JSON, in parts.

        The arguments are those of `read_question_parts`.
        """
        return read_question_parts(*arguments, **options)

    def features(self, tokenizer, table, names, reading):
        """The windows of all questions, an example for each."""
        questions = questions_of(table)
        windows = make_windows(tokenizer, questions, reading.windows)
        rows = [
            Row(window.token_ids, window.context_start, window.is_cut)
            for window in windows
        ]
        asked = QuestionSet(
            questions, windows, reading.answers, reading.threshold
        )
        if ANSWERS not in table.values:
            return Features(rows, source=asked)
        start = np.array([window.start for window in windows], "int32")
        end = np.array([window.end for window in windows], "int32")
        target = {"start": start, "end": end}
        if names:
            target["answer_class"] = (start == 0).astype("float32")[:, None]
        lost = np.array([window.is_lost for window in windows])
        return Features(
            rows,
            target,
            weight=1 - lost.astype("float32") if lost.any() else None,
            inputs_from_targets={"start_positions": "start"} if names else {},
            source=asked,
        )

    def continued(self, names):
        return (
            AlbertForQuestionAnsweringV2
            if names
            else AlbertForQuestionAnswering
        )

    def start_head(self, model, source, rows):
        """Copies the head of `source`.

        As NumPy arrays: a step of training on JAX gives up those of its model.
        """
        if source is None:
            return
        for new, old in zip(_head(model), _head(source), strict=True):
            new.assign(keras.ops.convert_to_numpy(old))
        if isinstance(model, AlbertForQuestionAnsweringV2):
            model.beam = source.beam

    def head(self, backbone, names, options):
        if names:
            return AlbertForQuestionAnsweringV2(
                backbone, dropout=options.dropout
            )
        return AlbertForQuestionAnswering(backbone)

    def loss(self, names):
        losses = {"start": classes.class_loss(), "end": classes.class_loss()}
        if names:
            losses["answer_class"] = classes.decision_loss()
        return losses

    def held_out_loss(self, outputs, features, names):
        """No loss: the outputs are answers, perhaps those of a beam."""
        return {}

    def scores(self, outputs, features, names):
        """Exact match and F1 in percent, as the official scorers compute them.

        If the model may find no answer, there is a `threshold`: that of the
        settings, or the best one for these questions.
        """
        asked = features.source
        predictions = predictions_of(outputs, features)
        texts = {p.id: p.text() for p in predictions}
        if names is None and all(each.answers for each in asked.questions):
            report = score_v1(asked.questions, texts)
            return _scores(report, texts.values(), asked)
        null_scores = no_answer_scores(predictions)
        tuned = names is not None and asked.threshold is None
        if tuned:
            found = score_v2(asked.questions, texts, null_scores)
            best = found["best_f1_thresh"]
            threshold = _above(best, np.array([*null_scores.values()]))
            asked = dataclasses.replace(asked, threshold=threshold)
        threshold = no_answer_threshold(names, asked)
        report = score_v2(asked.questions, texts, null_scores, threshold)
        if tuned:
            report = {k: report[k] for k in report if not k.startswith("best_")}
        if names:
            report["threshold"] = asked.threshold
        return _scores(report, [p.text(threshold) for p in predictions], asked)

    def baseline(self, features):
        """F1 of "no answer" to every question, in percent."""
        questions = features.source.questions
        share = sum(not each.answers for each in questions) / len(questions)
        return 100 * share or None

    def unpadded(self, output, row):
        if "start" not in output:  # a beam, which has no padding
            return output
        count = len(row.token_ids)
        return {name: output[name][:count] for name in ("start", "end")}

    def decode(self, outputs, features, names):
        """The answer to each question, its probability and its position.

        The probability is relative to the other candidates or, for a question
        without an answer, the probability of no answer. The position is `start`
        and `end`, with which the answer is context[start:end]; None without an
        answer.
        """
        threshold = no_answer_threshold(names, features.source)
        predictions = predictions_of(outputs, features)
        return [_decoded(each, threshold) for each in predictions]

    def fits(self, model):
        heads = AlbertForQuestionAnswering, AlbertForQuestionAnsweringV2
        return isinstance(model, heads)

    def too_long(self, length, reading):
        most = reading.windows.query_length
        return f"are questions of more than {most} tokens"

    def card(self, columns, length, reading):
        call, _ = super().card(columns, length, reading)
        return call, (
            f"A question is cut after {reading.windows.query_length} tokens. A "
            "context may be of any length, but what answers a question must "
            f"be within {reading.windows.sequence_length} tokens, the "
            "question included, and has at most "
            f"{reading.answers.answer_length}."
        )


def _head(model: AlbertModel) -> list[keras.Variable]:
    """The weights that are not those of the encoder."""
    of_encoder = {id(weight) for weight in model.backbone.weights}
    return [each for each in model.weights if id(each) not in of_encoder]


def predictions_of(
    outputs: WindowOutputs, features: Features
) -> list[Prediction]:
    """The answers to each question, the best first."""
    asked = features.source
    questions, windows, config = asked.questions, asked.windows, asked.config
    if "start" not in outputs[0]:
        stacked = {
            name: np.stack([output[name] for output in outputs])
            for name in outputs[0]
        }
        return decode_beam(questions, windows, stacked, config)
    start, end = (
        [output[name] for output in outputs] for name in ("start", "end")
    )
    return decode_logits(questions, windows, start, end, config)


def no_answer_scores(predictions: Sequence[Prediction]) -> dict[str, float]:
    """The finite no-answer score of each question, by its id."""
    return {p.id: min(p.no_answer, NO_CANDIDATE) for p in predictions}


def no_answer_threshold(
    names: tuple[str, str] | None, asked: QuestionSet
) -> float:
    """The threshold above which the answer is "no answer"."""
    if names is None or asked.threshold is None:
        return math.inf  # it always answers
    return asked.threshold


def _decoded(prediction: Prediction, threshold: float) -> dict[str, object]:
    text = prediction.text(threshold)
    if not text:
        score = float(special.expit(prediction.no_answer))
        start = end = None
    else:
        # Candidates are in descending order of probability; one of them may
        # be the empty text.
        best = next(c for c in prediction.candidates if c.text)
        score, start, end = best.probability, best.start, best.end
    score = round(score, 6)
    return {"prediction": text, "score": score, "start": start, "end": end}


def _scores(
    report: dict[str, float], answers: Iterable[str], asked: QuestionSet
) -> Scores:
    """The scores of a report, with a remark if all answers are the same."""
    values = {k: v for k, v in report.items() if isinstance(v, float)}
    first, *others = set(answers)
    expected = {tuple(a.text for a in q.answers[:1]) for q in asked.questions}
    if others or len(expected) == 1:
        return Scores(values)
    return Scores(values, (collapsed(f"question is answered with {first!r}"),))


def _above(threshold: float, null_scores: np.ndarray) -> float:
    """Moves a threshold away from all scores.

    It goes halfway to the next higher score; above all scores if none is
    higher; and below all of them if every question is refused. A threshold that
    equals the score of a question could, after rounding, be above or below it,
    and the answer to that question would depend on the machine.
    """
    higher = null_scores[null_scores > threshold]
    if len(higher) == len(null_scores):  # every question is refused
        return min(threshold, float(higher.min()) - MARGIN)
    if not len(higher):
        return threshold + MARGIN
    return float((threshold + higher.min()) / 2)


def submitted(
    outputs: WindowOutputs,
    features: Features,
    names: tuple[str, str] | None,
    ids: Sequence[str],
) -> tuple[dict, dict, dict]:
    """The files that SQuAD's scorers take, by the ids of the questions.

    They have the answers, all candidates, and the no-answer scores.
    """
    predictions = predictions_of(outputs, features)
    threshold = no_answer_threshold(names, features.source)
    texts = [each.text(threshold) for each in predictions]
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
    null_scores = no_answer_scores(predictions).values()
    return tuple(
        dict(zip(ids, column, strict=True))
        for column in (texts, candidates, null_scores)
    )
