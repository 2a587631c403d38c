"""The score of a model with exits against its layers and its time.

A curve shows which rule of early exit costs little and saves much.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from keras import ops

from keras_albert.data.batches import Features
from keras_albert.data.tables import evenly_spaced
from keras_albert.distribution.backend import compiled
from keras_albert.errors import AlbertError, optional_import
from keras_albert.finetuning.layer_by_layer import LayerByLayer
from keras_albert.finetuning.predictor import Predictor
from keras_albert.tasks.config import CUT, EarlyExit
from keras_albert.tasks.early_exit import (
    check_exits,
    check_no_ensemble,
    layers_used,
)
from keras_albert.training.plots import new_figure, save_figure

CONFIDENCES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# A rule is timed on so many examples, so often in turn with the whole model.
TIMED_EXAMPLES, TIMES = 200, 3
# Two numbers count as the same if they differ by less than this share of the
# range of the labels, unless the user gives a tolerance.
TOLERATED = 0.1


@dataclasses.dataclass(frozen=True)
class ExitPoint:
    """The score, layers and time of one rule of early exit on a table."""

    rule: EarlyExit
    score: float
    """the score of the task, such as accuracy"""
    layers: float
    """mean number of layers of an example"""
    time: float
    """time as a share of that of the model without early exit"""

    @property
    def name(self) -> str:
        """The option of the rule: patience, confidence or layers."""
        names = ("patience", "confidence", "layers")
        return next(n for n in names if getattr(self.rule, n) is not None)

    @property
    def value(self) -> float:
        """The value of that option."""
        return getattr(self.rule, self.name)


def check_can_measure(predictor: Predictor) -> None:
    """Raises AlbertError unless the curve can be measured and drawn."""
    model = predictor.model
    check_no_ensemble(model)
    if getattr(model, "exits", None) is None:
        raise AlbertError(
            "`exit_curve` measures a model with exits. Received: a model "
            "without. Train it with `finetune --exits own`, or leave "
            "--exit-curve out."
        )
    if predictor.long_texts != CUT:
        raise AlbertError(
            "`exit_curve` measures texts of one row each. Received: "
            f"long_texts={predictor.long_texts!r}. Leave --exit-curve out, or "
            f"load the model with long_texts={CUT!r}."
        )
    check_exits(EarlyExit(layers=1), model)
    optional_import("matplotlib", "plots", "drawing the curve")


def exit_curve(
    predictor: Predictor, features: Features, batch_size: int
) -> list[ExitPoint]:
    """Measures many rules of early exit on labelled examples.

    There is a point for each rule. The score and the layers are those of all
    examples, whose outputs are computed once for all layers; the time is the
    median of TIMES measurements on TIMED_EXAMPLES examples.
    """
    model, task = predictor.model, predictor.definition
    whole = dataclasses.replace(predictor, early_exit=None)
    every_layer = compiled(model, lambda x: model(x, return_exits=True))
    outputs = whole.outputs(
        features,
        batch_size,
        compute=lambda _, x: ops.convert_to_numpy(every_layer(x)),
    )
    logits = np.stack(outputs)  # [N, L, C]
    timed = features.take(evenly_spaced(len(features), TIMED_EXAMPLES))

    def seconds(compute: Callable | None) -> float:
        started = time.perf_counter()
        whole.outputs(timed, batch_size, compute=compute)
        return time.perf_counter() - started

    points = []
    by_layer = LayerByLayer(model, EarlyExit(layers=1))
    for rule in _rules(predictor, features):
        layers = layers_used(rule, model.problem, logits)
        found = list(logits[np.arange(len(logits)), layers - 1])
        scores = task.measure(found, features, predictor.labels)
        compute, times = by_layer.with_rule(rule), [1.0]
        if not compute.needs_all_layers:
            for each in (None, compute):
                seconds(each)  # compiles
            # One directly after the other, since machines are not steady.
            times = [seconds(compute) / seconds(None) for _ in range(TIMES)]
        score, used = scores.values[task.best], float(layers.mean())
        points.append(ExitPoint(rule, score, used, statistics.median(times)))
    return points


def _rules(predictor: Predictor, features: Features) -> list[EarlyExit]:
    """The rules that are measured; a number has no probability."""
    count = predictor.model.config.num_hidden_layers
    confidences, tolerance = CONFIDENCES, None
    if predictor.model.problem == "regression":
        confidences = ()
        if predictor.early_exit is not None:
            tolerance = predictor.early_exit.tolerance
        if tolerance is None:
            tolerance = float(TOLERATED * np.ptp(features.target)) or TOLERATED
    return [
        *(EarlyExit(patience=n, tolerance=tolerance) for n in range(1, count)),
        *(EarlyExit(confidence=p) for p in confidences),
        *(EarlyExit(layers=n) for n in range(1, count + 1)),
    ]


def curve_lines(points: list[ExitPoint], best: str) -> list[str]:
    """The points as a table; `best` is the name of their score."""
    head = f"{'rule':17} {best.replace('_', ' '):>10}  layers  time"
    rows = [
        f"{point.name:12} {point.value:4g} {point.score:10.3f}  "
        f"{point.layers:6.2f}  {point.time:4.2f}"
        for point in points
    ]
    return [head, *rows]


def draw_curve(points: list[ExitPoint], best: str, path: Path) -> None:
    """Draws the score against the layers, and against the time."""
    figure = new_figure(10, 4)
    titles = {"layers": "mean number of layers", "time": "time (all layers: 1)"}
    for axes, (name, title) in zip(
        figure.subplots(1, len(titles)), titles.items(), strict=True
    ):
        for rule in dict.fromkeys(point.name for point in points):
            chosen = [point for point in points if point.name == rule]
            x = [getattr(point, name) for point in chosen]
            axes.plot(x, [point.score for point in chosen], "o-", label=rule)
        axes.set(xlabel=title, ylabel=best.replace("_", " "))
        axes.legend()
    save_figure(figure, path, dpi=100)
