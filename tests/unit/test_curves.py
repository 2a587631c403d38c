"""The log of a run, its picture, its numbers of speed."""

import dataclasses
import importlib.util
import os
import pickle
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from commands import log_of
from small import CONFIG

import keras_albert as ka
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.training import plots, progress, speed
from keras_albert.training.plots import draw_curves
from keras_albert.training.progress import shown_values
from keras_albert.training.run_log import RunLog, TensorBoard, check_tensorboard
from keras_albert.training.speed import SpeedMeter, Work

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


def test_a_line_a_minute_without_a_terminal(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.ProgressBar(9)
    for seconds in (59, 61, 62, 122):
        now[0] = seconds
        bar.update(seconds, {"loss": 1.0})
    said = capsys.readouterr().out.splitlines()
    assert said == ["step 61/9: loss 1", "step 122/9: loss 1"]
    with open(os.devnull, "w") as closed, monkeypatch.context() as patch:
        # The reader of the output has ended, as `head` does.
        patch.setattr(closed, "flush", Mock(side_effect=BrokenPipeError))
        patch.setattr(sys, "stdout", closed)
        bar.line("training goes on")


def test_the_peak_is_that_of_the_fastest_product(monkeypatch):
    seconds = iter([9.0, 1.0, 0.5, 0.8, 0.7, 0.9, 0.6])  # the first compiles
    monkeypatch.setattr(speed, "_seconds", lambda matrix: next(seconds))
    size = speed.FIRST_SIZE
    assert speed.matrix_product_peak("float32") == 2 * size**3 / 0.5


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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not plots.can_draw()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ka.AlbertError, match=r"keras-albert\[tensorboard\]"):
        check_tensorboard()


EXAMPLES = ka.ExampleConfig(sequence_length=11, masked_lm_prob=0.45)


def test_operations_by_hand():
    """Multiply-adds of one example, forward; times 2, times 3 with backward.

    Projection 11 x 11 x 26 = 3146. A layer: query, key, value and output
    11 x 4 x 26 x 26 = 29,744; scores and weighted sum 2 x 11 x 11 x 26 = 6292;
    feed-forward 11 x 2 x 26 x 37 = 21,164. Masked LM, 5 of 11 tokens: 5 x 11 x
    26 = 1430 and 5 x 11 x 97 = 5335. Pooler and order: 676 + 52.
    """
    layers = 5 * (29_744 + 6292 + 21_164)
    expected = 6 * (3146 + layers + 1430 + 5335 + 728)
    assert flops_per_example(CONFIG, EXAMPLES) == expected
    shared = CONFIG.replace(sharing="none", num_hidden_groups=2)
    assert flops_per_example(shared, EXAMPLES) == expected
    # Rank 2: four of 2 x (26 + 26), two of 2 x (26 + 37), a token.
    relaxed = CONFIG.replace(relaxed_rank=2)
    more = 6 * 5 * 11 * (4 * 104 + 2 * 126)
    assert flops_per_example(relaxed, EXAMPLES) == expected + more
    equal = CONFIG.replace(embedding_size=26)
    assert flops_per_example(equal, EXAMPLES) == 6 * (
        layers + 5 * 26 * (26 + 97) + 728
    )


def test_operations_of_a_packed_row_by_hand():
    """Up to 4 examples: 6 predictions, 11 x 0.45 + 4 x 0.5, and 4 orders."""
    packed = dataclasses.replace(EXAMPLES, pack=True, max_examples=4)
    layers = 5 * (29_744 + 6292 + 21_164)
    masked_lm = 6 * 11 * (26 + 97)
    expected = 6 * (3146 + layers + masked_lm + 4 * (676 + 52))
    assert flops_per_example(CONFIG, packed) == expected


def test_speed_is_of_training_alone():
    """Steps 5 and 6 have 300 tokens, all others 100."""
    now = [0.0]
    short, long = Work(100, 4e3, 1e4), Work(300, 2e4, 1e4)
    meter = SpeedMeter(
        lambda step: long if step in (5, 6) else short, clock=lambda: now[0]
    )
    meter.start()
    for step, seconds in enumerate((50.0, 2.0, 2.0), 1):  # the first compiles
        assert meter.reading()["tokens_per_second"] is None or step == 3
        now[0] += seconds
        meter.step(step)
    now[0] += 1000.0  # validation
    meter.start()
    now[0] += 5.0
    meter.step(4)
    # Three steps in nine seconds.
    reading = meter.reading()
    assert reading["tokens_per_second"] == pytest.approx(100 / 3)
    assert reading["model_flops_utilization"] == pytest.approx(4e3 / 3 / 1e4)
    for step, seconds in enumerate((70.0, 11.0), 5):  # 5 compiles again
        now[0] += seconds
        meter.step(step)
    reading = meter.reading()
    assert reading["tokens_per_second"] == pytest.approx(600 / 20)
    assert reading["model_flops_utilization"] == pytest.approx(3.2e4 / 20 / 1e4)
    now[0] += 5.0
    meter.step(7)  # was compiled before
    assert meter.reading()["tokens_per_second"] == pytest.approx(700 / 25)
    meter.reset()
    assert meter.reading()["tokens_per_second"] is None
    assert SpeedMeter(None).reading() == {}


def test_a_row_for_a_reader():
    row = {
        "step": 5,
        "learning_rate": 0.00125,
        "loss": 2.5,
        "mlm_accuracy": 0.123456,
        "mlm_cross_entropy": 2.25,
        "val_loss": 2.75,
        "tokens_per_second": 1234.5,
        "model_flops_utilization": 0.314,
    }
    assert shown_values(row) == (
        "learning rate 0.00125, loss 2.5 (held-out 2.75), mlm accuracy 0.1235, "
        "1,234 tokens/s, 31.4% of the device's peak"
    )
    assert shown_values({"tokens_per_second": None, "loss": 1.0}) == "loss 1"
