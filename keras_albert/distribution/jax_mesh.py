"""JAX: a mesh of all devices, of one process or of several."""

import contextlib
import functools
import math

import jax
import keras
import numpy as np
from jax import tree

from keras_albert.distribution.config import DeviceConfig
from keras_albert.distribution.devices import Devices
from keras_albert.distribution.rendezvous import meet
from keras_albert.errors import AlbertError, LostProcess
from keras_albert.modeling.config import AlbertConfig
from keras_albert.private_apis import is_tpu_pod, jax_key_value_service

BATCH_AXIS, MODEL_AXIS = "batch", "model"


class Mesh(Devices):
    """JAX's devices: `keras.distribution` divides batches, and weights.

    Args:
        config: with `distribution` data or model.
    """

    def __init__(self, config: DeviceConfig):
        self._joined = _join(config)
        self.index, self.count = jax.process_index(), jax.process_count()
        # Of the processes; Orbax takes it from the same place.
        self._service = jax_key_value_service()
        self._wait = config.processes.wait
        self._shared = self._calls = 0
        self._raised = {}  # of each flag of `any`, the call that tells it
        self._shares = config.model_parallel
        # A process's own side by side: the model axis lies within it.
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        devices = np.array(devices)
        self._before = keras.distribution.distribution()
        if jax.local_device_count() % self._shares:
            self.close()
            raise AlbertError(
                "`model_parallel` must divide the number of devices of a "
                f"process, {jax.local_device_count()}. Received: "
                f"model_parallel={self._shares}."
            )
        self.replicas = len(devices) // self._shares
        if self._shares > 1:
            devices = devices.reshape(-1, self._shares)
        keras.distribution.set_distribution(distribution_over(devices))

    def check(self, config: AlbertConfig) -> None:
        """See `Devices`."""
        check_shares(config, self._shares)

    @contextlib.contextmanager
    def alone(self):
        """See `Devices`: a model that is made in it is this process's own."""
        if self.count == 1:
            yield
            return
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def outputs(self, model: keras.Model, x):
        """See `Devices`; a batch that cannot be divided is filled up."""
        if self.count > 1:
            return self._outputs_alone(model, x)
        rows = len(tree.leaves(x)[0])
        missing = -rows % self.replicas

        def filled(array):
            return np.pad(
                array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), "edge"
            )

        outputs = model.predict_on_batch(tree.map(filled, x))
        return tree.map(lambda array: array[:rows], outputs)

    def _outputs_alone(self, model: keras.Model, x):
        """On one device, with a copy of the weights."""
        weights, rest = (
            [whole(variable.value) for variable in group]
            for group in (
                model.trainable_variables,
                model.non_trainable_variables,
            )
        )
        with self.alone():
            outputs = _forward(model, weights, rest, x)
        return tree.map(np.asarray, outputs)

    def any(self, *flags: bool) -> list[bool]:
        """See `Devices`; asked of the service alone, as often as a step.

        Calls are counted, and what a process says in one counts in the next:
        no other can have come so far without it, as they compute together.
        """
        if self.count == 1:
            return list(flags)
        self._calls += 1
        found = []
        for place, flag in enumerate(flags):
            if place not in self._raised:
                key = f"any/{place}"
                if flag:
                    # Another may have been first.
                    with contextlib.suppress(jax.errors.JaxRuntimeError):
                        self._service.key_value_set(key, str(self._calls + 1))
                # No key, no value.
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    call = self._service.key_value_try_get(key)
                    self._raised[place] = int(call)
            found.append(self._calls >= self._raised.get(place, math.inf))
        return found

    def share(self, text: str) -> list[str]:
        """See `Devices`."""
        if self.count == 1:
            return [text]
        self._shared += 1
        key = f"share/{self._shared}"
        # The service takes no empty text.
        self._service.key_value_set(f"{key}/{self.index}", f"={text}")
        texts = []
        for index in range(self.count):
            try:
                found = self._service.blocking_key_value_get(
                    f"{key}/{index}", 1000 * self._wait
                )
            except jax.errors.JaxRuntimeError as error:
                raise LostProcess(
                    f"process {index} does not answer process {self.index} "
                    f"({str(error).splitlines()[0]}). Start all processes "
                    "again: the run goes on from its last checkpoint, if any."
                ) from None
            texts.append(found.removeprefix("="))
        return texts

    def close(self) -> None:
        """See `Devices`."""
        keras.distribution.set_distribution(self._before)
        if self._joined:
            with contextlib.suppress(RuntimeError):  # another one has ended
                jax.distributed.shutdown()


