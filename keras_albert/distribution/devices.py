"""Devices: the interface between a training run and its devices.

Each backend divides a batch in its own way and has a subclass of `Devices`:
`jax_mesh.Mesh`, `tf_strategy.Strategy` and `torch_ddp.Ranks`. `backend.opened`
chooses among them.
"""

import abc
import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import NoReturn

import keras
from keras import ops

from keras_albert.errors import AlbertError, LostProcess
from keras_albert.private_apis import seed_generators

# Offset between seeds of replicas: a large prime, so that few coincide.
_SEED_OFFSET = 1_000_000_007


class Devices(abc.ABC):
    """Abstract: the devices of a run, in one process or in several."""

    replicas: int = 1
    """number of equal parts of a batch that are computed in parallel"""
    index: int = 0
    """number of this process, from 0; only process 0 writes files"""
    count: int = 1
    """number of processes"""
    accumulates = False
    """whether `fit`, not the optimizer, averages the gradients of parts"""
    batches_a_call: int = 1
    """number of batches that `fit` takes from the dataset between callbacks"""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.index == 0

    def scope(self):
        """A context manager in which the model must be created."""
        return contextlib.nullcontext()

    def alone(self):
        """A context manager in which one process works without the others."""
        return contextlib.nullcontext()

    def check(self, config) -> None:  # noqa: B027
        """Raises AlbertError if the devices cannot divide a model's weights."""

    def prepare(self, model: keras.Model) -> None:  # noqa: B027
        """Adapts a compiled model to the devices.

        Call it once, before the model is trained or restored.
        """

    def fit(self, model: keras.Model, batches, callbacks) -> None:
        """Trains for one epoch with `model.fit`.

        The batches of the tf.data.Dataset hold only the rows of this process.
        `on_train_batch_end` of the callbacks gets tensors.
        """
        self._fit(model, batches, callbacks)

    def _fit(self, model: keras.Model, batches, callbacks, **options) -> None:
        """Trains for one epoch; `model.fit` takes the options, too."""
        options |= {"shuffle": False, "verbose": 0}  # it is already shuffled
        callbacks = _Callbacks(callbacks, add_history=True, model=model)
        model.fit(batches, callbacks=callbacks, **options)

    def evaluate(self, model: keras.Model, batches, callbacks=()) -> dict:
        """Evaluates a model over all processes; arguments as in `fit`.

        Returns the loss and the metrics, by name.
        """
        return self._evaluate(model, batches, callbacks)

    def _evaluate(
        self, model: keras.Model, batches, callbacks, **options
    ) -> dict:
        """Evaluates a model; `model.evaluate` takes the options, too."""
        options |= {"return_dict": True, "verbose": 0}
        return model.evaluate(batches, callbacks=list(callbacks), **options)

    def outputs(self, model: keras.Model, x):
        """The model's outputs for a whole batch, the same in every process.

        Each process computes all of them, without the other processes.
        """
        return model.predict_on_batch(x)

    def logs(self, model: keras.Model, logs: dict) -> dict:
        """The running means of training over all processes."""
        return logs

    def vary_random(self, step: int) -> None:  # noqa: B027
        """Makes the random generators of the backend differ by process.

        A checkpoint of some `step` restores the generators of process 0 in
        every process; call this method afterwards.
        """

    def keep_metrics(self, model: keras.Model) -> None:  # noqa: B027
        """Resets the metrics, except in the process that holds their sums.

        After `logs` the first process may hold the sums of all processes. The
        others then start from zero, so that nothing is counted twice.
        """

    @abc.abstractmethod
    def share(self, text: str) -> list[str]:
        """Exchanges texts: returns those of all processes, by their index.

        Every process must call it; each waits for the others.
        """

    def lost(self, error: Exception) -> str | None:
        """Recognizes errors that mean that another process has been lost.

        Returns the reason for such an error, and None for all others.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnects from the other processes and restores global settings."""

    # The methods below are built on `share`.

    def any(self, *flags: bool) -> list[bool]:
        """Returns for each flag whether it is true in at least one process."""
        mine = "".join(str(int(flag)) for flag in flags)
        return ["1" in each for each in zip(*self.share(mine), strict=True)]

    def first(self, function: Callable[[], object]):
        """Calls `function` in process 0 and returns its result in every one.

        The result must be serializable as JSON. If `function` raises
        AlbertError or OSError, the other processes raise AlbertError; for any
        other error, and for LostProcess, they raise LostProcess.
        """
        # Process 0 must share its result even if `function` fails: the others
        # wait for it in `share`, and would otherwise wait for ever.
        if self.count == 1:
            return function()
        status, failure = {}, None
        if self.is_first:
            try:
                with self.alone():
                    status["result"] = function()
            except Exception as error:
                status["failure"], failure = _failure(error), error
        status = json.loads(self.share(json.dumps(status))[0])
        if failure:
            raise failure
        if "failure" in status:
            _raise_failure(0, status["failure"])
        return status["result"]

    def each(self, function: Callable[[], object]):
        """Calls `function` in every process and returns its local result.

        If it raises AlbertError or OSError in one process, all raise, see
        `first`.
        """
        # All processes exchange their messages, so that either all go on or all
        # stop. If only one stopped, the others would wait for it later.
        if self.count == 1:
            return function()
        result, found, failure = None, None, None
        try:
            result = function()
        except (AlbertError, OSError) as error:
            found, failure = _failure(error), error
        shared = self.share(json.dumps(found))
        if failure:
            raise failure
        for index, text in enumerate(shared):
            if each := json.loads(text):
                _raise_failure(index, each)
        return result

    def check_equal(self, facts: dict[str, object]) -> None:
        """Raises AlbertError if the processes have different facts, as JSON."""
        for index, name, first, other in self._differing(facts):
            raise AlbertError(
                "the processes of a run must have the same settings and data: "
                f"{name} is {first!r} in process 0 and {other!r} in process "
                f"{index}. Start all of them with the same command."
            )

    def check_same_models(self, checksums: dict[str, str | None]) -> None:
        """Raises AlbertError if the processes have read different models.

        `checksums` are those of their weights, by the names of the options.
        """
        for index, option, *_ in self._differing(checksums):
            raise AlbertError(
                "the processes of a run must read the same models. The weights "
                f"of `{option}` differ between the processes 0 and {index}. "
                "Copy the same model to all machines."
            )

    def _differing(
        self, facts: dict[str, object]
    ) -> Iterator[tuple[int, str, object, object]]:
        """The facts that differ: process, name, value of process 0, its own."""
        found = [json.loads(text) for text in self.share(json.dumps(facts))]
        for index, other in enumerate(found):
            for name, value in found[0].items():
                if other.get(name) != value:
                    yield index, name, value, other.get(name)

    def check_batch(self, batch_size: int, accumulate: int = 1) -> None:
        """Raises AlbertError unless all parts of a batch have equal sizes.

        The `batch_size` rows are divided among the replicas of all processes,
        each of which computes its rows in `accumulate` equal parts.
        """
        parts = self.replicas * accumulate
        if batch_size % parts:
            of_what = f"{self.replicas} replicas of the model"
            if accumulate > 1:
                of_what += f" x {accumulate} parts of --accumulate"
            raise AlbertError(
                f"`batch_size` must be a multiple of {parts}, as it is "
                f"divided among {of_what}. Received: batch_size={batch_size}. "
                f"The next one is {-(-batch_size // parts) * parts}."
            )


