"""Makes tf.data datasets of NumPy batches."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from keras_albert.allocator import keep_freed_memory_again
from keras_albert.errors import (
    AlbertError,
    check_positive,
    is_whole,
    optional_import,
)


def batch_dataset(
    batches: Callable[[], Iterator], signature, count: int | None
):
    """Makes a tf.data.Dataset of NumPy batches, with two batches prefetched.

    `batches` is called at the start of every pass and returns `count` batches,
    or endless ones if that is None. `signature` describes one batch.
    """
    tf = import_tensorflow()

    def generated():
        keep_freed_memory_again()  # TensorFlow has changed its limits
        yield from batches()

    dataset = tf.data.Dataset.from_generator(
        generated, output_signature=signature
    )
    cardinality = tf.data.INFINITE_CARDINALITY if count is None else count
    return dataset.apply(
        tf.data.experimental.assert_cardinality(cardinality)
    ).prefetch(2)


def without_tuning(dataset):
    """The dataset without tf.data's autotuning.

    The thread of the autotuner sleeps between its measurements, each time twice
    as long, up to a minute. An iterator that is deleted before its end, as
    `fit` does, waits for that thread, perhaps as long as the pass took.
    """
    options = import_tensorflow().data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def host_rows(batch_size: int, host_index: int, host_count: int) -> np.ndarray:
    """The rows of each global batch that a host makes, int64.

    There are batch_size / host_count of them. Example: of a batch of 6, host 1
    of 2 makes rows 3, 4 and 5.

    Raises AlbertError unless the hosts divide the batch and have this index.
    """
    check_positive("batch_size", batch_size)
    check_positive("host_count", host_count)
    if batch_size % host_count:
        raise AlbertError(
            "`batch_size` counts the examples of all hosts and must be a "
            f"multiple of `host_count`. Received: batch_size={batch_size}, "
            f"host_count={host_count}."
        )
    if not is_whole(host_index) or not 0 <= host_index < host_count:
        raise AlbertError(
            "`host_index` must be an integer from 0 to host_count - 1. "
            f"Received: host_index={host_index!r}, host_count={host_count}."
        )
    rows = batch_size // host_count
    return host_index * rows + np.arange(rows)


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow, which is an optional dependency.

    It feeds the data on every backend. On others than its own it is kept from
    GPUs, whose memory it would reserve; that is impossible if the program has
    already computed something with TensorFlow.
    """
    import keras  # and with it PyTorch, which must come before TensorFlow

    tf = optional_import("tensorflow", "tensorflow", "the tf.data pipeline")
    if keras.backend.backend() != "tensorflow":
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
    return tf
