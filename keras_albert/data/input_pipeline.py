"""NumPy batches as a tf.data.Dataset."""

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from keras_albert.errors import AlbertError, check_positive, optional_import


def batch_dataset(
    batches: Callable[[], Iterator], signature, count: int | None
):
    """tf.data.Dataset of batches made in NumPy, two of them ahead.

    Args:
        batches: called at the start of every pass over the dataset.
        signature: structure of tf.TensorSpec, as one batch.
        count: batches in a pass; None: without end.
    """
    tf = import_tensorflow()
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=signature
    )
    cardinality = tf.data.INFINITE_CARDINALITY if count is None else count
    return dataset.apply(
        tf.data.experimental.assert_cardinality(cardinality)
    ).prefetch(2)


def without_tuning(dataset):
    """The dataset without tf.data's tuner.

    Its thread sleeps between looks, each time twice as long, up to a minute;
    an iterator that is given up before its end, as `fit` does, waits for it to
    wake: up to as long again as the pass took.
    """
    options = import_tensorflow().data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def host_rows(batch_size: int, host_index: int, host_count: int) -> np.ndarray:
    """int64 [B]: the rows of each global batch that a host makes.

    Host 1 of 2 makes rows 3, 4 and 5 of a batch of 6.

    Raises:
        AlbertError: `batch_size` is not a multiple of `host_count`, or there
            is no such host.
    """
    check_positive("batch_size", batch_size)
    check_positive("host_count", host_count)
    if batch_size % host_count:
        raise AlbertError(
            "`batch_size` counts the examples of all hosts and must be a "
            f"multiple of `host_count`. Received: batch_size={batch_size}, "
            f"host_count={host_count}."
        )
    if type(host_index) is not int or not 0 <= host_index < host_count:
        raise AlbertError(
            "`host_index` must be an integer from 0 to host_count - 1. "
            f"Received: host_index={host_index!r}, host_count={host_count}."
        )
    rows = batch_size // host_count
    return host_index * rows + np.arange(rows)


def import_tensorflow() -> ModuleType:
    """TensorFlow, which the package does not import on its own account.

    Raises:
        AlbertError: it is not installed.
    """
    return optional_import("tensorflow", "tensorflow", "the tf.data pipeline")
