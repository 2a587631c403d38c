"""The score of a model with exits against its layers and its time.

A curve shows which rule of early exit costs little and saves much.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.errors import optional_import
from keras_albert.finetuning.layer_by_layer import LayerByLayer
from keras_albert.finetuning.predictor import Predictor
from keras_albert.storage import replacing
from keras_albert.tasks.config import EarlyExit

CONFIDENCES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# Two numbers count as the same if they differ by less than this share of the
# range of the labels, unless the user gives a tolerance.
TOLERATED = 0.1


@dataclasses.dataclass(frozen=True)
class ExitPoint:
    """What one rule gives on a table."""

    rule: EarlyExit
    score: float
    """the score of the task, such as accuracy"""
    layers: float
    """mean number of layers of an example"""
    time: float
    """time, in which the model without early exit has 1"""

    @property
    def name(self) -> str:
        """The option of the rule: patience, confidence or layers."""
        names = ("patience", "confidence", "layers")
        return next(n for n in names if getattr(self.rule, n) is not None)

    @property
    def value(self) -> float:
        """The value of that option."""
        return getattr(self.rule, self.name)


def exit_curve(
    predictor: Predictor, features: Features, batch_size: int
) -> list[ExitPoint]:
    """Measures many rules of early exit on labelled examples.

    Args:
        predictor: a model with exits.
        features: the examples.
        batch_size: examples at a time.

    Returns:
        one point for each rule. The predictions that are scored are those whose
        computation was timed.

    Raises:
        AlbertError: the model has no exits.
    """
    model, task = predictor.model, predictor.definition
    count = model.config.num_hidden_layers
    by_layer = LayerByLayer(model, EarlyExit(layers=count))

    def of(compute: Callable | None) -> tuple[float, float]:
        """The score, and the seconds."""
        started = time.perf_counter()
        outputs = plain.outputs(features, batch_size, compute=compute)
        seconds = time.perf_counter() - started
        scores = task.measure(outputs, features, predictor.labels)
        return scores.values[task.best], seconds

    plain = dataclasses.replace(predictor, early_exit=None)
    for compute in (None, by_layer):
        of(compute)  # compiles
    points = []
    for rule in _rules(predictor, features):
        _, whole = of(None)  # just before, since machines are not steady
        compute = by_layer.with_rule(rule)
        score, seconds = of(compute)
        layers = float(np.concatenate(compute.used).mean())
        points.append(ExitPoint(rule, score, layers, seconds / whole))
    return points


def _rules(predictor: Predictor, features: Features) -> list[EarlyExit]:
    """The rules that are measured; a number has no probability."""
    count = predictor.model.config.num_hidden_layers
    confidences, tolerance = CONFIDENCES, None
    if predictor.model.problem == "regression":
        confidences, tolerance = (), TOLERATED * np.ptp(features.target)
    if predictor.early_exit is not None:
        tolerance = predictor.early_exit.tolerance
    return [
        *(EarlyExit(patience=n, tolerance=tolerance) for n in range(1, count)),
        *(EarlyExit(confidence=p) for p in confidences),
        *(EarlyExit(layers=n) for n in range(1, count + 1)),
    ]


def curve_lines(points: list[ExitPoint], best: str) -> list[str]:
    """The points as a table; `best` is the name of their score."""
    head = f"{'rule':17} {best.replace('_', ' '):>10}  layers  time"
    return [
        head,
        *(
            f"{point.name:12} {point.value:4g} {point.score:10.3f}  "
            f"{point.layers:6.2f}  {point.time:4.2f}"
            for point in points
        ),
    ]


def draw_curve(points: list[ExitPoint], best: str, path: Path) -> None:
    """Draws the score against the layers, and against the time."""
    optional_import("matplotlib", "plots", "drawing the curve")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    titles = {
        "layers": "mean number of layers",
        "time": "time (all layers: 1)",
    }
    for axes, (name, title) in zip(
        figure.subplots(1, len(titles)), titles.items(), strict=True
    ):
        for rule in dict.fromkeys(point.name for point in points):
            chosen = [point for point in points if point.name == rule]
            axes.plot(
                [getattr(point, name) for point in chosen],
                [point.score for point in chosen],
                "o-",
                label=rule,
            )
        axes.set(xlabel=title, ylabel=best.replace("_", " "))
        axes.legend()
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=100)