def distribution_over(
    devices: np.ndarray,
) -> keras.distribution.DataParallel | keras.distribution.ModelParallel:
    """Data parallel over [D] devices, with divided weights over [D, M].

    Each process feeds its own rows of a batch.
    """
    axes = [BATCH_AXIS, MODEL_AXIS][: devices.ndim]
    mesh = keras.distribution.DeviceMesh(devices.shape, axes, devices)
    if devices.ndim == 1:
        return keras.distribution.DataParallel(
            device_mesh=mesh, auto_shard_dataset=False
        )
    return keras.distribution.ModelParallel(
        layout_map=layout_map(mesh),
        batch_dim_name=BATCH_AXIS,
        auto_shard_dataset=False,
    )


def layout_map(mesh) -> keras.distribution.LayoutMap:
    """Where ALBERT's weights are cut, for the mesh's model axis.

    Each device has some heads and some inner units: the first kernels of a
    half are cut by their outputs, the last by its inputs, so that a half
    exchanges once (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
    Embeddings are small in ALBERT: every device has them.
    """
    layouts = keras.distribution.LayoutMap(mesh)
    for weights, axes in (
        (".*/(query|key|value|intermediate)/kernel", (None, MODEL_AXIS)),
        (".*/(query|key|value|intermediate)/bias", (MODEL_AXIS,)),
        (".*/output/kernel", (MODEL_AXIS, None)),
    ):
        layouts[weights] = axes
    return layouts


@functools.partial(jax.jit, static_argnums=0)
def _forward(model, weights, rest, x):
    return model.stateless_call(weights, rest, x, training=False)[0]


def check_shares(config: AlbertConfig, shares: int) -> None:
    """AlbertError unless the weights can be cut into so many shares."""
    for name in ("num_attention_heads", "intermediate_size"):
        size = getattr(config, name)
        if size % shares:
            raise AlbertError(
                f"`model_parallel` must divide the model's {name}={size}. "
                f"Received: model_parallel={shares}."
            )


def whole(array: jax.Array) -> np.ndarray:
    """An array of which this process has all parts, on whatever devices.

    NumPy takes none of which another process has parts, too.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    result = np.empty(array.shape, array.dtype)
    missing = np.ones(array.shape, bool)
    for shard in array.addressable_shards:
        result[shard.index] = shard.data
        missing[shard.index] = False
    assert not missing.any(), "the model axis lies within a process"
    return result


def _join(config: DeviceConfig) -> bool:
    """Meets the other processes, if there are any."""
    processes = config.processes
    told = ()  # a slice's hosts find one another
    if processes.coordinator is not None:
        if processes.count == 1:
            return False
        meet(processes)
        # Of CPUs alone; the default of some versions is none.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        told = (processes.coordinator, processes.count, processes.index)
    elif not is_tpu_pod():
        return False
    try:
        jax.distributed.initialize(
            *told,
            initialization_timeout=processes.wait,
            heartbeat_timeout_seconds=processes.wait,
        )
    except jax.errors.JaxRuntimeError as error:
        raise LostProcess(
            f"the processes did not meet at {processes.coordinator or 'TPU'} "
            f"in {processes.wait} s ({str(error).splitlines()[0]}). Start all "
            "of them, each with its own --processes.index."
        ) from None
    except (RuntimeError, ValueError) as error:
        raise AlbertError(
            f"JAX cannot meet other processes ({str(error).splitlines()[0]}). "
            "Begin in a Python process that has not used JAX before."
        ) from None
    return True
