"""Scores of predictions: the metrics of GLUE, of several labels, and by class.

Letters: N examples, C classes. Everything is computed with NumPy on the host.
scikit-learn and scipy.stats are imported late, as each takes about a second.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.errors import AlbertError, check_choice
from keras_albert.training.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN_COUNTS = 20  # classes whose counts fit into the cells of a picture
MOST_SHOWN_COLUMNS = 12  # classes whose confusion matrix fits into 80 columns
ROUNDING = 1e-6  # relative difference of float32 outputs for the same input
UNDEFINED = 0.0  # replaces a value that is not defined


@dataclasses.dataclass(frozen=True)
class Scores:
    """Values of metrics, and remarks on them."""

    # by name; accuracy and F1 in [0, 1], correlations in [-1, 1]
    values: dict[str, float]
    # for example, which values are not defined and therefore 0
    remarks: tuple[str, ...] = ()


def collapsed(what: str) -> str:
    """The remark on a model that predicts the same for all examples."""
    return (
        f"every {what}: the training has collapsed, or has not begun to "
        "learn. With few examples raise --epochs and --learning-rate; if the "
        "loss had fallen before, lower --learning-rate or raise "
        "--warmup-share; or change --seed."
    )


def measure(
    metrics: Sequence[str],
    expected,
    predicted,
    names: Sequence[str] | None = None,
) -> Scores:
    """Metrics of predictions [N].

    `measure(["accuracy", "f1"], [0, 1, 1], [0, 1, 0])` has the values 2/3 and
    2/3. A metric that is not defined is 0 and has a remark: a correlation with
    a constant, or F1 if there is no 1.

    `metrics` are names: accuracy, f1 (of class 1 against class 0), matthews,
    pearson, spearman. The values are class indices, or numbers for the last
    two; `names` are those of the classes, for the remarks.
    """
    expected, predicted = _pair(expected, predicted)
    values, remarks = {}, []
    for name in metrics:
        check_choice("metrics", name, tuple(_METRICS))
        metric, reason_against = _METRICS[name]
        if reason := reason_against(expected, predicted, names):
            remarks.append(f"{name} is not defined ({reason}) and set to 0")
            values[name] = UNDEFINED
        else:
            values[name] = float(metric(expected, predicted))
    return Scores(values, tuple(remarks))


def multilabel_scores(expected, predicted) -> Scores:
    """F1 of several labels an example: over all decisions, and over labels.

    `expected` and `predicted` say whether each label applies, 0 or 1 [N, C].
    `micro_f1` is that of all N x C decisions together; `macro_f1` the mean of
    the labels' F1, which is 0 for a label that neither occurs nor is predicted.
    """
    expected, predicted = map(_decided, _pair(expected, predicted, axes=2))
    values = {
        "micro_f1": float(_f1(expected.ravel(), predicted.ravel())),
        "macro_f1": float(np.mean([*map(_f1, expected.T, predicted.T)])),
    }
    absent = int((~(expected | predicted).any(axis=0)).sum())
    remarks = ()
    if absent:
        remarks = (
            f"{absent} labels neither occur nor are predicted: their F1 is not "
            "defined and set to 0",
        )
    return Scores(values, remarks)


def entity_f1(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> float:
    """F1 of whole entities, as in CoNLL-2003.

    An entity is right if its type, beginning and end are: in [B-PER, I-PER, O]
    predicted as [B-PER, O, O] there is none. Labels are those of each word of
    each text, such as O, B-PER, I-PER (IOB2). The score is 0 if there are no
    entities.
    """
    found = right = there = 0
    for text in zip(expected, predicted, strict=True):
        truth, guess = map(_entities, text)
        there += len(truth)
        found += len(guess)
        right += len(truth & guess)
    return 2 * right / (there + found) if there + found else UNDEFINED


def _entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities of a text: (type, first word, word after the last one)."""
    entities, begin = set(), None
    for i, tag in enumerate([*tags, "O"]):
        goes_on = begin is not None and tag == f"I-{tags[begin][2:]}"
        if begin is not None and not goes_on:
            entities.add((tags[begin][2:], begin, i))
            begin = None
        if tag != "O" and not goes_on:  # an I- may also begin an entity
            begin = i
    return entities


