"""TensorFlow: distribution strategies of tf.distribute for `model.fit`.

`fit` calls `model.train_function` with an iterator. This file replaces that
function, because the one of Keras 3.15 fails under a strategy with gradient
accumulation, and with several steps per execution. Keras makes three other
mistakes under a strategy, which are corrected elsewhere: it clips gradients
before they are summed over the replicas (see `Lamb`), normalizes a loss by the
weight of the replica's rows (see `loss_normalizer`), and draws the same
dropout masks in all replicas (see `vary_seeds`).
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
from keras_albert.distribution.rendezvous import wait_for_processes
from keras_albert.errors import AlbertError, reason_of
from keras_albert.private_apis import (
    build_for_batch,
    configure_coordination_service,
    new_collective_keys,
    skip_build_in_fit,
)


class Strategy(Devices):
    """The devices of a strategy of tf.distribute.

    Each device has a replica of the model and computes a part of every batch.

    Args:
        config: its field `distribution` is mirrored, multiworker or tpu.
        accumulate: number of batches of the dataset in an optimizer step.
        strategy: a strategy to use instead of the one of `config`.
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
            processes = _processes_of_tf_config(config)
            self.count, self.index = processes.count, processes.index
        self.steps = config.steps_per_execution
        self.accumulate = accumulate
        self.batches_a_call = self.steps * accumulate
        self.rows = None  # rows of a replica's part of a batch

    def scope(self):
        return self.strategy.scope()

    def prepare(self, model: keras.Model) -> None:
        if self.replicas > 1 and hasattr(model.optimizer, "inner_optimizer"):
            # Loss scaling must skip a step if any gradient is infinite, but
            # Keras only checks the gradients of the first replica.
            raise AlbertError(
                "float16 cannot be trained on several devices with "
                "TensorFlow. Received: mixed_float16. Take --precision "
                "mixed_bfloat16."
            )
        vary_seeds(model, _replica)
        with self.scope():
            model.train_function = _train_function(self, model)
            model.test_function = _test_function(self, model)

    def fit(self, model: keras.Model, batches, callbacks) -> None:
        self._build_metrics(model, batches)
        self.rows = self._rows_of(batches)
        # `fit` reads this attribute at first, to know how many batches each
        # call takes. It is reset for `evaluate`, whose calls take one.
        model.steps_per_execution = self.batches_a_call
        first = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: setattr(
                model, "steps_per_execution", 1
            )
        )
        parts, steps = self._distributed(batches), _count(batches)
        self._fit(model, parts, [first, *callbacks], steps_per_epoch=steps)

    def evaluate(self, model: keras.Model, batches, callbacks=()) -> dict:
        self._build_metrics(model, batches)
        parts, steps = self._distributed(batches), _count(batches)
        return self._evaluate(model, parts, callbacks, steps=steps)

    def outputs(self, model: keras.Model, x):
        return tree.map_structure(lambda t: t.numpy(), _forward(model, x))

    def share(self, text: str) -> list[str]:
        if self.count == 1:
            return [text]
        # Workers can only exchange tensors of one size: the sizes are exchanged
        # first, and then the bytes, padded to the largest size.
        data = np.frombuffer(text.encode(), "uint8")
        sizes = self._gathered(np.array([len(data)]))
        # One element more, as an empty array cannot be gathered.
        padded = np.pad(data, (0, sizes.max() + 1 - len(data)))
        rows = self._gathered(padded).reshape(self.replicas, -1)
        mine = self.replicas // self.count  # replicas of a process
        return [
            bytes(row[:size].astype("uint8")).decode()
            for row, size in zip(rows[::mine], sizes[::mine], strict=True)
        ]

    def lost(self, error: Exception) -> str | None:
        # Collective operations fail with these errors if a worker is lost.
        if not isinstance(error, tf.errors.OpError):
            return None
        # The reason is in the middle of a long message about the graph.
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
            return reason_of(error)
        return None

    def close(self) -> None:
        """There is nothing to close: a strategy has no method for it."""

    def _gathered(self, value):
        """Concatenates the int32 [n] arrays of all replicas: [replicas * n].

        All replicas of a process send the same array.
        """
        value = tf.constant(value, tf.int32)
        gathered = self._gather(value)
        return self.strategy.experimental_local_results(gathered)[0].numpy()

    @functools.cached_property
    def _gather(self):
        def gather(value):
            # `identity` copies the argument to the device of the replica,
            # from which the collective operation reads.
            value = tf.identity(value)
            return tf.distribute.get_replica_context().all_gather(value, 0)

        return tf.function(
            lambda value: self.strategy.run(gather, (value,)),
            input_signature=[tf.TensorSpec([None], tf.int32)],
        )

    def _build_metrics(self, model: keras.Model, batches) -> None:
        """Builds the metrics and the optimizer from the dataset's shapes.

        `fit` would average the replicas' parts of a batch, which fails for ids.
        """
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
        """The dataset, its batches divided among this process's replicas."""
        rows = self._rows_of(batches)
        return self.strategy.distribute_datasets_from_function(
            lambda context: batches.rebatch(rows, drop_remainder=True)
        )

    def _rows_of(self, batches) -> int:
        here = tree.flatten(batches.element_spec)[0].shape[0]
        return here // (self.replicas // self.count)


