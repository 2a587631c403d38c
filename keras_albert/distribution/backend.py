"""Opens the devices of a run, and what else depends on the backend of Keras.

The training code asks this module and does not look at the backend itself.
"""

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.distribution.config import STRATEGIES, DeviceConfig
from keras_albert.distribution.devices import Devices, OneDevice
from keras_albert.errors import AlbertError, LostProcess
from keras_albert.private_apis import without_retracing_warnings
from keras_albert.redirection import redirected


def _strategy(config: DeviceConfig, accumulate: int) -> Devices:
    from keras_albert.distribution.tf_strategy import Strategy

    return Strategy(config, accumulate)


def _mesh(config: DeviceConfig, accumulate: int) -> Devices:
    from keras_albert.distribution.jax_mesh import Mesh

    return Mesh(config)


def _ranks(config: DeviceConfig, accumulate: int) -> Devices:
    from keras_albert.distribution.torch_ddp import Ranks

    return Ranks(config)


# For each backend the values of `distribution` that it supports, besides auto
# and none, and what opens such devices.
_KINDS: dict[str, dict[str, Callable[[DeviceConfig, int], Devices]]] = {
    "tensorflow": dict.fromkeys(STRATEGIES, _strategy),
    "jax": {"data": _mesh, "model": _mesh},
    "torch": {"data": _ranks},
}


@contextlib.contextmanager
def opened(config: DeviceConfig, accumulate: int = 1) -> Iterator[Devices]:
    """Context manager that opens the devices of a run and closes them.

    In the context, all processes but the first print only errors. `accumulate`
    is the number of parts of a batch whose gradients are averaged.

    Raises:
        AlbertError: the devices or this `distribution` do not exist.
        LostProcess: another process cannot be reached. During a step JAX may
            end the process instead.
    """
    backend = keras.backend.backend()
    chosen = _chosen_distribution(backend, config)
    config = dataclasses.replace(config, distribution=chosen)
    if config.steps_per_execution > 1 and chosen not in STRATEGIES:
        raise AlbertError(
            "`steps_per_execution` is for TensorFlow's strategies: "
            f"{', '.join(STRATEGIES)}. Received: "
            f"steps_per_execution={config.steps_per_execution} with "
            f"distribution={chosen!r}. Leave it out."
        )
    if chosen == "none":
        devices = OneDevice()
    else:
        devices = _KINDS[backend][chosen](config, accumulate)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_own_keras_settings())
            if not devices.is_first:
                silence = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(redirected(silence))
            yield devices
    except Exception as error:
        reason = devices.lost(error) if devices.count > 1 else None
        if reason is None:
            raise
        raise LostProcess(
            f"process {devices.index} does not reach the others "
            f"({reason[:200]}). Start all of them again: the run goes on from "
            "its last checkpoint, if it has one."
        ) from error
    finally:
        devices.close()
        # Frees the iterators of the model now. If they lived until the
        # interpreter exits, their threads could abort it or wait for ever.
        gc.collect()


def _chosen_distribution(backend: str, config: DeviceConfig) -> str:
    """Resolves `auto`; checks that the backend supports any other value."""
    if backend not in _KINDS:
        raise AlbertError(
            f"models are trained with the backends {', '.join(_KINDS)}. "
            f"Received: KERAS_BACKEND={backend}. Set it to one of them."
        )
    chosen = config.distribution
    has_coordinator = config.processes.coordinator is not None
    if has_coordinator and backend == "tensorflow":
        raise AlbertError(
            "TensorFlow reads its processes from TF_CONFIG. Received: "
            f"processes.coordinator={config.processes.coordinator!r}. Leave "
            "out --processes.coordinator, --processes.count and "
            "--processes.index, or take another KERAS_BACKEND."
        )
    if has_coordinator and chosen == "none":
        raise AlbertError(
            "`distribution=none` trains in one process. Received: "
            f"processes.coordinator={config.processes.coordinator!r}. Leave "
            "one of them out."
        )
    if chosen in ("auto", "none"):
        several = chosen == "auto" and _several_devices(backend, config)
        return several or "none"
    if chosen not in _KINDS[backend]:
        raise AlbertError(
            "`distribution` must be auto, none, "
            f"{', '.join(_KINDS[backend])} with {backend}. Received: "
            f"{chosen!r}. Choose one of them, or another KERAS_BACKEND."
        )
    return chosen


def _several_devices(backend: str, config: DeviceConfig) -> str | None:
    """The distribution over several devices; None if only one is visible."""
    has_coordinator = config.processes.coordinator is not None
    if backend == "tensorflow":
        tf = import_tensorflow()
        if "TPU_NAME" in os.environ:
            return "tpu"
        if "TF_CONFIG" in os.environ:
            return "multiworker"
        several = len(tf.config.list_logical_devices("GPU")) > 1
        return "mirrored" if several else None
    if backend == "jax":
        import jax

        from keras_albert.private_apis import is_tpu_pod

        # `jax.device_count` must come last: once JAX has initialized its
        # devices, it cannot connect to other processes any more.
        several = has_coordinator or is_tpu_pod() or jax.device_count() > 1
        return "data" if several else None
    from keras_albert.distribution.torch_ddp import started_by_torchrun

    if has_coordinator or started_by_torchrun():
        return "data"
    import torch

    if torch.cuda.device_count() > 1:
        print(
            f"note: one of {torch.cuda.device_count()} GPUs is used; for all "
            "start with torchrun --nproc-per-node=gpu -m keras_albert.cli",
            file=sys.stderr,
        )
    return None