@dataclasses.dataclass(frozen=True)
class ClassReport:
    """Precision, recall and F1 of each class, and the confusion matrix."""

    labels: tuple[str, ...]  # C names
    # int [C, C]: examples of the class of a row, predicted as the column's
    confusion: np.ndarray
    # [C]: share of the predictions of a class that are right; 0 without any
    precision: np.ndarray
    # [C]: share of the examples of a class that are found; 0 without any
    recall: np.ndarray
    f1: np.ndarray  # [C]: harmonic mean of the two

    @property
    def counts(self) -> np.ndarray:
        """Examples of each class, int [C]."""
        return self.confusion.sum(axis=1)

    def as_dict(self) -> dict:
        """The report as values of JSON."""
        return {
            "classes": [
                {
                    "label": label,
                    "precision": float(self.precision[i]),
                    "recall": float(self.recall[i]),
                    "f1": float(self.f1[i]),
                    "count": int(self.counts[i]),
                }
                for i, label in enumerate(self.labels)
            ],
            "confusion": self.confusion.tolist(),
        }


def class_report(expected, predicted, labels: Sequence[str]) -> ClassReport:
    """Precision, recall and F1 of each class, and the confusion matrix.

    `expected` and `predicted` are class indices, int [N].
    """
    from sklearn import metrics

    expected, predicted = _pair(expected, predicted)
    classes = range(len(labels))
    for name, values in (("expected", expected), ("predicted", predicted)):
        if not np.isin(values, classes).all():
            raise AlbertError(
                f"`{name}` must be class indices from 0 to {len(labels) - 1}. "
                f"Received: {values.min()} to {values.max()}."
            )
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        expected, predicted, labels=classes, zero_division=UNDEFINED
    )
    return ClassReport(
        tuple(map(str, labels)),
        metrics.confusion_matrix(expected, predicted, labels=classes),
        precision,
        recall,
        f1,
    )


def report_text(report: ClassReport) -> str:
    """The report as text: a line for each class, then the confusion matrix.

    If it is too wide, the most frequent confusions are shown instead.
    """
    width = max(len("label"), *map(len, report.labels))
    lines = [f"{'label':{width}}  precision  recall     F1  examples"]
    for each in report.as_dict()["classes"]:
        lines.append(
            f"{each['label']:{width}}  {each['precision']:9.3f}  "
            f"{each['recall']:6.3f}  {each['f1']:5.3f}  {each['count']:8,}"
        )
    is_narrow = len(report.labels) <= MOST_SHOWN_COLUMNS
    shown = _matrix_lines if is_narrow else _confused_lines
    return "\n".join([*lines, "", *shown(report, width)])


def _matrix_lines(report: ClassReport, width: int) -> list[str]:
    numbers = [str(i + 1) for i in range(len(report.labels))]
    cell = max(len(str(report.confusion.max())), len(numbers[-1]))
    head = "  ".join(f"{number:>{cell}}" for number in numbers)
    lines = ["expected in rows, predicted in columns", " " * (width + 6) + head]
    for number, label, row in zip(
        numbers, report.labels, report.confusion, strict=True
    ):
        counts = "  ".join(f"{count:{cell}}" for count in row)
        lines.append(f"{number:>2}  {label:{width}}  {counts}")
    return lines


def _confused_lines(report: ClassReport, width: int) -> list[str]:
    wrong = report.confusion - np.diag(np.diag(report.confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_SHOWN_COLUMNS]
    lines = ["most often confused (expected -> predicted)"]
    for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if wrong[row, column]:
            lines.append(
                f"{report.labels[row]} -> {report.labels[column]}: "
                f"{wrong[row, column]:,}"
            )
    return lines


def draw_confusion(report: ClassReport, path: Path) -> None:
    """Writes the confusion matrix as a PNG, see `confusion_figure`."""
    save_figure(confusion_figure(report.labels, report.confusion), path)


def confusion_figure(labels: Sequence[str], confusion) -> "Figure":
    """The confusion matrix; shades are shares of the expected label's row."""
    confusion, classes = np.asarray(confusion), len(labels)
    side = min(4 + 0.4 * classes, 20)
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1), 1)[:, None]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="share of the expected label")
    axes.set(xlabel="predicted", ylabel="expected")
    axes.set_xticks(range(classes), labels, rotation=90, parse_math=False)
    axes.set_yticks(range(classes), labels, parse_math=False)
    if classes <= MOST_DRAWN_COUNTS:
        for (row, column), count in np.ndenumerate(confusion):
            axes.text(
                column,
                row,
                f"{count:,}",
                ha="center",
                va="center",
                color="white" if shares[row, column] > 0.5 else "black",
            )
    return figure


