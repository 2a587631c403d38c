"""The progress bar of a training run."""

import contextlib
import sys
import time
from typing import TextIO

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from keras_albert.training.run_log import HELD_OUT, LogRow

SECONDS_BETWEEN_LINES = 60  # if the output is not a terminal


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a terminal shows the stream; a daemon may have no stream."""
    return stream is not None and stream.isatty()


def progress_verbosity() -> int:
    """`verbose` for Keras: 1 (a bar) on a terminal, else 2 (lines)."""
    return 1 if is_terminal(sys.stdout) else 2


class ProgressBar:
    """Shows step, losses, tokens per second and the time left on a terminal.

    If stdout is not a terminal, it prints a line per minute instead.
    """

    def __init__(self, steps: int):
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            transient=True,
            disable=not is_terminal(sys.stdout),
        )
        self._steps = steps
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._task = self._progress.add_task("", total=steps, shown="")

    def __enter__(self):
        self._progress.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._progress.stop()

    def begin_at(self, step: int) -> None:
        """Starts at a step of a resumed run; the time left counts from it."""
        self._progress.reset(self._task, completed=step)

    def update(self, step: int, values: LogRow) -> None:
        """Shows the current step and the losses and speed in `values`."""
        brief = {n: v for n, v in values.items() if n.endswith(_BRIEF)}
        if not self._progress.disable:
            self._progress.update(
                self._task, completed=step, shown=shown_values(brief)
            )
        # Before the second step, no loss has been read.
        elif brief and time.monotonic() > self._next_line:
            self.line(f"step {step:,}/{self._steps:,}: {shown_values(brief)}")

    def line(self, text: str) -> None:
        """Prints a line, on a terminal above the bar."""
        console = self._progress.console
        on_terminal = not self._progress.disable
        # The terminal or the reader of a pipe may be gone: no reason to stop.
        with contextlib.suppress(OSError):
            if on_terminal:
                console.print(text, highlight=False, markup=False)
            else:
                print(text, flush=True)
        if not on_terminal:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES


def shown_values(values: LogRow) -> str:
    """Formats a row of the log as text.

    Example: {"loss": 2.5, "val_loss": 2.75, "tokens_per_second": 1234.5} gives
    "loss 2.5 (held-out 2.75), 1,234 tokens/s".
    """
    parts = []
    for name, value in values.items():
        plain = name.removeprefix(HELD_OUT)
        if name in _WORDS and value is not None:
            parts.append(_WORDS[name].format(value))
        elif plain != name and plain not in values:
            parts.append(f"held-out {plain.replace('_', ' ')} {value:.4g}")
        elif not name.startswith(HELD_OUT) and not name.endswith(_UNSHOWN):
            held_out = values.get(HELD_OUT + name)
            beside = "" if held_out is None else f" (held-out {held_out:.4g})"
            parts.append(f"{name.replace('_', ' ')} {value:.4g}{beside}")
    return ", ".join(parts)


_WORDS = {
    "learning_rate": "learning rate {:.3g}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "model_flops_utilization": "{:.1%} of the device's peak",
}
_BRIEF = ("loss", "tokens_per_second")
# Columns that are omitted, since the others say the same.
_UNSHOWN = (*_WORDS, "step", "cross_entropy")