def loss_normalizer(weight, epsilon: float):
    """The number by which a replica divides the sum of its losses.

    It is computed from the weight of the whole batch, not from that of the
    replica's rows. The result of training then does not depend on which replica
    gets which row. TensorFlow sums the gradients of the replicas; PyTorch
    averages them, so that there the number is divided by the number of
    processes. A single device, and a JAX program on all devices, see the whole
    batch at once. `epsilon` avoids a division by 0.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_albert.distribution.tf_strategy import sum_over_replicas

        return sum_over_replicas(weight) + epsilon
    if backend == "torch":
        from keras_albert.distribution.torch_ddp import (
            processes,
            sum_over_processes,
        )

        return (sum_over_processes(weight) + epsilon) / processes()
    return weight + epsilon


def whole_batch(x) -> tuple[Any, Any]:
    """The rows of all replicas, [G, ...], and the index of this one's first.

    Gradients flow back to the replica that has the row. A single device, and a
    JAX program on all devices, see the whole batch at once.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_albert.distribution.tf_strategy import rows_of_replicas

        return rows_of_replicas(x)
    if backend == "torch":
        from keras_albert.distribution.torch_ddp import rows_of_processes

        return rows_of_processes(x)
    return x, 0


def one_process() -> bool:
    """Whether this is the only process of JAX; True on other backends."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_count() == 1


def to_numpy(variable) -> np.ndarray:
    """The whole value of a variable, even if several devices hold parts.

    On JAX a process holds all parts of a weight, as the model axis of the mesh
    lies within a process.
    """
    return ops.convert_to_numpy(variable)


def optimizer_reduces_replicas() -> bool:
    """Whether Keras's optimizer sums the gradients of replicas itself.

    Only the optimizer of the TensorFlow backend does, for tf.distribute. On
    other backends it receives gradients that are already reduced.
    """
    return keras.backend.backend() == "tensorflow"


def compiled(model: keras.Model, function: Callable) -> Callable:
    """A function that reads weights of a model, compiled for inference.

    Its arguments and its result are arrays, or lists and dicts of arrays. On
    PyTorch it is not compiled, and computes no gradients.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        graph = import_tensorflow().function(
            function, autograph=False, reduce_retracing=True
        )

        def quietly(*arguments):
            with without_retracing_warnings():
                return graph(*arguments)

        return quietly
    if backend == "jax":
        from keras_albert.distribution.jax_mesh import compiled

        return compiled(model, function)
    import torch

    def with_tensors(*arguments):
        with torch.no_grad():
            return function(
                *keras.tree.map_structure(ops.convert_to_tensor, arguments)
            )

    return with_tensors


def traces_for_tensorflow() -> bool:
    """Whether this process can trace models into TensorFlow graphs."""
    return keras.backend.backend() == "tensorflow"


def random_states() -> list[np.ndarray]:
    """States of random generators that are not variables of the model.

    Only PyTorch has them: Keras draws the masks of Dropout layers from them.
    On other backends the list is empty.
    """
    if keras.backend.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    if torch.cuda.is_available():  # the state of the current GPU
        states.append(torch.cuda.get_rng_state())
    return [state.numpy() for state in states]


def set_random_states(states: list[np.ndarray]) -> None:
    """Restores the states that `random_states` returned."""
    if not states:
        return
    import torch

    cpu, *device = [torch.from_numpy(state) for state in states]
    torch.set_rng_state(cpu)
    if device and torch.cuda.is_available():
        torch.cuda.set_rng_state(device[0])


@contextlib.contextmanager
def _own_keras_settings() -> Iterator[None]:
    """Context manager in which settings of the user do not change a run.

    Keras adds metrics up in `floatx`, which has too few digits if it is 16 bits
    wide. For Keras a whole run is one epoch, which a limit on the steps of an
    epoch would end early.
    """
    own = {"floatx": "float32", "max_epochs": None, "max_steps_per_epoch": None}
    before = {name: getattr(keras.config, name)() for name in own}
    _set_keras(own)
    try:
        yield
    finally:
        _set_keras(before)


def _set_keras(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        getattr(keras.config, f"set_{name}")(value)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Context manager in which GPUs compute float32 products in float32.

    On NVIDIA's Ampere and later TensorFlow and JAX round the factors to TF32,
    which keeps 11 significant bits of 24; PyTorch does so if it is told to.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    elif backend == "tensorflow":
        experimental = import_tensorflow().config.experimental
        before = experimental.tensor_float_32_execution_enabled()
        experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            experimental.enable_tensor_float_32_execution(before)
    else:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def backend_and_device() -> str:
    """The backend and the kind of device that it uses, such as "jax (GPU)"."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        found = import_tensorflow().config.list_logical_devices()
        kinds = {each.device_type for each in found}
        kind = next(k for k in ("TPU", "GPU", "CPU") if k in kinds)
    elif backend == "jax":
        import jax

        kind = jax.default_backend().upper()
    else:
        kind = ops.zeros(()).device.type.upper().replace("CUDA", "GPU")
    return f"{backend} ({kind})"
