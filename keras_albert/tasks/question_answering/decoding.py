"""Converts outputs of question answering models to answers in the context.

Letters: W windows, S positions of a padded row, K beam, N possible answers.
Scores are logits (SQuAD 1.1 head) or log-probabilities (2.0 head).

Source: reference squad_utils.py, accumulate_predictions_v1 and _v2,
write_predictions_v1 and _v2, with three differences: a question without any
candidate has no answer, instead of the word "empty"; the answer is the best
candidate that has text, while the reference's may be white space; and a
question whose no-answer score equals the threshold is answered, as in the
official scorer, for which the threshold is tuned (`metrics.py`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.tasks.question_answering.config import AnswerConfig
from keras_albert.tasks.question_answering.squad import Question
from keras_albert.tasks.question_answering.windows import Window

# For N possible answers: the first character, the character after the last one,
# the score of the start and the score of the end.
_Spans = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer: characters [start, end) of the context."""

    text: str
    start: int
    end: int
    probability: float  # probability among the candidates of the question
    start_score: float
    end_score: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answers of a model to a question."""

    id: str
    candidates: tuple[Candidate, ...]  # the best first; all texts differ
    # score for "no answer", the lowest of all windows: the logit of the answer
    # class (2.0 head), or the score of [CLS] minus that of the best candidate
    # (1.1 head); infinite without a candidate
    no_answer: float

    def text(self, threshold: float = math.inf) -> str:
        """The best answer; "" if `no_answer` is above the threshold."""
        if self.no_answer > threshold:
            return ""
        texts = (candidate.text for candidate in self.candidates)
        return next(filter(None, texts), "")


def decode_logits(
    questions: Sequence[Question],
    windows: Sequence[Window],
    start: Sequence[np.ndarray],
    end: Sequence[np.ndarray],
    config: AnswerConfig,
) -> list[Prediction]:
    """The answers of AlbertForQuestionAnswering, in the order of the questions.

    As in the reference, the `n_best` starts and ends of a window are selected
    from all positions, before those outside the context are dropped. `start`
    and `end` are W rows of logits [S]. They must end where their window ends,
    so that answers do not depend on the padding of a batch:
    `start[w][: len(window.token_ids)]`.
    """
    _check_rows(windows, {"start": start, "end": end})
    spans, no_answer = [], []
    for window, a, b in zip(windows, start, end, strict=True):
        starts, ends = np.meshgrid(
            _best(a, config.n_best), _best(b, config.n_best), indexing="ij"
        )
        spans.append(_spans(window, starts, ends, a[starts], b[ends], config))
        no_answer.append(float(a[0]) + float(b[0]))
    predictions = _predictions(questions, windows, spans, no_answer, config)
    return [_less_best_candidate(prediction) for prediction in predictions]


def decode_beam(
    questions: Sequence[Question],
    windows: Sequence[Window],
    outputs: Mapping[str, np.ndarray],
    config: AnswerConfig,
) -> list[Prediction]:
    """The answers of AlbertForQuestionAnsweringV2, as in `decode_logits`.

    `outputs` are those of the model without `start_positions`:
    `start_top_log_probs` and `start_top_index` [W, K], `end_top_log_probs` and
    `end_top_index` [W, K, K], `answer_class` [W, 1].
    """
    _check_rows(windows, outputs)
    spans = []
    for w, window in enumerate(windows):
        ends = outputs["end_top_index"][w]  # [K, K]
        starts, start_scores = (
            np.broadcast_to(np.expand_dims(outputs[name][w], 1), ends.shape)
            for name in ("start_top_index", "start_top_log_probs")
        )
        end_scores = outputs["end_top_log_probs"][w]
        spans.append(
            _spans(window, starts, ends, start_scores, end_scores, config)
        )
    no_answer = [float(row[0]) for row in outputs["answer_class"]]
    return _predictions(questions, windows, spans, no_answer, config)


def _check_rows(
    windows: Sequence[Window], outputs: Mapping[str, Sequence]
) -> None:
    for name, rows in outputs.items():
        if len(rows) != len(windows):
            raise AlbertError(
                f"`{name}` must have a row for each window. Received: "
                f"{len(rows)} rows, {len(windows)} windows. Leave out the "
                "rows that fill up the last batch."
            )


def _best(logits: np.ndarray, count: int) -> np.ndarray:
    """Positions of the highest logits, the best first; ties in their order."""
    return np.argsort(-logits, kind="stable")[:count]


def _spans(
    window: Window,
    starts: np.ndarray,
    ends: np.ndarray,
    start_scores: np.ndarray,
    end_scores: np.ndarray,
    config: AnswerConfig,
) -> _Spans:
    """The spans that can be answers, converted from tokens to characters.

    A start only counts in the window that has most context for it. `starts` and
    `ends` are positions of tokens; all arrays have the same shape.
    """
    firsts = np.flatnonzero(window.max_context) + window.context_start
    possible = (
        np.isin(starts, firsts)
        & (starts <= ends)
        & (ends < len(window.token_ids) - 1)
        & (ends - starts < config.answer_length)
    )
    return (
        window.starts[starts[possible] - window.context_start],
        window.ends[ends[possible] - window.context_start],
        start_scores[possible].astype("float64"),
        end_scores[possible].astype("float64"),
    )


def _predictions(
    questions: Sequence[Question],
    windows: Sequence[Window],
    spans: Sequence[_Spans],
    no_answer: Sequence[float],
    config: AnswerConfig,
) -> list[Prediction]:
    """The best candidates of each question over all of its windows."""
    rows: list[list[int]] = [[] for _ in questions]
    for w, window in enumerate(windows):
        rows[window.question].append(w)
    predictions = []
    for question, own in zip(questions, rows, strict=True):
        found = [spans[w] for w in own]
        candidates = _candidates(question.context, found, config.n_best)
        least = math.inf
        if candidates:
            least = min(no_answer[w] for w in own)
        predictions.append(Prediction(question.id, candidates, least))
    return predictions


def _candidates(
    context: str, spans: Sequence[_Spans], count: int
) -> tuple[Candidate, ...]:
    """The `count` best spans whose texts differ, the best first."""
    if not spans:
        return ()
    starts, ends, start_scores, end_scores = map(
        np.concatenate, zip(*spans, strict=True)
    )
    scores = start_scores + end_scores
    found: dict[str, int] = {}
    for i in np.argsort(-scores, kind="stable"):
        if len(found) == count:
            break
        found.setdefault(context[starts[i] : ends[i]].strip(), i)
    weights = [math.exp(scores[i] - max(scores)) for i in found.values()]
    total = sum(weights)
    candidates = []
    for (text, i), weight in zip(found.items(), weights, strict=True):
        raw = context[starts[i] : ends[i]]
        start = int(starts[i]) + len(raw) - len(raw.lstrip())
        candidates.append(
            Candidate(
                text,
                start,
                start + len(text),
                weight / total,
                float(start_scores[i]),
                float(end_scores[i]),
            )
        )
    return tuple(candidates)


def _less_best_candidate(prediction: Prediction) -> Prediction:
    if not prediction.candidates:
        return prediction
    best = prediction.candidates[0]
    no_answer = prediction.no_answer - best.start_score - best.end_score
    return dataclasses.replace(prediction, no_answer=no_answer)
