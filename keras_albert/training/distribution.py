"""Devices: the one place that asks which backend runs."""

import keras


def leave_gpu_to_backend() -> None:
    """Keeps TensorFlow's data pipeline from reserving JAX's or torch's GPU.

    Must come before TensorFlow makes its first tensor.
    """
    if keras.backend.backend() == "tensorflow":
        return
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
