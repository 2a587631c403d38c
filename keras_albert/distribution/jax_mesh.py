"""JAX: divides batches, and optionally weights, over a mesh of devices.

All processes run the same compiled program over one mesh of all their devices.
XLA's SPMD partitioner inserts the exchange of gradients, so that `model.fit`
needs no changes; this file describes the mesh and moves arrays.
"""

import contextlib
import functools
import math
from collections.abc import Callable

import jax
import keras
import numpy as np
from jax import tree

from keras_albert.distribution.config import DeviceConfig
from keras_albert.distribution.devices import Devices
from keras_albert.distribution.rendezvous import wait_for_processes
from keras_albert.errors import AlbertError, LostProcess, reason_of
from keras_albert.modeling.config import AlbertConfig
from keras_albert.private_apis import is_tpu_pod, jax_key_value_service

BATCH_AXIS, MODEL_AXIS = "batch", "model"


class Mesh(Devices):
    """Distribution over JAX devices with `keras.distribution`.

    Args:
        config: `distribution`: data (divides batches) or model (weights, too).
    """

    def __init__(self, config: DeviceConfig):
        self._joined = _join(config)
        self.index, self.count = jax.process_index(), jax.process_count()
        # Key-value store that JAX's coordinator offers to all processes.
        self._service = jax_key_value_service()
        self._wait = config.processes.wait
        self._exchanges = self._calls = 0
        # How many models were trained. For each flag of `any`: from which call
        # on it is true for the newest model.
        self._models, self._raised = 0, {}
        self._model_parallel = config.model_parallel
        # The model axis must lie within a process: `whole` then finds a copy of
        # all weights in each process, and halves of a block exchange nothing
        # over the network. Sorting puts the devices of a process side by side.
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        devices = np.array(devices)
        self._before = keras.distribution.distribution()
        if jax.local_device_count() % self._model_parallel:
            self.close()
            raise AlbertError(
                "`model_parallel` must divide the number of devices of a "
                f"process, {jax.local_device_count()}. Received: "
                f"model_parallel={self._model_parallel}."
            )
        self.replicas = len(devices) // self._model_parallel
        if self._model_parallel > 1:
            devices = devices.reshape(-1, self._model_parallel)
        keras.distribution.set_distribution(distribution_over(devices))

    def check(self, config: AlbertConfig) -> None:
        check_shares(config, self._model_parallel)

    def prepare(self, model: keras.Model) -> None:
        self._models += 1
        self._raised = {}

    @contextlib.contextmanager
    def alone(self):
        # A model created while a distribution is set would be spread over the
        # devices of all processes, which would all have to take part.
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
        if self.count > 1:
            return self._outputs_alone(model, x)
        # The replicas need equal numbers of rows: copies of the last row fill
        # up the batch, and their outputs are dropped.
        rows = len(tree.leaves(x)[0])
        missing = -rows % self.replicas

        def filled(array):
            return np.pad(
                array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), "edge"
            )

        outputs = model.predict_on_batch(tree.map(filled, x))
        return tree.map(lambda array: array[:rows], outputs)

    def _outputs_alone(self, model: keras.Model, x):
        """Computes outputs on one device, with a copy of the weights."""
        weights, rest = (
            [np.asarray(variable.value) for variable in group]
            for group in (
                model.trainable_variables,
                model.non_trainable_variables,
            )
        )
        # With the weights as NumPy arrays, and without a distribution, the
        # program only uses a device of this process. The others need not run
        # it at the same time, as they must with arrays of the whole mesh.
        with self.alone():
            outputs = _forward(model, weights, rest, x)
        return tree.map(np.asarray, outputs)

    def any(self, *flags: bool) -> list[bool]:
        """Says for each flag whether it is true in at least one process.

        This is called in every step, so it must not wait for other processes as
        `share` does. A process that has a flag writes the number of its next
        call but one to the key-value store, and all processes see the flag from
        that call on. None of them can have passed that call before the number
        was written: before a process makes a call, it has read the loss of the
        last step but one, which all compute together.
        """
        if self.count == 1:
            return list(flags)
        self._calls += 1
        found = []
        for number, flag in enumerate(flags):
            if number not in self._raised:
                key = f"any/{self._models}/{number}"
                if flag:
                    # The store raises if another process has set the key.
                    with contextlib.suppress(jax.errors.JaxRuntimeError):
                        self._service.key_value_set(key, str(self._calls + 2))
                # The store raises if there is no such key.
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    call = self._service.key_value_try_get(key)
                    self._raised[number] = int(call)
            found.append(self._calls >= self._raised.get(number, math.inf))
        return found

    def share(self, text: str) -> list[str]:
        if self.count == 1:
            return [text]
        # Keys cannot be overwritten, so each call has its own. All processes
        # call `share` equally often and therefore use the same number.
        self._exchanges += 1
        key = f"share/{self._exchanges}"
        # The "=" is there because the store does not accept empty values.
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
                    f"({reason_of(error)}). Start all processes again: the "
                    "run goes on from its last checkpoint, if any."
                ) from None
            texts.append(found.removeprefix("="))
        return texts

    def close(self) -> None:
        keras.distribution.set_distribution(self._before)
        if self._joined:
            # It raises if another process has ended already.
            with contextlib.suppress(RuntimeError):
                jax.distributed.shutdown()


