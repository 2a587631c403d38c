"""`model.fit` into a folder, which pretraining and fine-tuning share.

A run has intervals of several steps. At the end of an interval a checkpoint is
written, the model is validated, it is saved if it is the best so far, and
log.csv gets a row. More checkpoints may be written within an interval. An
interrupted run continues from the newest one as if it had not been interrupted.
The checkpoint is written before the validation: a run that is killed in between
finds no row in the log, and validates again.
"""

import contextlib
import dataclasses
import math
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.ops import convert_to_numpy

from keras_albert.distribution.backend import to_numpy
from keras_albert.distribution.devices import Devices, OneDevice
from keras_albert.errors import AlbertError
from keras_albert.signals import StopRequest, say
from keras_albert.storage import remove_folder
from keras_albert.training.checkpointing import (
    Checkpoint,
    Checkpoints,
    has_finite_weights,
    restore_metrics,
    restore_model,
    restore_random,
    state_of,
)
from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.model_folder import MODEL_FILE, ModelFolder
from keras_albert.training.optimizer import Lamb
from keras_albert.training.plots import can_draw, draw_curves
from keras_albert.training.progress import ProgressBar, shown_values
from keras_albert.training.run_folder import finished_report, folder_at
from keras_albert.training.run_log import HELD_OUT, LogRow, RunLog, TensorBoard
from keras_albert.training.speed import SpeedMeter, Work

# Keras warns so of a head that does not read the pooler.
_UNUSED_POOLER = (
    r"Gradients do not exist for variables "
    r"\['[^']*/pooler/kernel', '[^']*/pooler/bias'\]"
)


@dataclasses.dataclass(frozen=True)
class Timetable:
    """When a run validates and saves; all numbers are optimizer steps."""

    steps: int
    """length of the run"""
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


@dataclasses.dataclass(frozen=True)
class Training:
    """What `fit_into_folder` trains, how it is measured, and what is kept."""

    content: ModelFolder
    """the compiled model, and what is saved beside it"""
    folder: Path
    """the output folder of the run; several processes must all see it"""
    batches_from: Callable[[int], Any]
    """step -> a tf.data.Dataset of this process's batches from there on"""
    timetable: Timetable
    origin: dict
    """what the run is made from, see `Checkpoint`"""
    validate: Callable[[Callable[[], bool]], LogRow] | None = None
    """measures held-out examples: values by name, perhaps with a `loss`. Its
    argument says whether the run is to stop; then it may return early, with
    anything. None: nothing is held out"""
    best: str = "loss"
    """the value of `validate` by which the best model is chosen: the lowest
    `loss`, or the highest of any other value; of equal ones the model with
    the lowest loss. Without `validate` the newest model is kept"""
    patience: int | None = None
    """intervals without a better model after which the run ends"""
    work_of: Callable[[int], Work] | None = None
    """see `SpeedMeter`"""
    tensorboard: bool = False
    """whether the log is also written for TensorBoard"""
    devices: Devices = dataclasses.field(default_factory=OneDevice)
    """the devices; of several processes the first one writes all files"""

    def kept(self, rows: list[LogRow]) -> LogRow | None:
        """The row of the log whose model is kept; None without any row."""
        if not rows or self.validate is None:
            return rows[-1] if rows else None

        def rank(row: LogRow) -> tuple[float, float]:
            lowest = -row.get(HELD_OUT + "loss", 0.0)
            if self.best == "loss":
                return lowest, lowest
            return row[HELD_OUT + self.best], lowest

        return max(rows, key=rank)  # of equal rows the first

    def is_finished(self, log: RunLog) -> bool:
        """Whether all steps are done, or `patience` has run out."""
        if log.has(self.timetable.steps):
            return True
        if not self.patience or not log.rows:
            return False
        best = log.rows.index(self.kept(log.rows))
        return len(log.rows) - 1 - best >= self.patience


