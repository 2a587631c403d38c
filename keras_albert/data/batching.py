"""NumPy batches as a tf.data.Dataset."""

from collections.abc import Callable, Iterator
from types import ModuleType

from keras_albert.config import AlbertError


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


def import_tensorflow() -> ModuleType:
    """TensorFlow, which the package does not import on its own account.

    Raises:
        AlbertError: it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise AlbertError(
            "TensorFlow is needed for the tf.data pipeline: "
            "pip install 'keras-albert[tensorflow]'"
        ) from None
    return tf