def _pair(expected, predicted, axes: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Converts both arguments to arrays of equal shapes with finite numbers.

    Raises AlbertError if they are not, or do not have the number of `axes`.
    """
    expected, predicted = np.asarray(expected), np.asarray(predicted)
    fit = expected.shape == predicted.shape and expected.ndim == axes
    if not fit or not expected.size:
        raise AlbertError(
            "`expected` and `predicted` must be equally many, one or more, "
            f"with {axes} {'axes' if axes > 1 else 'axis'}. Received shapes: "
            f"{expected.shape} and {predicted.shape}."
        )
    check_finite(expected)
    check_finite(predicted)
    return expected, predicted


_BROKEN_DOWN = (
    "predictions must be finite numbers: the model has broken down. Train it "
    "again with a lower learning rate or a longer warm-up."
)


def check_finite(predicted: np.ndarray) -> None:
    """Raises AlbertError for predictions that are infinite or not numbers."""
    if not np.isfinite(predicted).all():
        raise AlbertError(_BROKEN_DOWN)


def check_numbers(outputs: Iterable[np.ndarray]) -> None:
    """Raises AlbertError for NaN, which would be taken for the first label."""
    floats = (each for each in outputs if each.dtype.kind == "f")
    if any(np.isnan(values).any() for values in floats):
        raise AlbertError(_BROKEN_DOWN)


def _decided(values: np.ndarray) -> np.ndarray:
    undecided = values[(values != 0) & (values != 1)]
    if undecided.size:
        raise AlbertError(
            "whether a label applies must be 0 or 1. Received: "
            f"{undecided[0]:g}. Compare probabilities with a threshold first."
        )
    return values.astype(bool)


def _f1(expected: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(expected, predicted, zero_division=UNDEFINED)


def _matthews(expected: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(expected, predicted)


def _pearson(expected: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import pearsonr

    # The model may have computed in another precision than float64.
    return pearsonr(expected.astype(float), predicted.astype(float)).statistic


def _spearman(expected: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return spearmanr(expected.astype(float), predicted.astype(float)).statistic


# Functions that say why a metric is not defined, with `names` of classes.
_Names = Sequence[str] | None


def _no_ones(
    expected: np.ndarray, predicted: np.ndarray, names: _Names
) -> str | None:
    if (expected == 1).any() or (predicted == 1).any():
        return None
    what = repr(names[1]) if names else "class 1"
    return f"{what} neither occurs nor is predicted"


def _constant(
    expected: np.ndarray, predicted: np.ndarray, names: _Names
) -> str | None:
    for what, values in (("predictions", predicted), ("labels", expected)):
        if is_constant(values):
            value = repr(names[values[0]]) if names else f"{values[0]:g}"
            return f"all {what} are {value}"
    return None


def is_constant(values: np.ndarray) -> bool:
    """Whether numbers [N] differ by no more than rounding."""
    return bool(np.ptp(values) <= ROUNDING * np.abs(values).max())


# Each metric, and the function that says why it is not defined.
_Metric = Callable[[np.ndarray, np.ndarray], float]
_Reason = Callable[[np.ndarray, np.ndarray, _Names], str | None]
_METRICS: dict[str, tuple[_Metric, _Reason]] = {
    "accuracy": (lambda a, b: (a == b).mean(), lambda *_: None),
    "f1": (_f1, _no_ones),
    "matthews": (_matthews, _constant),
    "pearson": (_pearson, _constant),
    "spearman": (_spearman, _constant),
}
