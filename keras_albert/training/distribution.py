"""Devices: the one place that asks which backend runs."""

import keras

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


def leave_gpu_to_backend() -> None:
    """Keeps TensorFlow's data pipeline from reserving JAX's or torch's GPU.

    Must come before TensorFlow makes its first tensor.
    """
    if keras.backend.backend() != "tensorflow":
        import_tensorflow().config.set_visible_devices([], "GPU")