def _train_function(devices: Strategy, model: keras.Model):
    """The train function: takes `batches_a_call` batches, returns logs."""
    run = devices.strategy.run
    add_part = finish_step = None
    if devices.accumulate > 1:
        add_part, finish_step = _accumulating(devices, model)

    def whole_step(data):
        _apply(model, _gradients(devices, model, data))

    # In the tf.function, so that a TPU runs several steps without Python.
    @tf.function(reduce_retracing=True)
    def steps(iterator):
        for _ in tf.range(devices.steps):
            if devices.accumulate == 1:
                run(whole_step, (next(iterator),))
            else:
                for _ in tf.range(devices.accumulate):
                    run(add_part, (next(iterator),))
                run(finish_step)

    def train(iterator):
        steps(iterator)
        return model.get_metrics_result()

    train.traced = steps  # lets tests inspect the traced program
    return train


def _accumulating(devices: Strategy, model: keras.Model) -> tuple:
    """Makes two functions: one for each part of a batch, one for its end.

    Both run in every replica. The gradients of the parts are summed in each
    replica, and the optimizer sums over the replicas: one exchange for all
    parts.
    """
    sums = [
        tf.Variable(
            tf.zeros(variable.shape),
            trainable=False,
            # Each replica has its own sum, without synchronization.
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        for variable in model.trainable_variables
    ]

    def add_part(data):
        gradients = _gradients(devices, model, data)
        for total, part in zip(sums, gradients, strict=True):
            if part is not None:
                part = tf.convert_to_tensor(part)
                total.assign_add(part / devices.accumulate)

    def finish_step():
        _apply(model, [tf.identity(total) for total in sums])
        for total in sums:
            total.assign(tf.zeros_like(total))

    return add_part, finish_step


def _gradients(devices: Strategy, model: keras.Model, data) -> list:
    """Computes the gradients of one replica's part of a batch.

    It also updates the metrics of the model.
    """
    # With several workers the static number of rows is unknown. Keras would
    # then weight each batch of the mean losses as one row.
    data = tree.map_structure(
        lambda t: tf.ensure_shape(t, [devices.rows, *t.shape[1:]]), data
    )
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model.compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
        )
        scaled = model.optimizer.scale_loss(loss)
    # The loss of a replica is divided by the weight of the whole batch, so it
    # is the replica's share: the gradients are summed, not averaged. The
    # metric averages over replicas, so it gets the share times their number.
    model.metrics[0].update_state(
        loss * devices.replicas, sample_weight=tf.shape(tree.flatten(x)[0])[0]
    )
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return tape.gradient(scaled, model.trainable_variables)


