"""`model.fit` into a folder: what every training run has in common.

A run is steps, in intervals: at the end of each the model is validated and
kept, and log.csv gets a row. A checkpoint is written at each end, and between
them as often as asked, so that an interrupted run goes on as if nothing had
been. At the end of an interval it comes first: a run that is killed while it
validates does that again, and the missing row tells.
"""

import contextlib
import dataclasses
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_albert.distribution.backend import to_numpy
from keras_albert.distribution.devices import Devices, OneDevice
from keras_albert.errors import AlbertError
from keras_albert.storage import locked, remove_folder
from keras_albert.training.checkpointing import (
    Checkpoint,
    Checkpoints,
    restore_metrics,
    restore_model,
    restore_random,
    state_of,
)
from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.model_folder import ModelFolder
from keras_albert.training.optimizer import Lamb
from keras_albert.training.plots import can_draw, draw_curves
from keras_albert.training.progress import ProgressBar, shown_values
from keras_albert.training.run_log import HELD_OUT, Row, RunLog, TensorBoard
from keras_albert.training.speed import SpeedMeter, Work

LOCK_FILE = ".lock"  # of the process that is at work on a run


# What Keras says of a head that does not read the pooler.
_UNUSED_POOLER = (
    r"Gradients do not exist for variables "
    r"\['[^']*/pooler/kernel', '[^']*/pooler/bias'\]"
)