def fit_into_folder(training: Training) -> LogRow:
    """Trains a model, or continues the run that its folder holds.

    SIGTERM, SIGINT and SIGHUP, which comes when a terminal is closed, end the
    run after the current step, with a checkpoint. A folder in which nothing
    could be kept is removed, so that the same command can be given again.
    Returns the row of the log of the kept model.

    Raises:
        AlbertError: the loss is not finite, or a file cannot be used.
        Exception: an error of a library, unchanged.
        KeyboardInterrupt, SystemExit: after SIGINT, or after one of the other
            signals, with a message.
    """
    folder, devices = training.folder, training.devices
    timetable = training.timetable
    with (
        contextlib.ExitStack() as stack,
        ProgressBar(timetable.steps) as progress,
        StopRequest() as stop,
    ):
        log = RunLog(None)

        def begin() -> list[LogRow]:
            nonlocal log
            stack.enter_context(folder_at(folder).locked("at work on this run"))
            if finished_report(folder) is not None:  # while this one began
                raise AlbertError(
                    f"{folder}: another process has finished this run. Give "
                    "the command again: it shows what was found."
                )
            log = RunLog(folder)
            return log.rows

        log.rows = devices.first(begin)
        steps = TrainingSteps(training, log, progress, stop)
        if not can_draw():
            progress.line(
                "no curves are drawn: pip install 'keras-albert[plots]'"
            )
        try:
            steps.resume()
            if training.tensorboard and devices.is_first:
                steps.tensorboard = TensorBoard(folder, log.rows)
            steps.run()
        except (Exception, KeyboardInterrupt) as error:
            not_resumed = steps.step == 0 and steps.checkpoints.steps()
            if not_resumed or not devices.is_first:
                raise
            rest = _remove_if_empty(
                folder, steps.checkpoints, training.kept(log.rows)
            )
            if isinstance(error, AlbertError):
                error.args = (f"{error} {rest}",)
            elif isinstance(error, KeyboardInterrupt):
                # The second signal, which does not wait for the end of a step.
                say(f"\ninterrupted. {rest}")
            else:  # of a library, for example too little memory
                say(f"\nthe training failed. {rest}")
            raise
        if stop.signal:
            say(
                f"\nstopped at step {steps.step:,} of {timetable.steps:,}; "
                "the same command goes on from there"
            )
            if stop.signal == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(0)
        return training.kept(log.rows)


DIVERGED = "The training diverged"  # how the message of such a run begins


class Diverged(AlbertError):
    """The loss or a weight is not finite."""

    @classmethod
    def at(cls, step: int, reason: str) -> "Diverged":
        """The error of a step, counted from 1."""
        return cls(
            f"{DIVERGED} at step {step}: {reason}. Lower the learning rate or "
            "lengthen the warm-up."
        )


