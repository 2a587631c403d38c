"""What a run asks of the devices and processes that it runs on.

Every backend has its own way to divide a batch: `meshes.py` (JAX),
`strategies.py` (TensorFlow), `ranks.py` (PyTorch). `distribution.py` chooses.
"""

import abc
import contextlib
import functools
import json
from collections.abc import Callable

import keras
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.private_apis import seed_generators

# Between the seeds of two replicas: a prime, so that few steps of the one meet
# those of another.
_REPLICAS = 1_000_000_007


class Devices(abc.ABC):
    """Abstract: the devices of a run, in one process or in several."""

    replicas: int = 1
    """equal parts that a batch is computed in at once"""
    index: int = 0
    """of this process; the first one alone writes files"""
    count: int = 1
    """of processes"""
    accumulates = False
    """whether `fit` averages the gradients of parts of a batch, instead of
    the optimizer"""
    batches_a_call: int = 1
    """batches of the dataset that `fit` takes between two callbacks"""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.index == 0

    def scope(self):
        """A context in which the model is made."""
        return contextlib.nullcontext()

    def alone(self):
        """A context in which one process works without the others."""
        return contextlib.nullcontext()

    def check(self, config) -> None:  # noqa: B027
        """AlbertError if a model of this config cannot be divided."""

    def prepare(self, model: keras.Model) -> None:  # noqa: B027
        """Once, before a compiled model is trained or restored."""

    def fit(self, model: keras.Model, batches, callbacks) -> None:
        """One epoch of `model.fit`.

        Args:
            batches: a tf.data.Dataset of the rows of each batch that this
                process has.
        """
        model.fit(
            batches,
            callbacks=callbacks,
            shuffle=False,  # the dataset does it
            verbose=0,
        )

    def evaluate(self, model: keras.Model, batches, callbacks=()) -> dict:
        """`model.evaluate`, over all processes; batches as in `fit`."""
        return model.evaluate(
            batches,
            callbacks=list(callbacks),
            return_dict=True,
            verbose=0,
        )

    def outputs(self, model: keras.Model, x):
        """The model's outputs for a batch, whole in every process.

        Each of several processes computes them by itself.
        """
        return model.predict_on_batch(x)

    def logs(self, model: keras.Model, logs: dict) -> dict:
        """The running means of training, over all processes.

        Args:
            logs: those of this process.
        """
        return logs

    def vary_random(self, step: int) -> None:  # noqa: B027
        """After the backend's generators are those of the first process.

        Args:
            step: at which a run goes on.
        """

    def keep_metrics(self, model: keras.Model) -> None:  # noqa: B027
        """Forgets the running means where another process holds them."""

    @abc.abstractmethod
    def share(self, text: str) -> list[str]:
        """The texts of all processes, by index; each waits for the others."""

    def lost(self, error: Exception) -> str | None:
        """What an error says, if it is that another process is lost."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Leaves the other processes, and this one as it was."""

    # What follows from `share`.

    def any(self, *flags: bool) -> list[bool]:
        """Which of some flags are true in any process."""
        mine = "".join(str(int(flag)) for flag in flags)
        return ["1" in each for each in zip(*self.share(mine), strict=True)]

    def first(self, function: Callable[[], object]):
        """What the first process's call gives; its AlbertError is everyone's.

        Args:
            function: returns what JSON can hold.
        """
        if self.count == 1:
            return function()
        status, failure = {}, None
        if self.is_first:
            try:
                with self.alone():
                    status["result"] = function()
            except Exception as error:
                status["error"], failure = str(error), error
        status = json.loads(self.share(json.dumps(status))[0])
        if failure:
            raise failure
        if "error" in status:
            raise AlbertError(f"process 0: {status['error']}")
        return status["result"]

    def each(self, function: Callable[[], object]):
        """Calls it in every process; one's AlbertError is everyone's."""
        if self.count == 1:
            return function()
        result, message, failure = None, "", None
        try:
            result = function()
        except (AlbertError, OSError) as error:
            message, failure = str(error), error
        messages = self.share(message)
        if failure:
            raise failure
        for index, text in enumerate(messages):
            if text:
                raise AlbertError(f"process {index}: {text}")
        return result

    def check_equal(self, facts: dict[str, object]) -> None:
        """AlbertError if what the processes know differs.

        Args:
            facts: JSON, by name.
        """
        all_facts = [json.loads(t) for t in self.share(json.dumps(facts))]
        for index, other in enumerate(all_facts):
            for name, value in all_facts[0].items():
                if other.get(name) != value:
                    raise AlbertError(
                        "the processes of a run must have the same settings "
                        f"and data: {name} is {value!r} in process 0 and "
                        f"{other.get(name)!r} in process {index}. Start all "
                        "of them with the same command."
                    )

    def check_batch(self, batch_size: int, accumulate: int = 1) -> None:
        """AlbertError unless the parts of a batch are equally large."""
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


class OneDevice(Devices):
    """One device of one process: plain `model.fit`."""

    def share(self, text: str) -> list[str]:
        """See `Devices`."""
        return [text]

    def close(self) -> None:
        """See `Devices`."""


def vary_seeds(model: keras.Model, replica: Callable[[], object]) -> None:
    """Other dropout masks in every replica.

    The states of seeds are equal in all, and so would be the masks.

    Args:
        model: whose seeds are drawn from inside a replica.
        replica: gives its number, an integer or a tensor; 0 changes nothing.
    """
    for generator in seed_generators(model):
        generator.next = functools.partial(
            _drawn_in_replica, generator.next, replica
        )


def _drawn_in_replica(draw, replica, ordered=True):
    seed = draw(ordered)
    shift = ops.cast(replica(), seed.dtype) * ops.cast(_REPLICAS, seed.dtype)
    return seed + ops.stack([shift, ops.zeros_like(shift)])