@dataclasses.dataclass(frozen=True)
class Timetable:
    """When a run does what, in steps."""

    steps: int
    """of the optimizer, in all"""
    validate_every: int
    checkpoint_every: int
    keep_checkpoints: int
    accumulate: int = 1
    """batches of the dataset whose gradients are averaged for a step"""

    def ends_interval(self, step: int) -> bool:
        """Whether the model is validated and kept after this step."""
        return step % self.validate_every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is written after this step."""
        return step % self.checkpoint_every == 0 or self.ends_interval(step)


def fit_into_folder(
    content: ModelFolder,
    folder: Path,
    batches_from: Callable,
    timetable: Timetable,
    *,
    origin: dict,
    validate: Callable[[Callable[[], bool]], Row] | None = None,
    best: str = "loss",
    patience: int | None = None,
    work_of: Callable[[int], Work] | None = None,
    tensorboard: bool = False,
    devices: Devices | None = None,
) -> Row:
    """Trains a compiled model, or goes on where the folder's run stopped.

    SIGTERM and SIGINT end it after the step, with a checkpoint. A folder in
    which nothing could be kept is removed, so that the same command can be
    given again.

    Args:
        content: the model, and what is saved with it.
        folder: of the run.
        batches_from: step -> the dataset of batches from there to the end, of
            the rows that this process has of them.
        timetable: when to do what.
        origin: what the run is made from, see `Checkpoint`.
        validate: what held-out examples give, by name: perhaps `loss`. It
            may return early, with anything, when its argument says that the
            run is to stop.
        best: the value of `validate` that tells which model is kept: the one
            of the lowest `loss`, or of the highest of any other (of equals
            that of the lowest `loss`). Without `validate` it is the newest.
        patience: intervals without a better model that end the run.
        work_of: see `SpeedMeter`.
        tensorboard: write that log, too.
        devices: one device when not given. Of several processes the first
            writes, and all must be able to read `folder`.

    Returns:
        The row of the log of the model that is kept.

    Raises:
        AlbertError: the loss is not finite, or what the folder holds cannot
            be used.
        KeyboardInterrupt, SystemExit: after SIGINT, SIGTERM and a message.
    """
    devices = devices or OneDevice()
    with (
        contextlib.ExitStack() as stack,
        ProgressBar(timetable.steps) as progress,
        StopRequest() as stop,
    ):
        log = RunLog(None)

        def begin() -> list[Row]:
            nonlocal log
            stack.enter_context(_lock(folder))
            log = RunLog(folder)
            return log.rows

        log.rows = devices.first(begin)
        checkpoints = Checkpoints(
            folder / CHECKPOINTS_FOLDER, timetable.keep_checkpoints, origin
        )
        keeper = IntervalKeeper(
            content,
            folder,
            timetable,
            checkpoints,
            log,
            progress,
            SpeedMeter(work_of),
            stop,
            validate,
            best,
            patience,
            devices,
        )
        keeper.restore(batches_from)
        if tensorboard and devices.is_first:
            keeper.tensorboard = TensorBoard(folder, log.rows)
        if not can_draw():
            progress.line(
                "no curves are drawn: pip install 'keras-albert[plots]'"
            )
        try:
            keeper.run(batches_from)
        except AlbertError as error:
            if not devices.is_first:
                raise
            rest = _rest(folder, checkpoints, keeper.kept())
            raise type(error)(f"{error} {rest}") from None
        except KeyboardInterrupt:  # the second: it does not wait for the step
            if devices.is_first:
                rest = _rest(folder, checkpoints, keeper.kept())
                print(f"\ninterrupted. {rest}", file=sys.stderr)
            raise
        if stop.signal and not keeper.is_finished():
            print(
                f"\nstopped at step {keeper.step:,} of {timetable.steps:,}; "
                "the same command goes on from there",
                file=sys.stderr,
            )
            if stop.signal == signal.SIGTERM:
                raise SystemExit(0)
            raise KeyboardInterrupt
        return keeper.kept()


class Diverged(AlbertError):
    """The loss or a weight is not finite."""


class IntervalKeeper(keras.callbacks.Callback):
    """Checks each step; keeps checkpoints, the model and the log.

    Args: see `fit_into_folder`.
    """

    def __init__(
        self,
        content: ModelFolder,
        folder: Path,
        timetable: Timetable,
        checkpoints: Checkpoints,
        log: RunLog,
        progress: ProgressBar,
        meter: SpeedMeter,
        stop: "StopRequest",
        validate: Callable[[Callable[[], bool]], Row] | None,
        best: str,
        patience: int | None,
        devices: Devices,
    ):
        super().__init__()
        self.set_model(content.model)
        self.devices = devices
        self.content = content
        self.folder = folder
        self.timetable = timetable
        self.checkpoints = checkpoints
        self.log = log
        self.progress = progress
        self.meter = meter
        self.stop = stop
        self.validate = validate
        self.best = best
        self.patience = patience
        self.tensorboard = None
        self.step = 0
        self._stopping = False  # which all processes know
        self._parts = 0  # batches of the step that is being accumulated
        self._state = None  # of the checkpoint, until the first step
        self._unfinished = None  # training means of an interval without a row

    def restore(self, batches_from: Callable) -> None:
        """Goes back to the newest checkpoint, if there is one."""
        found = self._newest()
        # Now: TensorFlow traces a step twice whose optimizer is made in it.
        with self.devices.scope():
            self.model.optimizer.build(self.model.trainable_variables)
        self.devices.prepare(self.model)
        self.step = found.step if found else 0
        self.log.keep_until(self.step)
        if not found:
            return
        parts = self.step * self.timetable.accumulate
        if parts % self.devices.batches_a_call:
            steps = self.devices.batches_a_call // self.timetable.accumulate
            raise AlbertError(
                f"the run goes on from step {self.step}: "
                "`steps_per_execution` must divide that. Received: "
                f"steps_per_execution={steps}. Take --steps-per-execution "
                f"{math.gcd(self.step, steps)}."
            )
        restore_model(self.model, found.state)
        self._state = found.state
        if not self.timetable.ends_interval(self.step):
            # Makes the metrics, which `fit` would make and clear later.
            self.devices.evaluate(self.model, batches_from(self.step).take(1))
        elif not self.log.has(self.step):
            self._unfinished = found.logs
        self.progress.begin_at(self.step)
        self.progress.line(
            f"going on from step {self.step:,} of {self.timetable.steps:,}"
        )

    def _newest(self) -> Checkpoint | None:
        """That of the first process, which all of them read."""
        found = None

        def newest() -> int | None:
            nonlocal found
            found = self.checkpoints.newest()
            return found and found.step

        step = self.devices.first(newest)
        if step is None:
            return None
        return self.devices.each(lambda: found or self.checkpoints.read(step))

    def _ask(self, is_lost: bool = False) -> bool:
        """Asks all processes; each stops if one was told to.

        Returns:
            whether the training is lost in one of them.
        """
        lost, self._stopping = self.devices.any(
            is_lost, self.stop.signal is not None
        )
        if self._stopping and not self.stop.signal:
            self.stop.signal = signal.SIGTERM
        return lost

    def run(self, batches_from: Callable) -> None:
        """Does what is left of the run, or as much as it is let."""
        if self._unfinished is None:
            self._ask()
        else:
            self.finish_interval()  # which asks where it validates
        if self.is_finished() or self._stopping:
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _UNUSED_POOLER, UserWarning)
            self.devices.fit(self.model, batches_from(self.step), [self])

    def on_epoch_begin(self, epoch, logs=None):
        """Restores what `fit` has just cleared."""
        if self._state and not self.timetable.ends_interval(self.step):
            restore_metrics(self.model, self._state)
            self.devices.keep_metrics(self.model)
        self.meter.start()

    def on_train_batch_begin(self, batch, logs=None):
        """Restores what `fit` has drawn from until the first batch came."""
        if self._state:
            restore_random(self._state)
            self.devices.vary_random(self.step)
            self._state = None

    def on_train_batch_end(self, batch, logs=None):
        """A part of a step, or the whole, has been computed."""
        self._parts += self.devices.batches_a_call
        if self._parts < self.timetable.accumulate:
            return
        self.step += self._parts // self.timetable.accumulate
        self._parts = 0
        self.meter.step(self.step)
        self.progress.update(self.step, {**logs, **self.meter.reading()})
        # The means of the interval: not finite from the first step that is not.
        if self._ask(is_lost=not math.isfinite(logs["loss"])):
            self._diverged(self.step, f"the loss is {logs['loss']}")
        if self.timetable.saves(self.step) or self._stopping:
            self._save(logs)
            self.meter.start()

    def _save(self, logs: dict) -> None:
        model = self.model  # on JAX, this puts the weights into it
        logs = self.devices.logs(model, logs)
        state = state_of(model)
        if not all(
            np.isfinite(array).all()
            for group in ("trainable", "non_trainable")
            for array in state.get(group, {}).values()
        ):
            self._diverged(self.step, "a weight is not finite")
        ends = self.timetable.ends_interval(self.step)
        kept_logs = dict(logs) if ends else None
        self.devices.first(
            lambda: self.checkpoints.save(self.step, state, kept_logs)
        )
        if ends:
            self._unfinished = dict(logs)
            self.finish_interval()
            model.reset_metrics()
            restore_random(state)  # a run that goes on has not drawn either
        kept = self.validate and self.kept()
        if self.devices.is_first:
            self.checkpoints.prune(kept["step"] if kept else None)
        if self._stopping or self.is_finished():
            model.stop_training = True

    def is_finished(self) -> bool:
        """Whether all steps are done, or no better model has come for long."""
        rows = self.log.rows
        if self.log.has(self.timetable.steps):
            return True
        if not self.patience or not rows:
            return False
        return len(rows) - 1 - rows.index(self.kept()) >= self.patience

    def kept(self) -> Row | None:
        """The row of the model that is kept; None before there is any."""
        return self._best_of(self.log.rows)

    def _best_of(self, rows: list[Row]) -> Row | None:
        if not rows or self.validate is None:
            return rows[-1] if rows else None

        def rank(row: Row) -> tuple[float, float]:
            lowest = -row.get(HELD_OUT + "loss", 0.0)
            if self.best == "loss":
                return lowest, lowest
            return row[HELD_OUT + self.best], lowest

        return max(rows, key=rank)  # of equals the first

    def _diverged(self, step: int, reason: str) -> None:
        raise Diverged(
            f"The training diverged at step {step}: {reason}. Lower the "
            "learning rate or lengthen the warm-up."
        )

    def finish_interval(self) -> None:
        """Validates, keeps the model and logs, if an interval has ended."""
        if self._unfinished is None:
            return
        model = self.model
        row = {
            "step": self.step,
            "learning_rate": plain(model.optimizer).last_learning_rate,
            **self._unfinished,
        }
        with averaged_weights(model):
            if self.validate is not None:
                # Several processes validate to the end, as they wait for one
                # another in it.
                measured = self.validate(
                    lambda: self.devices.count == 1 and bool(self.stop.signal)
                )
                self._ask()
                if self._stopping:
                    return  # when the run goes on, all of it is done
                if not math.isfinite(measured.get("loss", 0.0)):
                    reason = f"the held-out loss is {measured['loss']}"
                    self._diverged(self.step, reason)
                row |= {HELD_OUT + name: measured[name] for name in measured}
            if self._best_of([*self.log.rows, row]) is row:
                self.devices.first(lambda: self.content.save(self.folder))
        row |= self.meter.reading()
        self.meter.reset()
        self._unfinished = None
        self.log.append(row)
        if self.tensorboard:
            self.tensorboard.write(row)
        if can_draw() and self.devices.is_first:
            draw_curves(self.log.rows, self.folder)
        self.progress.line(
            f"step {self.step:,}/{self.timetable.steps:,}: {shown_values(row)}"
        )


def evaluate_until(
    model: keras.Model,
    batches,
    stopped: Callable[[], bool],
    devices: Devices | None = None,
) -> Row:
    """`model.evaluate`, which may be stopped; see `fit_into_folder`."""
    devices = devices or OneDevice()
    return devices.evaluate(model, batches, [_StopEvaluation(stopped)])


class _StopEvaluation(keras.callbacks.Callback):
    def __init__(self, stopped: Callable[[], bool]):
        super().__init__()
        self.stopped = stopped

    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = self.stopped()


def _lock(folder: Path):
    return locked(
        folder / LOCK_FILE,
        f"{folder}: another process is at work on this run. Wait for it, "
        "or choose another output.",
    )


class StopRequest:
    """SIGTERM and SIGINT are remembered until the step has ended.

    A second one does not wait. Elsewhere than in the main thread, where Python
    allows no handlers, nothing changes.
    """

    def __init__(self):
        self.signal = None
        self._before = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number, frame):
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        # `print` may not be entered twice.
        os.write(2, b"\nstopping when the step has ended (once more: now)\n")


def plain(optimizer: keras.optimizers.Optimizer) -> Lamb:
    """Without loss scaling, which puts an optimizer inside another."""
    return getattr(optimizer, "inner_optimizer", optimizer)


@contextlib.contextmanager
def averaged_weights(model: keras.Model):
    """The model has its moving averages for weights, where there are any."""
    averages = plain(model.optimizer).averages
    if not averages:
        yield
        return
    variables = model.trainable_variables
    # Copies: on JAX two variables must not share what one of them gives away.
    weights = [np.array(to_numpy(each)) for each in variables]
    means = [np.array(to_numpy(each)) for each in averages]
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
    try:
        yield
    finally:
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)


def _rest(folder: Path, checkpoints: Checkpoints, kept: Row | None) -> str:
    """What an ended run leaves; removes the folder if that is nothing."""
    steps = checkpoints.steps()
    if not steps:
        remove_folder(folder)
        return f"No model was kept, {folder} is removed."
    model = f" and the model of step {kept['step']}" if kept else ""
    return f"{folder} keeps the checkpoint of step {steps[-1]}{model}."
