"""Metrics by hand and by their formulas, and where none is defined."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from keras_albert.errors import AlbertError
from keras_albert.tasks.metrics import (
    class_report,
    draw_confusion,
    measure,
    multilabel_scores,
    report_text,
)

pytestmark = pytest.mark.any_backend


def test_matthews_of_three_classes_by_hand():
    """R_3 of [[2, 1, 0], [0, 2, 0], [1, 0, 3]]: (7 * 9 - 3 * 3 - 3 * 2 -
    3 * 4) / sqrt((81 - 27) * (81 - 29))."""
    expected = [0, 0, 0, 1, 1, 2, 2, 2, 2]
    predicted = [0, 0, 1, 1, 1, 0, 2, 2, 2]
    scores = measure(["matthews"], expected, predicted)
    assert scores.values["matthews"] == pytest.approx(36 / math.sqrt(54 * 52))


bits = st.booleans()


@settings(max_examples=30)
@given(st.lists(st.tuples(bits, bits), min_size=1, max_size=40))
@pytest.mark.filterwarnings("ignore:A single label")
def test_classes_by_their_formulas(pairs):
    expected, predicted = np.array(pairs, int).T
    scores = measure(["accuracy", "f1", "matthews"], expected, predicted)
    right, found, there = (
        each.sum() for each in (expected & predicted, predicted, expected)
    )
    count = len(pairs)
    spread = found * (count - found) * there * (count - there)
    assert scores.values == {
        "accuracy": pytest.approx((expected == predicted).mean()),
        "f1": pytest.approx(2 * right / max(found + there, 1)),
        "matthews": pytest.approx(
            (count * right - found * there) / math.sqrt(max(spread, 1))
            if spread
            else 0
        ),
    }
    constant = len(set(expected)) == 1 or len(set(predicted)) == 1
    assert any("matthews" in each for each in scores.remarks) == constant


numbers = st.integers(0, 20).map(lambda n: n / 4)


@settings(max_examples=30)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_correlations_by_their_formulas(pairs):
    def cosine_of_deviations(a, b):
        a, b = a - a.mean(), b - b.mean()
        return a @ b / np.sqrt((a @ a) * (b @ b))

    doubles = np.array(pairs).T
    expected, predicted = doubles.astype("float32")
    scores = measure(["pearson", "spearman"], expected, predicted)
    if np.ptp(expected) and np.ptp(predicted):
        assert scores.remarks == ()
        assert scores.values == {
            "pearson": pytest.approx(cosine_of_deviations(*doubles), abs=1e-9),
            # Of equal numbers each has the mean of their ranks.
            "spearman": pytest.approx(
                cosine_of_deviations(*map(stats.rankdata, doubles)), abs=1e-9
            ),
        }
    else:
        assert scores.values == {"pearson": 0, "spearman": 0}
        assert len(scores.remarks) == 2


NEXT = np.nextafter(np.float32(2.5), np.float32(9))


@pytest.mark.parametrize(
    ("metric", "expected", "predicted", "reason"),
    [
        ("matthews", [0, 1, 1], [1, 1, 1], "all predictions are 1"),
        ("matthews", [0, 0, 0], [0, 1, 0], "all labels are 0"),
        ("f1", [0, 0], [0, 0], "class 1 neither occurs nor is predicted"),
        ("f1", [0, 1], [0, 0], None),  # 0, and defined
        ("pearson", [1.0, 2.0], [2.5, 2.5], "all predictions are 2.5"),
        ("pearson", [3.0, 3.0], [1.0, 2.5], "all labels are 3"),
        ("pearson", [3.0], [1.0], "all predictions are 1"),
        ("pearson", [1.0, 2.0], [-2.5, -2.5], "all predictions are -2.5"),
        # A regression that collapsed: float32 neighbours of one number.
        ("pearson", [1.0, 2.0], [2.5, NEXT], "all predictions are 2.5"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_0_and_said(metric, expected, predicted, reason):
    """With the names of the labels, if they are given."""
    scores = measure(["accuracy", metric], expected, predicted)
    assert scores.values[metric] == 0
    if metric == "matthews":
        named = measure([metric], expected, predicted, ("no", "yes")).remarks
        assert reason.replace("1", "'yes'").replace("0", "'no'") in named[0]
    said = f"{metric} is not defined ({reason}) and set to 0"
    assert scores.remarks == ((said,) if reason else ())


@pytest.mark.parametrize(
    ("names", "expected", "predicted", "message"),
    [
        (["recall"], [0], [0], "`metrics` must be one of 'accuracy', 'f1'"),
        (["f1"], [0, 1], [0], r"equally many.*\(2,\) and \(1,\)"),
        (["f1"], [], [], "one or more"),
        (["f1"], [[0]], [[0]], "with 1 axis"),
        (["pearson"], [0.0, 1.0], [0.5, np.nan], "finite.*learning rate"),
    ],
)
def test_what_cannot_be_measured(names, expected, predicted, message):
    with pytest.raises(AlbertError, match=message):
        measure(names, expected, predicted)


@pytest.mark.filterwarnings("error")
def test_several_labels_by_hand():
    """Labels with (found, too many, missed) (1, 1, 0), (0, 0, 2), none."""
    expected = [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    predicted = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0]], "float32")
    scores = multilabel_scores(expected, predicted)
    assert scores.values == {
        "micro_f1": pytest.approx(2 / (2 + 1 + 2)),
        "macro_f1": pytest.approx((2 / 3 + 0 + 0) / 3),
    }
    assert scores.remarks[0].startswith("1 labels neither occur")
    # A single label: of three decisions the only 1 is found.
    found = multilabel_scores([[1], [0], [0]], [[1], [1], [0]])
    assert found.values == {"micro_f1": 2 / 3, "macro_f1": 2 / 3}
    nothing = multilabel_scores([[0, 0]], [[0, 0]])
    assert nothing.values == {"micro_f1": 0, "macro_f1": 0}
    with pytest.raises(AlbertError, match=r"0 or 1\. Received: 0\.25"):
        multilabel_scores([[0, 1]], [[0.25, 0.7]])
    with pytest.raises(AlbertError, match="with 2 axes"):
        multilabel_scores([0, 1], [0, 1])


LABELS = ("cat", "dog", "ox")
TRUE = [0] * 5 + [1] * 3
FOUND = [0, 0, 0, 1, 1, 1, 1, 0]


@pytest.mark.filterwarnings("error")
def test_each_class_by_hand():
    """No ox: nothing is divided by nothing."""
    report = class_report(TRUE, FOUND, LABELS)
    assert report.confusion.tolist() == [[3, 2, 0], [1, 2, 0], [0, 0, 0]]
    assert report.precision.tolist() == [3 / 4, 2 / 4, 0]
    assert report.recall.tolist() == [3 / 5, pytest.approx(2 / 3), 0]
    assert report.f1.tolist() == pytest.approx([6 / 9, 4 / 7, 0])
    assert report.counts.tolist() == [5, 3, 0]
    as_dict = report.as_dict()
    assert as_dict["confusion"] == report.confusion.tolist()
    dog = {"precision": 0.5, "recall": 2 / 3, "f1": 4 / 7, "count": 3}
    assert as_dict["classes"][1].pop("label") == "dog"
    assert as_dict["classes"][1] == pytest.approx(dog)
    with pytest.raises(AlbertError, match=r"`predicted` .*to 2.*0 to 3"):
        class_report([0, 0], [0, 3], LABELS)


def test_report_for_a_reader():
    assert report_text(class_report(TRUE, FOUND, LABELS)).split("\n") == [
        "label  precision  recall     F1  examples",
        "cat        0.750   0.600  0.667         5",
        "dog        0.500   0.667  0.571         3",
        "ox         0.000   0.000  0.000         0",
        "",
        "expected in rows, predicted in columns",
        "           1  2  3",
        " 1  cat    3  2  0",
        " 2  dog    1  2  0",
        " 3  ox     0  0  0",
    ]


def test_many_classes_show_what_is_confused():
    labels = [f"class{i}" for i in range(13)]
    expected = [*range(13), 4, 4, 4, 7]
    predicted = [*range(13), 5, 5, 2, 8]
    lines = report_text(class_report(expected, predicted, labels)).split("\n")
    assert lines[15:] == [
        "most often confused (expected -> predicted)",
        "class4 -> class5: 2",
        "class4 -> class2: 1",
        "class7 -> class8: 1",
    ]


def test_picture_shows_the_shares(tmp_path, monkeypatch):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "confusion.png"

    def darkest(predicted):
        """Where most of the darkest blue is: (row, column) of four."""
        draw_confusion(class_report([0, 1], predicted, ["$a", "b$"]), path)
        picture = image.imread(path)[..., :3]
        dark = (picture.max(-1) < 0.45) & (picture[..., 2] > 0.3)
        rows, columns = np.nonzero(dark[:, : int(0.8 * dark.shape[1])])
        return rows.mean(), columns.mean(), len(rows)

    right_row, right_column, right = darkest([0, 0])
    row, column, count = darkest([1, 1])
    assert min(right, count) > 1000
    assert column > right_column + 50, "the second column is the predicted one"
    assert row == pytest.approx(right_row, abs=20)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(AlbertError, match=r"keras-albert\[plots\]"):
        draw_confusion(class_report(TRUE, FOUND, LABELS), tmp_path / "a.png")
    assert [file.name for file in tmp_path.iterdir()] == ["confusion.png"]
