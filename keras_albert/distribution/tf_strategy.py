"""TensorFlow: the strategies of tf.distribute, driven from `model.fit`.

`fit` calls `model.train_function` on an iterator, and that is what is set here:
Keras's own fails under a strategy with gradient accumulation and with several
steps per execution. What else it does wrong there is mended where it happens:
clipping (`Lamb`), the normalizer of a loss (`losses.py`), dropout
(`vary_seeds`).
"""

import functools
import json
import os
import re

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_albert.distribution.config import DeviceConfig, ProcessConfig
from keras_albert.distribution.devices import Devices, vary_seeds
from keras_albert.distribution.rendezvous import meet
from keras_albert.errors import AlbertError
from keras_albert.private_apis import (
    build_for_batch,
    configure_coordination_service,
    skip_build_in_fit,
)


class Strategy(Devices):
    """Replicas of the model, each with a part of every batch.

    Args:
        config: with `distribution` mirrored, multiworker or tpu.
        accumulate: batches of the dataset whose gradients are averaged.
        strategy: used instead of what `config` says.
    """

    accumulates = True

    def __init__(
        self,
        config: DeviceConfig,
        accumulate: int = 1,
        strategy: tf.distribute.Strategy | None = None,
    ):
        self.strategy = strategy or _STRATEGIES[config.distribution](config)
        self.replicas = self.strategy.num_replicas_in_sync
        if config.distribution == "multiworker":
            processes = _told_processes(config)
            self.count, self.index = processes.count, processes.index
        self._steps = config.steps_per_execution
        self._accumulate = accumulate
        self.batches_a_call = self._steps * accumulate
        self._rows = None  # of a replica's part of a batch

    def scope(self):
        """See `Devices`."""
        return self.strategy.scope()

    def prepare(self, model: keras.Model) -> None:
        """See `Devices`."""
        if self.replicas > 1 and hasattr(model.optimizer, "inner_optimizer"):
            # Keras looks for infinities in the first replica's gradients.
            raise AlbertError(
                "float16 cannot be trained on several devices with "
                "TensorFlow. Received: mixed_float16. Take --precision "
                "mixed_bfloat16."
            )
        vary_seeds(model, _replica)
        with self.scope():
            model.train_function = self._train_function(model)
            model.test_function = self._test_function(model)

    def fit(self, model: keras.Model, batches, callbacks) -> None:
        """See `Devices`."""
        self._build_metrics(model, batches)
        self._rows = self._rows_of(batches)
        # For the iterator that `fit` makes: evaluating has one batch a call.
        model.steps_per_execution = self.batches_a_call
        first = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: setattr(
                model, "steps_per_execution", 1
            )
        )
        model.fit(
            self._distributed(batches),
            callbacks=[first, *callbacks],
            steps_per_epoch=_count(batches),
            shuffle=False,
            verbose=0,
        )

    def evaluate(self, model: keras.Model, batches, callbacks=()) -> dict:
        """See `Devices`."""
        self._build_metrics(model, batches)
        return model.evaluate(
            self._distributed(batches),
            steps=_count(batches),
            callbacks=list(callbacks),
            return_dict=True,
            verbose=0,
        )

    def outputs(self, model: keras.Model, x):
        """See `Devices`; computed on one device."""
        return tree.map_structure(lambda t: t.numpy(), _forward(model, x))

    def share(self, text: str) -> list[str]:
        """See `Devices`."""
        if self.count == 1:
            return [text]
        data = np.frombuffer(text.encode(), "uint8")
        sizes = self._gathered(np.array([len(data)]))
        # One more, as an empty array cannot be gathered.
        padded = np.pad(data, (0, sizes.max() + 1 - len(data)))
        rows = self._gathered(padded).reshape(self.replicas, -1)
        mine = self.replicas // self.count  # replicas of a process
        return [
            bytes(row[:size].astype("uint8")).decode()
            for row, size in zip(rows[::mine], sizes[::mine], strict=True)
        ]

    def lost(self, error: Exception) -> str | None:
        """See `Devices`: what collective operations end with."""
        if not isinstance(error, tf.errors.OpError):
            return None
        # Around it are lines about the graph.
        reason = re.search("Collective ops is aborted by: (.+)", str(error))
        if reason:
            return reason[1]
        kinds = (
            tf.errors.AbortedError,
            tf.errors.CancelledError,
            tf.errors.DeadlineExceededError,
            tf.errors.UnavailableError,
        )
        if isinstance(error, kinds):
            return str(error).strip().splitlines()[0]
        return None

    def close(self) -> None:
        """See `Devices`."""

    def _gathered(self, value):
        """[n] of each process -> NumPy int32 [replicas * n]."""
        value = tf.constant(value, tf.int32)
        gathered = self._gather(value)
        return self.strategy.experimental_local_results(gathered)[0].numpy()

    @functools.cached_property
    def _gather(self):
        def gather(value):
            # A copy: what comes from outside is on no device.
            value = tf.identity(value)
            return tf.distribute.get_replica_context().all_gather(value, 0)

        return tf.function(
            lambda value: self.strategy.run(gather, (value,)),
            input_signature=[tf.TensorSpec([None], tf.int32)],
        )

    def _build_metrics(self, model: keras.Model, batches) -> None:
        """As `fit` does, but of ids: it takes the mean of two replicas' ids."""
        with self.scope():
            build_for_batch(
                model,
                tree.map_structure(
                    lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name),
                    batches.element_spec,
                ),
            )
        skip_build_in_fit(model)

    def _distributed(self, batches):
        """The rows of this process, divided among its replicas."""
        rows = self._rows_of(batches)
        return self.strategy.distribute_datasets_from_function(
            lambda context: batches.rebatch(rows, drop_remainder=True)
        )

    def _rows_of(self, batches) -> int:
        here = tree.flatten(batches.element_spec)[0].shape[0]
        return here // (self.replicas // self.count)

    def _train_function(self, model: keras.Model):
        """Iterator -> logs, after `batches_a_call` batches."""
        accumulate, strategy = self._accumulate, self.strategy
        sums = [
            tf.Variable(
                tf.zeros(variable.shape),
                trainable=False,
                # Each replica adds up its own.
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for variable in model.trainable_variables
            if accumulate > 1
        ]

        def gradients(data):
            # Workers do not know how many rows come, and Keras's means of the
            # losses would count one in their place.
            data = tree.map_structure(
                lambda t: tf.ensure_shape(t, [self._rows, *t.shape[1:]]), data
            )
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = model.compute_loss(
                    x=x,
                    y=y,
                    y_pred=y_pred,
                    sample_weight=sample_weight,
                    training=True,
                )
                scaled = model.optimizer.scale_loss(loss)
            # A replica's loss is its share of the sum.
            model.metrics[0].update_state(
                loss * self.replicas,
                sample_weight=tf.shape(tree.flatten(x)[0])[0],
            )
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            return tape.gradient(scaled, model.trainable_variables)

        def whole_step(data):
            _apply(model, gradients(data))

        def add_part(data):
            for total, part in zip(sums, gradients(data), strict=True):
                if part is not None:
                    total.assign_add(tf.convert_to_tensor(part) / accumulate)

        def finish_step():
            _apply(model, [tf.identity(total) for total in sums])
            for total in sums:
                total.assign(tf.zeros_like(total))

        @tf.function(reduce_retracing=True)
        def steps(iterator):
            for _ in tf.range(self._steps):
                if accumulate == 1:
                    strategy.run(whole_step, (next(iterator),))
                else:
                    for _ in tf.range(accumulate):
                        strategy.run(add_part, (next(iterator),))
                    strategy.run(finish_step)

        def train(iterator):
            steps(iterator)
            return model.get_metrics_result()

        train.traced = steps  # for those who look at the program
        return train

    def _test_function(self, model: keras.Model):
        """Iterator -> the means so far. Keras's fails in several workers."""

        @tf.function(reduce_retracing=True)
        def step(iterator):
            self.strategy.run(model.test_step, (next(iterator),))

        def test(iterator):
            step(iterator)
            return model.get_metrics_result()

        return test


def _count(batches) -> int | None:
    """Batches of a dataset; None where it does not know.

    `fit` would count the replicas' parts of them, and go on past the end.
    """
    count = int(batches.cardinality())
    return count if count >= 0 else None


def _apply(model: keras.Model, gradients) -> None:
    """Adds up the replicas' gradients, clips, and updates the weights."""
    model.optimizer.apply_gradients(
        zip(gradients, model.trainable_variables, strict=True)
    )


@tf.function(reduce_retracing=True)
def _forward(model, x):
    return model(x, training=False)


def sum_over_replicas(x):
    """The sum over the replicas of a strategy; x itself outside of one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def _replica():
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def _device_names() -> list[str]:
    """Names of the GPUs, or of the CPUs where there is none."""
    devices = tf.config.list_logical_devices("GPU")
    return [
        device.name for device in devices or tf.config.list_logical_devices()
    ]


def _told_processes(config: DeviceConfig) -> ProcessConfig:
    """Those of TF_CONFIG.

    Raises:
        AlbertError: it names none, or not this one.
    """
    try:
        told = json.loads(os.environ["TF_CONFIG"])
        chief, workers = (
            told["cluster"].get(job, []) for job in ("chief", "worker")
        )
        before = {"chief": 0, "worker": len(chief)}[told["task"]["type"]]
        index = before + int(told["task"]["index"])
        addresses = [*chief, *workers]
        return ProcessConfig(
            addresses[0], len(addresses), index, config.processes.wait
        )
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,  # AlbertError, too: no HOST:PORT
    ):
        raise AlbertError(
            "`distribution=multiworker` needs the environment variable "
            "TF_CONFIG, which names the workers and which of them this is: "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": '
            f'"worker", "index": 0}}}}. Received: {os.environ.get("TF_CONFIG")}'
        ) from None


def _mirrored(config: DeviceConfig):
    devices = _device_names()
    if len(devices) < 2:
        raise AlbertError(
            "`distribution=mirrored` needs two devices or more. Found: "
            f"{devices[0]}. Leave --distribution out."
        )
    return tf.distribute.MirroredStrategy(devices)


def _multiworker(config: DeviceConfig):
    processes = _told_processes(config)
    meet(processes)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    jobs = [job for job in ("chief", "worker") if cluster.get(job)]
    # As the strategy would, but for the limit: it waits ten seconds for one
    # that is silent.
    configure_coordination_service(
        {job: len(cluster[job]) for job in jobs}, processes.wait
    )
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=processes.wait
    )
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=options
    )


def _tpu(config: DeviceConfig):
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (
        ValueError,
        IndexError,
        tf.errors.OpError,
        RuntimeError,
    ) as error:
        raise AlbertError(
            f"no TPU answers as {name!r} ({str(error).splitlines()[0][:200]})."
            " TensorFlow reaches one with the package tensorflow-tpu alone, "
            "see tpu/README.md; set TPU_NAME."
        ) from None
    hosts = strategy.extended.num_hosts
    if hosts > 1:  # whose data one process cannot make
        raise AlbertError(
            f"`distribution=tpu` is for the TPUs of one host. Found: {hosts} "
            "hosts. Take KERAS_BACKEND=jax, or a smaller slice."
        )
    return strategy


_STRATEGIES = {"mirrored": _mirrored, "multiworker": _multiworker, "tpu": _tpu}