class TrainingSteps(keras.callbacks.Callback):
    """The callback of `fit`: it counts steps, saves checkpoints and validates.

    `log` is that of the run so far; `stop` knows whether a signal has come.
    """

    def __init__(
        self,
        training: Training,
        log: RunLog,
        progress: ProgressBar,
        stop: StopRequest,
    ):
        super().__init__()
        self.set_model(training.content.model)
        self.training = training
        self.timetable = training.timetable
        self.devices = training.devices
        self.log = log
        self.progress = progress
        self.stop = stop
        self.checkpoints = Checkpoints(
            training.folder / CHECKPOINTS_FOLDER,
            training.timetable.keep_checkpoints,
            training.origin,
        )
        self.meter = SpeedMeter(training.work_of)
        self.tensorboard = None
        self.step = 0
        # Whether a process was asked to stop: all of them know at once.
        self._stopping = False
        # Batches of the step that is being accumulated.
        self._parts = 0
        # State of the checkpoint that `fit` continues from, while parts of it
        # are still to be restored; None once the first step has begun.
        self._restoring = None
        # The step before and its losses, which are not read yet.
        self._unread = None
        # Training means of an interval that has ended but has no row in the
        # log yet; None during an interval.
        self._ended_interval = None

    def resume(self) -> None:
        """Restores the newest checkpoint, if there is one."""
        found = _newest(self.checkpoints, self.devices)
        # TensorFlow would trace twice if the first step made its variables.
        with self.devices.scope():
            self.model.optimizer.build(self.model.trainable_variables)
        self.devices.prepare(self.model)
        self.step = found.step if found else 0
        self.log.keep_until(self.step)
        if not found:
            return
        _check_steps_per_execution(self.step, self.timetable, self.devices)
        restore_model(self.model, found.state)
        self._restoring = found.state
        if not self.timetable.ends_interval(self.step):
            # This makes the metrics' variables, which are to be restored.
            batch = self.training.batches_from(self.step).take(1)
            self.devices.evaluate(self.model, batch)
        elif not self.log.has(self.step):
            self._ended_interval = found.logs
        self.progress.begin_at(self.step)
        self.progress.line(
            f"going on from step {self.step:,} of {self.timetable.steps:,}"
        )

    def run(self) -> None:
        """Trains until the last step, or until the run is asked to stop."""
        if self._ended_interval is None:
            self._exchange_flags()
        else:
            self.finish_interval()  # exchanges flags, too, if it validates
        if self.training.is_finished(self.log) or self._stopping:
            return
        batches = self.training.batches_from(self.step)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _UNUSED_POOLER, UserWarning)
            self.devices.fit(self.model, batches, [self])

    def _exchange_flags(self, failed: bool = False) -> bool:
        """Exchanges `failed` and requests to stop with all processes.

        If any process was asked to stop, all of them stop after this step.
        Returns whether training has failed in any process.
        """
        failed, self._stopping = self.devices.any(
            failed, self.stop.signal is not None
        )
        if self._stopping and not self.stop.signal:
            self.stop.signal = signal.SIGTERM
        return failed

    # What a checkpoint holds is restored in three parts, because `fit` resets
    # the metrics when an epoch begins, and draws random numbers until the
    # first batch comes. The weights are restored before `fit`.

    def on_epoch_begin(self, epoch, logs=None):
        """Restores the running metrics, which `fit` has just reset."""
        if self._restoring and not self.timetable.ends_interval(self.step):
            restore_metrics(self.model, self._restoring)
            self.devices.keep_metrics(self.model)
        self.meter.start()

    def on_train_batch_begin(self, batch, logs=None):
        """Restores the random generators before the first batch."""
        if self._restoring:
            restore_random(self._restoring)
            self.devices.vary_random(self.step)
            self._restoring = None

    def on_train_batch_end(self, batch, logs=None):
        """Counts the batches; at the end of a step checks and saves.

        GPUs and TPUs compute while Python goes on, and to read a loss is to
        wait for it. So the losses of a step are read while the device works on
        the next one, except if the step is saved.
        """
        self._parts += self.devices.batches_a_call
        if self._parts < self.timetable.accumulate:
            return
        self.step += self._parts // self.timetable.accumulate
        self._parts = 0
        before, self._unread = self._unread, (self.step, logs)
        step, means = (before[0], _numbers(before[1])) if before else (0, {})
        is_saved = self.timetable.saves(self.step)
        if is_saved and _is_finite(means):
            step, means = self.step, _numbers(logs)
        self.meter.step(self.step)
        self.progress.update(self.step, {**means, **self.meter.reading()})
        self._check(step, means)
        if self._stopping and not is_saved:
            means = _numbers(logs)
            self._check(self.step, means)
        if self._stopping or is_saved:
            self._unread = None
            self._save(means)
            self.meter.start()

    def _check(self, step: int, means: LogRow) -> None:
        """Raises Diverged in every process if the loss of one is not finite."""
        is_finite = _is_finite(means)
        if self._exchange_flags(failed=not is_finite):
            reason = f"the loss is {means.get('loss')}"
            if is_finite:
                reason = "the loss of another process is not finite"
            raise Diverged.at(step, reason)

    def _save(self, logs: dict) -> None:
        model = self.model  # on JAX, this puts the weights into it
        logs = self.devices.logs(model, logs)
        state = state_of(model)
        if not has_finite_weights(state):
            raise Diverged.at(self.step, "a weight is not finite")
        ends = self.timetable.ends_interval(self.step)
        kept_logs = dict(logs) if ends else None
        self.devices.first(
            lambda: self.checkpoints.save(self.step, state, kept_logs)
        )
        if ends:
            self._ended_interval = dict(logs)
            self.finish_interval()
            model.reset_metrics()
            restore_random(state)  # a resumed run starts from this state
        has_best = self.training.validate and self.log.rows
        best = self.training.kept(self.log.rows) if has_best else None
        step = best["step"] if best else None
        self.devices.first(lambda: self.checkpoints.prune(step))
        if self._stopping or self.training.is_finished(self.log):
            model.stop_training = True

    def finish_interval(self) -> None:
        """Validates, keeps the model if it is the best, and logs a row.

        If the run is asked to stop meanwhile, nothing is logged: the continued
        run validates again.
        """
        model = self.model
        row = {
            "step": self.step,
            "learning_rate": unwrapped(model.optimizer).last_learning_rate,
            **self._ended_interval,
        }
        with averaged_weights(model):
            if self.training.validate is not None:
                measured = self._validate()
                if self._stopping:
                    return
                row |= {HELD_OUT + name: measured[name] for name in measured}
            if self.training.kept([*self.log.rows, row]) is row:
                self.devices.first(
                    lambda: self.training.content.save(self.training.folder)
                )
        row |= self.meter.reading()
        self.meter.reset()
        self._ended_interval = None
        self._log(row)

    def _validate(self) -> LogRow:
        """Measures held-out examples; incompletely if the run is to stop."""
        # Several processes validate to the end, since each waits for the
        # others there.
        measured = self.training.validate(
            lambda: self.devices.count == 1 and bool(self.stop.signal)
        )
        self._exchange_flags()
        if not self._stopping and not math.isfinite(measured.get("loss", 0.0)):
            raise Diverged.at(
                self.step, f"the held-out loss is {measured['loss']}"
            )
        return measured

    def _log(self, row: LogRow) -> None:
        def write() -> None:
            self.log.append(row)
            if self.tensorboard:
                self.tensorboard.write(row)
            if can_draw():
                folder, best = self.training.folder, self.training.best
                draw_curves(self.log.rows, folder, best)

        if not self.devices.is_first:
            self.log.append(row)
        self.devices.first(write)
        self.progress.line(
            f"step {self.step:,}/{self.timetable.steps:,}: {shown_values(row)}"
        )


