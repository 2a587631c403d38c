"""Devices: the one place that asks which backend runs."""

import os

import keras
import numpy as np

from keras_albert.data.batching import import_tensorflow


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

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return [state.numpy() for state in states]


def set_random_states(states: list[np.ndarray]) -> None:
    """Goes back to what `random_states` gave."""
    if not states:
        return
    import torch

    cpu, *devices = [torch.from_numpy(state) for state in states]
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(devices)


def leave_gpu_to_backend() -> None:
    """Keeps a library that only helps from reserving the backend's GPU.

    TensorFlow feeds the data, JAX comes with Orbax. Must come before either
    makes its first tensor.
    """
    if keras.backend.backend() != "tensorflow":
        import_tensorflow().config.set_visible_devices([], "GPU")
    if keras.backend.backend() != "jax":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