def _test_function(devices: Strategy, model: keras.Model):
    """The test function: takes a batch, returns the means so far.

    The one of Keras fails with several workers.
    """

    @tf.function(reduce_retracing=True)
    def step(iterator):
        devices.strategy.run(model.test_step, (next(iterator),))

    def test(iterator):
        step(iterator)
        return model.get_metrics_result()

    return test


def _count(batches) -> int | None:
    """The number of batches of a dataset; None if it is unknown or infinite.

    `fit` would count the replicas' parts of batches, and read past the end.
    """
    count = int(batches.cardinality())
    return count if count >= 0 else None


def _apply(model: keras.Model, gradients) -> None:
    """Sums the gradients over the replicas, clips and applies them."""
    model.optimizer.apply_gradients(
        zip(gradients, model.trainable_variables, strict=True)
    )


@tf.function(reduce_retracing=True)
def _forward(model, x):
    return model(x, training=False)


def sum_over_replicas(x):
    """The sum of x over the replicas; x itself outside a strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def rows_of_replicas(x):
    """The rows of all replicas, [G, ...], and the index of this one's first.

    Each replica adds its rows [B, ...] to zeros at its place: a sum over the
    replicas has a gradient, and gathering has none on some devices.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x, 0
    count, replica = context.num_replicas_in_sync, _replica()
    rows = tf.shape(x)[0]
    place = tf.one_hot(replica, count, dtype=x.dtype)
    place = tf.reshape(place, [count, *[1] * len(x.shape)])
    total = sum_over_replicas(place * x[tf.newaxis])
    shape = tf.concat([[count * rows], tf.shape(x)[1:]], axis=0)
    return tf.reshape(total, shape), replica * rows


def _replica():
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def _processes_of_tf_config(config: DeviceConfig) -> ProcessConfig:
    try:
        cluster = json.loads(os.environ["TF_CONFIG"])
        chief, workers = (
            cluster["cluster"].get(job, []) for job in ("chief", "worker")
        )
        before = {"chief": 0, "worker": len(chief)}[cluster["task"]["type"]]
        index = before + int(cluster["task"]["index"])
        addresses = [*chief, *workers]
        return ProcessConfig(
            addresses[0], len(addresses), index, config.processes.wait
        )
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,  # includes AlbertError, for an address without a port
    ):
        raise AlbertError(
            "`distribution=multiworker` needs the environment variable "
            "TF_CONFIG, which names the workers and which of them this is: "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": '
            f'"worker", "index": 0}}}}. Received: {os.environ.get("TF_CONFIG")}'
        ) from None


def _mirrored(config: DeviceConfig):
    gpus = tf.config.list_logical_devices("GPU")
    devices = [each.name for each in gpus or tf.config.list_logical_devices()]
    if len(devices) < 2:
        raise AlbertError(
            "`distribution=mirrored` needs two devices or more. Found: "
            f"{devices[0]}. Leave --distribution out."
        )
    new_collective_keys()
    return tf.distribute.MirroredStrategy(devices)


def _multiworker(config: DeviceConfig):
    processes = _processes_of_tf_config(config)
    wait_for_processes(processes)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    jobs = [job for job in ("chief", "worker") if cluster.get(job)]
    # The strategy would configure the same service, but with its own limit: a
    # worker that is silent for ten seconds counts as lost.
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
    except (ValueError, IndexError, tf.errors.OpError, RuntimeError) as error:
        raise AlbertError(
            f"no TPU answers as {name!r} ({reason_of(error):.200})."
            " TensorFlow reaches one with the package tensorflow-tpu alone, "
            "see tpu/README.md; set TPU_NAME."
        ) from None
    hosts = strategy.extended.num_hosts
    if hosts > 1:  # this process cannot feed the TPUs of other hosts
        raise AlbertError(
            f"`distribution=tpu` is for the TPUs of one host. Found: {hosts} "
            "hosts. Take KERAS_BACKEND=jax, or a smaller slice."
        )
    return strategy


_STRATEGIES = {"mirrored": _mirrored, "multiworker": _multiworker, "tpu": _tpu}
