"""Devices: the one place that asks which backend runs."""

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.distribution.config import DeviceConfig
from keras_albert.distribution.devices import Devices, OneDevice
from keras_albert.errors import AlbertError, LostProcess

# What `distribution` may be on each backend, beside auto and none.
WAYS = {
    "tensorflow": ("mirrored", "multiworker", "tpu"),
    "jax": ("data", "model"),
    "torch": ("data",),
}


@contextlib.contextmanager
def opened(config: DeviceConfig, accumulate: int = 1) -> Iterator[Devices]:
    """The devices of a run, which are left at its end.

    All but the first process print nothing but errors.

    Args:
        config: which ones.
        accumulate: parts of a batch whose gradients are averaged for a step.

    Raises:
        AlbertError: there are no such devices, or the backend has no such way
            to use them.
        LostProcess: others cannot be reached, now or later.
    """
    backend = keras.backend.backend()
    way = _way(backend, config)
    config = dataclasses.replace(config, distribution=way)
    if config.steps_per_execution > 1 and way not in WAYS["tensorflow"]:
        raise AlbertError(
            "`steps_per_execution` is for TensorFlow's strategies: "
            f"{', '.join(WAYS['tensorflow'])}. Received: "
            f"steps_per_execution={config.steps_per_execution} with "
            f"distribution={way!r}. Leave it out."
        )
    if way == "none":
        devices = OneDevice()
    elif backend == "tensorflow":
        from keras_albert.distribution.tf_strategy import Strategy

        devices = Strategy(config, accumulate)
    elif backend == "jax":
        from keras_albert.distribution.jax_mesh import Mesh

        devices = Mesh(config)
    else:
        from keras_albert.distribution.torch_ddp import Ranks

        devices = Ranks(config)
    try:
        with contextlib.ExitStack() as stack:
            if not devices.is_first:
                silence = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(silence))
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
        # The model's iterators must not be left to the interpreter's end, which
        # their threads would abort, or wait for, and it for them.
        gc.collect()


def _way(backend: str, config: DeviceConfig) -> str:
    """What `auto` means here; others are checked."""
    way = config.distribution
    told = config.processes.coordinator is not None
    if told and backend == "tensorflow":
        raise AlbertError(
            "TensorFlow reads its processes from TF_CONFIG. Received: "
            f"processes.coordinator={config.processes.coordinator!r}. Leave "
            "--processes out, or take another KERAS_BACKEND."
        )
    if told and way == "none":
        raise AlbertError(
            "`distribution=none` trains in one process. Received: "
            f"processes.coordinator={config.processes.coordinator!r}. Leave "
            "one of them out."
        )
    if way in ("auto", "none"):
        several = way == "auto" and _several_devices(backend, config)
        return several or "none"
    if way not in WAYS[backend]:
        raise AlbertError(
            f"`distribution` must be auto, none, {', '.join(WAYS[backend])} "
            f"with {backend}. Received: {way!r}. Choose one of them, or "
            "another KERAS_BACKEND."
        )
    return way


def _several_devices(backend: str, config: DeviceConfig) -> str | None:
    """The way to use several devices, if this process knows of any."""
    told = config.processes.coordinator is not None
    if backend == "tensorflow":
        tf = import_tensorflow()
        if "TPU_NAME" in os.environ:
            return "tpu"
        if "TF_CONFIG" in os.environ:
            return "multiworker"
        return (
            "mirrored"
            if len(tf.config.list_logical_devices("GPU")) > 1
            else None
        )
    if backend == "jax":
        import jax

        from keras_albert.private_apis import is_tpu_pod

        # Asked for its devices, JAX meets no other process any more.
        several = told or is_tpu_pod() or jax.device_count() > 1
        return "data" if several else None
    from keras_albert.distribution.torch_ddp import started_by_torchrun

    if told or started_by_torchrun():
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
    """What a replica divides the sum of its losses by.

    The weight of the whole batch, so that it does not matter which replica has
    which row. TensorFlow then adds up the replicas' gradients, and PyTorch
    averages them. One device, and JAX's program, see the whole batch.

    Args:
        weight: the sum of the weights of the replica's own rows.
        epsilon: added to that of the whole batch.
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


def one_process() -> bool:
    """Whether JAX, if it is there, knows of no other process."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_count() == 1


def to_numpy(variable) -> np.ndarray:
    """A variable's value, wherever its parts are."""
    if keras.backend.backend() == "jax":
        from keras_albert.distribution.jax_mesh import whole

        return whole(variable.value)
    return ops.convert_to_numpy(variable)


def optimizer_reduces_replicas() -> bool:
    """Whether Keras's optimizer sums the gradients of replicas itself.

    TensorFlow's alone does, under tf.distribute; elsewhere gradients arrive
    summed.
    """
    return hasattr(keras.optimizers.Optimizer, "_all_reduce_sum_gradients")


def traces_for_tensorflow() -> bool:
    """Whether this process can trace graphs for TensorFlow's servers."""
    return keras.backend.backend() == "tensorflow"


def random_states() -> list[np.ndarray]:
    """States of generators that are no variables of a model.

    PyTorch's alone: Keras draws an unseeded Dropout layer's masks from them.
    """
    if keras.backend.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    if torch.cuda.is_available():  # that of the device in use
        states.append(torch.cuda.get_rng_state())
    return [state.numpy() for state in states]


def set_random_states(states: list[np.ndarray]) -> None:
    """Goes back to what `random_states` gave."""
    if not states:
        return
    import torch

    cpu, *device = [torch.from_numpy(state) for state in states]
    torch.set_rng_state(cpu)
    if device and torch.cuda.is_available():
        torch.cuda.set_rng_state(device[0])


def leave_gpu_to_backend() -> None:
    """Keeps a library that only helps from reserving the backend's GPU.

    TensorFlow feeds the data, JAX comes with Orbax. Must come before either
    makes its first tensor.
    """
    if keras.backend.backend() != "tensorflow":
        import_tensorflow().config.set_visible_devices([], "GPU")
    if keras.backend.backend() != "jax":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
