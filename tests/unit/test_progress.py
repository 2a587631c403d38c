"""What a run prints while it trains."""

import os
import sys
from unittest.mock import Mock

import pytest

from keras_albert.training import progress
from keras_albert.training.progress import shown_values

pytestmark = pytest.mark.any_backend


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


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_terminal_that_was_closed(monkeypatch):
    """Without the signal that its processes usually get."""
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with progress.ProgressBar(9) as bar:
            bar.line("before")
            os.close(ours)
            bar.line("training goes on")
            with pytest.raises(OSError, match="error"):
                print("a check that the terminal is gone", flush=True)
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)


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


def test_no_line_before_the_first_loss(monkeypatch, capsys):
    """To compile the first step may take longer than a line a minute."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1)
    with progress.ProgressBar(9) as bar:
        bar.update(1, {})
        bar.update(2, {"loss": 2.5})
    assert capsys.readouterr().out == "step 2/9: loss 2.5\n"