def _failure(error: Exception) -> dict[str, str | bool]:
    """What the other processes are told of an error, see `Devices.first`."""
    is_mistake = isinstance(error, AlbertError | OSError)
    lost = isinstance(error, LostProcess) or not is_mistake
    return {"error": str(error) or type(error).__name__, "lost": lost}


def _raise_failure(index: int, failure: dict[str, str | bool]) -> NoReturn:
    kind = LostProcess if failure["lost"] else AlbertError
    raise kind(f"process {index}: {failure['error']}")


class _Callbacks(keras.callbacks.CallbackList):
    """Gives the losses of a step to the callbacks as tensors.

    Keras makes numbers of them, for which it waits until the device has
    computed the step. The device then waits for the next batch.
    """

    def on_train_batch_end(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)


class OneDevice(Devices):
    """A single device in a single process, without any distribution."""

    def share(self, text: str) -> list[str]:
        return [text]

    def close(self) -> None:
        """There is nothing to close."""


def vary_seeds(model: keras.Model, replica: Callable[[], object]) -> None:
    """Gives each replica different dropout masks.

    The states of seed generators are variables and have equal values in all
    replicas, which would therefore all draw the same masks. Here a multiple of
    the number of the replica, which `replica()` returns as an integer or a
    tensor, is added to each seed after it is drawn, so that the states stay
    equal. The seeds of replica 0 do not change, nor those of a generator with
    the attribute `same_in_replicas`.
    """
    for generator in seed_generators(model):
        if getattr(generator, "same_in_replicas", False):
            continue
        generator.next = functools.partial(
            _drawn_in_replica, generator.next, replica
        )


def _drawn_in_replica(draw, replica, ordered=True):
    seed = draw(ordered)
    offset = ops.cast(_SEED_OFFSET, seed.dtype)
    shift = ops.cast(replica(), seed.dtype) * offset
    return seed + ops.stack([shift, ops.zeros_like(shift)])