def distribution_over(
    devices: np.ndarray,
) -> keras.distribution.DataParallel | keras.distribution.ModelParallel:
    """The Keras distribution over an array of JAX devices.

    [D] gives data parallelism; [D, M] also divides the weights among the M
    devices of each row. Each process feeds only its own rows of a batch: Keras
    does not shard the dataset.
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
    """How ALBERT's weights are divided over the model axis of a mesh.

    Each device computes some of the attention heads and some of the units of
    the feed-forward layer. The first kernels of each half of a block are
    divided along their outputs and the last kernel along its inputs, so that
    the devices exchange data once in each half (Shoeybi et al. 2019,
    arXiv:1909.08053, section 3). Embeddings are small: every device has a copy.
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


def compiled(model: keras.Model, function: Callable) -> Callable:
    """`function` with the weights of a model as further arguments, compiled."""

    @jax.jit
    def pure(weights, *arguments):
        mapping = zip(model.variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            return function(*arguments)

    return lambda *arguments: pure(
        [variable.value for variable in model.variables], *arguments
    )


def check_shares(config: AlbertConfig, shares: int) -> None:
    """Raises AlbertError unless `shares` divides the model's weights evenly."""
    for name in ("num_attention_heads", "intermediate_size"):
        size = getattr(config, name)
        if size % shares:
            raise AlbertError(
                f"`model_parallel` must divide the model's {name}={size}. "
                f"Received: model_parallel={shares}."
            )


def _join(config: DeviceConfig) -> bool:
    """Connects to the other processes; False if this is the only one."""
    processes = config.processes
    address = ()  # on a TPU slice JAX finds the other hosts itself
    if processes.coordinator is not None:
        if processes.count == 1:
            return False
        # Before JAX, whose own rendezvous gives no reasons.
        wait_for_processes(processes)
        # Only used by CPUs, for which some versions of JAX have no default.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = (processes.coordinator, processes.count, processes.index)
    elif not is_tpu_pod():
        return False
    try:
        jax.distributed.initialize(
            *address,
            initialization_timeout=processes.wait,
            heartbeat_timeout_seconds=processes.wait,
        )
    except jax.errors.JaxRuntimeError as error:
        raise LostProcess(
            "the processes could not connect to one another at "
            f"{processes.coordinator or 'TPU'} in {processes.wait} s "
            f"({reason_of(error)}). Start all of them, each with its own "
            "--processes.index."
        ) from None
    except (RuntimeError, ValueError) as error:
        raise AlbertError(
            f"JAX cannot connect to other processes ({reason_of(error)}). "
            "Begin in a Python process that has not used JAX before."
        ) from None
    return True