def _numbers(logs: dict) -> LogRow:
    """The losses and metrics of a step, for which it waits."""
    return {name: float(convert_to_numpy(logs[name])) for name in sorted(logs)}


def _is_finite(means: LogRow) -> bool:
    """Whether the mean loss since the last reset is a finite number."""
    return math.isfinite(means.get("loss", 0.0))


def _newest(checkpoints: Checkpoints, devices: Devices) -> Checkpoint | None:
    """The newest checkpoint of the first process, read by all of them."""
    found = None

    def newest() -> int | None:
        nonlocal found
        found = checkpoints.newest()
        return found and found.step

    step = devices.first(newest)
    if step is None:
        return None
    return devices.each(lambda: found or checkpoints.read(step))


def _check_steps_per_execution(
    step: int, timetable: Timetable, devices: Devices
) -> None:
    """Raises AlbertError unless whole executions led to this step."""
    if step * timetable.accumulate % devices.batches_a_call:
        steps = devices.batches_a_call // timetable.accumulate
        raise AlbertError(
            f"the run goes on from step {step}: `steps_per_execution` must "
            f"divide that. Received: steps_per_execution={steps}. Take "
            f"--steps-per-execution {math.gcd(step, steps)}."
        )


def evaluate_until(
    model: keras.Model,
    batches,
    stopped: Callable[[], bool],
    devices: Devices | None = None,
) -> LogRow:
    """Runs `model.evaluate` until `stopped()`; see `Training.validate`."""
    devices = devices or OneDevice()
    return devices.evaluate(model, batches, [_StopEvaluation(stopped)])


class _StopEvaluation(keras.callbacks.Callback):
    def __init__(self, stopped: Callable[[], bool]):
        super().__init__()
        self.stopped = stopped

    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = self.stopped()


def unwrapped(optimizer: keras.optimizers.Optimizer) -> Lamb:
    """Returns the optimizer inside a LossScaleOptimizer, or else itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


@contextlib.contextmanager
def averaged_weights(model: keras.Model):
    """Context manager in which a model's weights are their moving averages.

    Without moving averages nothing changes.
    """
    averages = unwrapped(model.optimizer).averages
    if not averages:
        yield
        return
    variables = model.trainable_variables
    # Copies: on JAX, which donates buffers, variables must not share one.
    weights = [np.array(to_numpy(each)) for each in variables]
    means = [np.array(to_numpy(each)) for each in averages]
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
    try:
        yield
    finally:
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)


def _remove_if_empty(
    folder: Path, checkpoints: Checkpoints, kept: LogRow | None
) -> str:
    """Says what a run has left.

    Removes its folder if it has neither a checkpoint nor a model.
    """
    steps = checkpoints.steps()
    if not steps and (folder / MODEL_FILE).exists():
        return f"{folder} keeps its model, and no checkpoint to go on from."
    if not steps:
        remove_folder(folder)
        return f"No model was kept, {folder} is removed."
    model = f" and the model of step {kept['step']}" if kept else ""
    return f"{folder} keeps the checkpoint of step {steps[-1]}{model}."
