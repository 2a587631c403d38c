"""Decides after which layer the inference of a model with exits stops.

Letters: N examples, L layers, C labels.
"""

import dataclasses

import numpy as np
from scipy import special

from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel, quantized_paths
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.tasks.config import EarlyExit

# Most tokens, with padding, for which a layer is completed before its answer is
# computed. An answer needs only the first token of its layer. In large batches
# it is faster to compute that token alone, and to complete the layer later for
# the rows that go on. With few tokens nearly all time is spent on reading the
# weights, which takes as long for one token as for all.
FEW_TOKENS = 256


class Stopping:
    """Decides for a batch, one layer after another, which examples stop.

    `problem` is that of `AlbertForSequenceClassification`.
    """

    def __init__(self, rule: EarlyExit, problem: str):
        self._rule, self._problem = rule, problem
        self._layer = 0
        self._answers = None  # those of the layer before
        self._agreements = None  # int [N], number of equal answers in a row

    def after(self, logits: np.ndarray) -> np.ndarray:
        """Which examples stop after the next layer: bool [N].

        `logits` [N, C] are those of the layer.
        """
        rule = self._rule
        self._layer += 1
        if rule.layers is not None:
            return np.full(len(logits), self._layer == rule.layers)
        if rule.confidence is not None:
            return _confidence(logits, self._problem) >= rule.confidence
        answers = _answers(logits, self._problem)
        if self._answers is None:
            self._agreements = np.zeros(len(logits), int)
        else:
            equal = self._equal(answers)
            self._agreements = np.where(equal, self._agreements + 1, 0)
        self._answers = answers
        return self._agreements >= rule.patience

    def keep(self, rows: np.ndarray) -> None:
        """Leaves out all examples but those at `rows`."""
        if self._answers is not None:
            self._answers = self._answers[rows]
            self._agreements = self._agreements[rows]

    def _equal(self, answers: np.ndarray) -> np.ndarray:
        if self._problem == "regression":
            return (abs(answers - self._answers) < self._rule.tolerance).all(-1)
        return (answers == self._answers).all(-1)


def layers_used(
    rule: EarlyExit, problem: str, logits: np.ndarray
) -> np.ndarray:
    """The number of layers that each example needs: int [N], from 1.

    `logits` [N, L, C] are those of all layers.
    """
    stopping = Stopping(rule, problem)
    stops = [stopping.after(logits[:, i]) for i in range(logits.shape[1])]
    stops[-1][:] = True
    return np.argmax(stops, axis=0) + 1


def check_exits(rule: EarlyExit, model: AlbertModel) -> None:
    """Raises AlbertError unless the rule fits the model, in float weights."""
    if not isinstance(rule, EarlyExit):
        raise AlbertError(
            "`early_exit` must be a rule such as keras_albert.EarlyExit("
            f"patience=2), or None. Received: {rule!r:.60}."
        )
    check_no_ensemble(model)
    count = model.config.num_hidden_layers
    problem = getattr(model, "problem", None)
    if not hasattr(model, "exits"):
        raise AlbertError(
            "only a classifier of whole texts, or a regression, stops "
            f"early. Received: {type(model).__name__}. Leave --patience, "
            "--confidence and --layers out."
        )
    if model.exits is None:
        given = ", ".join(
            f"{name}={value}"
            for name, value in dataclasses.asdict(rule).items()
            if value is not None
        )
        raise AlbertError(
            "only a model with exits stops early, and this one was trained "
            f"without. Received: {given}. Train it with `finetune --exits "
            "own`, or give no rule: leave --patience, --confidence and "
            "--layers out."
        )
    for name in ("layers", "patience"):
        value = getattr(rule, name)
        if value is not None and value > count:
            raise AlbertError(
                f"the model has {count} layers. Received: {name}={value}. "
                f"Give at most {count}."
            )
    if problem != "regression":
        if rule.tolerance is not None:
            raise AlbertError(
                "`tolerance` is for a model that predicts a number. "
                f"Received: tolerance={rule.tolerance} for a model with "
                f"problem={problem!r}. Leave it out."
            )
    elif rule.confidence is not None:
        raise AlbertError(
            "a number has no probability. Received: "
            f"confidence={rule.confidence} for a regression. Give "
            "--patience and --tolerance."
        )
    elif rule.patience is not None and rule.tolerance is None:
        raise AlbertError(
            "numbers of two layers are hardly ever equal: `patience` needs "
            "`tolerance`, the difference that counts as none. Give "
            "--tolerance, such as a tenth of the range of the labels."
        )
    if quantized_paths(model):
        raise AlbertError(
            "early exit needs float weights. Received: a model in int8. "
            "Take the model from before `quantize`."
        )


def check_no_ensemble(model: AlbertModel) -> None:
    """Raises AlbertError for several models that are averaged."""
    if isinstance(model, AlbertEnsemble):
        raise AlbertError(
            "several models whose predictions are averaged do not stop early, "
            "as each would stop after another layer. Received: "
            f"{len(model.members)} models. Give one of them, or average their "
            "weights (--average weights)."
        )


def check_can_export(model: AlbertForSequenceClassification) -> None:
    """Raises AlbertError unless all layers have the same weights.

    An exported graph repeats one layer in a loop.
    """
    encoder = model.backbone.encoder
    if any(encoder.own) or model.config.num_hidden_groups > 1:
        raise AlbertError(
            "an exported model stops early only if its layers share all "
            f"weights. Received: sharing={model.config.sharing!r}, "
            f"num_hidden_groups={model.config.num_hidden_groups}. Leave "
            "--patience, --confidence and --layers out."
        )


def _answers(logits: np.ndarray, problem: str) -> np.ndarray:
    """The answers that follow from logits [N, C], as [N, 1] or [N, C]."""
    if problem == "single_label":
        return logits.argmax(-1)[:, None]
    return logits > 0 if problem == "multi_label" else logits


def _confidence(logits: np.ndarray, problem: str) -> np.ndarray:
    """The probability of the answer [N]; with several labels, the lowest."""
    if problem == "single_label":
        return special.softmax(logits, axis=-1).max(-1)
    return special.expit(abs(logits)).min(-1)
