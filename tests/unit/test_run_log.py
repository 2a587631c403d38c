"""The log of a run, and its picture."""

import importlib
import pickle
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from commands import log_of

import keras_albert as ka
from keras_albert.training import plots
from keras_albert.training.plots import draw_curves
from keras_albert.training.run_log import RunLog, TensorBoard, check_tensorboard

pytestmark = pytest.mark.any_backend


def rows(*steps):
    return [
        {
            "step": step,
            "learning_rate": 0.001,
            "loss": 7.0 - step / 10,
            "mlm_accuracy": step / 50,
            "val_loss": abs(step - 20) + 0.1,
            "val_mlm_accuracy": step / 60,
            "tokens_per_second": None if step == 10 else 1e4 / 3,
        }
        for step in steps
    ]


def test_log_goes_on_without_doubles(tmp_path):
    log = RunLog(tmp_path)
    for row in rows(10, 20, 30):
        log.append(row)
    again = RunLog(tmp_path)
    assert again.rows == rows(10, 20, 30), "every digit, and what is missing"
    again.keep_until(25)
    again.append(rows(30)[0])
    assert [row["step"] for row in log_of(tmp_path)] == ["10", "20", "30"]
    assert again.has(20) and not again.has(25)
    again.keep_until(0)
    assert RunLog(tmp_path).rows == []
    with open(tmp_path / "log.csv", "a") as file:
        file.write("see the notes\n")
    with pytest.raises(ka.AlbertError, match=r"log\.csv:2: not a row"):
        RunLog(tmp_path)


@pytest.mark.proof
def test_a_notebook_shows_a_figure():
    """Without `%matplotlib inline`, which makes IPython know figures."""
    pytest.importorskip("matplotlib")
    formatters = pytest.importorskip("IPython.core.formatters")
    figure = plots.curves_figure(rows(10, 20))
    shown, _ = formatters.DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    again = pickle.loads(pickle.dumps(figure))
    assert len(again.axes) == len(figure.axes)


def test_picture_has_the_curves(tmp_path):
    image = pytest.importorskip("matplotlib.image")

    def drawn(*steps):
        draw_curves(rows(*steps), tmp_path)
        return image.imread(tmp_path / "curves.png")

    one, three = drawn(10), drawn(10, 20, 30)
    assert three.shape == one.shape
    assert three.shape[1] == 3 * 500, "loss, accuracy and speed"
    # matplotlib's first colour: a curve is more than its sample in the legend.
    blue = np.array([0x1F, 0x77, 0xB4]) / 255
    curve, dot = (
        (np.abs(picture[..., :3] - blue).max(-1) < 0.02).sum()
        for picture in (three, one)
    )
    assert curve > dot + 200
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_a_curve_has_all_values():
    figure = plots.curves_figure(rows(10, 20, 30))
    assert figure.axes[0].lines[0].get_ydata().tolist() == [6, 5, 4]


def test_tensorboard_has_the_rows_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    TensorBoard(tmp_path, rows(10, 20)).write(rows(30)[0])
    TensorBoard(tmp_path, rows(10, 20)).write(rows(30)[0])  # goes on from 20
    for part in ("train", "validation"):
        folder = str(tmp_path / "tensorboard" / part)
        events = event_accumulator.EventAccumulator(folder).Reload()
        found = [
            (event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
            for event in events.Tensors("loss")
        ]
        name = "loss" if part == "train" else "val_loss"
        expected = [(row["step"], row[name]) for row in rows(10, 20, 30)]
        assert np.allclose(found, expected)


def test_missing_packages(monkeypatch):
    for error in (ImportError, AttributeError):  # missing, or broken
        plots.can_draw.cache_clear()
        with monkeypatch.context() as patch:
            failing = Mock(side_effect=error)
            patch.setattr(importlib, "import_module", failing)
            assert not plots.can_draw()
    plots.can_draw.cache_clear()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ka.AlbertError, match=r"keras-albert\[tensorboard\]"):
        check_tensorboard()
