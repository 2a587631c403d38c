"""Converts streams of batches of texts, given to `fit`, to batches of ids.

A stream is a tf.data dataset, whose graph then tokenizes; a torch DataLoader,
whose worker processes then tokenize; or an iterator, such as a generator. A
PyDataset of Keras gives ids, which are checked, and labels or their names.
"""

import contextlib
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.modeling.inputs import (
    as_array,
    axes_of,
    check_has_ids,
    check_inputs,
    holds_text,
)
from keras_albert.modeling.labels import (
    check_finite,
    graph_labels,
    is_sparse,
    labels_of,
)
from keras_albert.private_apis import without_iterator

READ_ONCE = (
    "an iterator, such as a generator, can be read once, and is read again "
    "here. Give a tf.data.Dataset or a DataLoader, also as `validation_data`; "
    "or epochs=1."
)


def is_stream(data) -> bool:
    """Whether `data` is a stream of batches, with labels or without."""
    return is_dataset(data) or _is_loader(data) or isinstance(data, Iterator)


def checked_py_dataset(data: keras.utils.PyDataset, model):
    """The PyDataset with checked ids, and with numbers in place of label names.

    Raises AlbertError if its first batch has texts: Keras expects rows of one
    length of it, which texts do not have. The first batch is read for this,
    once more than Keras does. With `use_multiprocessing` it is the only one
    that is checked, and names stay as they are: the model would have to be sent
    to the processes.
    """
    if isinstance(data, CheckedPyDataset):  # Keras validates with it
        return data
    if data.num_batches != 0:  # None, of a dataset without an end, is not 0
        batch = data[0]
        _check_gives_ids(batch)
        if data.use_multiprocessing:
            batch_of_ids(model, batch)
            return data
    return CheckedPyDataset(data, model)


class CheckedPyDataset(keras.utils.PyDataset):
    """A PyDataset whose batches are converted by `batch_of_ids`."""

    def __init__(self, data: keras.utils.PyDataset, model):
        super().__init__(data.workers, False, data.max_queue_size)
        self._data, self._model = data, model

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    def __getitem__(self, index: int) -> tuple:
        return batch_of_ids(self._model, self._data[index])

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()


def _check_gives_ids(batch) -> None:
    if holds_text(batch[0] if isinstance(batch, tuple) else batch):
        raise AlbertError(
            "a keras.utils.PyDataset must give ids, of one length. Received: "
            "texts. Give a generator, a tf.data dataset or a torch DataLoader "
            "of texts; or make ids in `__getitem__`: Tokenizer(...)(texts, "
            "max_length=128, pad_to=128)."
        )


def check_read_once(given: dict, validation_data) -> None:
    """Raises AlbertError for an iterator that later epochs would read again.

    Keras keeps the first two batches of a generator, and on JAX and PyTorch
    these alone would be every later epoch. `given` are arguments of `fit`.
    """
    # Epochs, numbered from 1, and those after which Keras validates.
    epochs = range(
        given.get("initial_epoch", 0) + 1, given.get("epochs", 1) + 1
    )
    measured = given.get("validation_freq", 1)
    if isinstance(measured, int):
        measured = range(measured, epochs.stop, max(measured, 1))
    else:
        measured = {*measured}
    validations = (epoch for epoch in measured if epoch in epochs)
    for data, steps, times in (
        (given.get("x"), "steps_per_epoch", epochs),
        (validation_data, "validation_steps", validations),
    ):
        is_whole = given.get(steps) is None
        if isinstance(data, Iterator) and is_whole and _several(times):
            raise AlbertError(READ_ONCE)


def _several(values: Iterable) -> bool:
    return len([*itertools.islice(values, 2)]) > 1


def is_dataset(data) -> bool:
    """Whether `data` is a tf.data dataset; does not import TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(data, tensorflow.data.Dataset)


def _is_loader(data) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.utils.data.DataLoader)


def batches_of_ids(data, model):
    """The stream with ids instead of texts, and with checked labels."""
    if is_dataset(data):
        return _dataset_of_ids(data, model)
    on_tensorflow = keras.backend.backend() == "tensorflow"
    if _is_loader(data):
        data = _loader_of_ids(data, model)
        return _as_dataset(data, iter(data)) if on_tensorflow else data
    batches = (_numpy(batch_of_ids(model, batch)) for batch in data)
    return _as_dataset(None, batches) if on_tensorflow else batches


# tf.data datasets.


def _dataset_of_ids(dataset, model):
    import tensorflow as tf

    spec = dataset.element_spec
    x, *rest = spec if isinstance(spec, tuple) else (spec,)
    has_texts = _is_text_spec(x)
    if has_texts:
        for name, part in model.named_texts(x).items():
            rank = 2 if name == "choices" else 1
            if part.shape.rank not in (rank, None):
                raise AlbertError(
                    f"a dataset must give batches of texts; `{name}` has "
                    f"{part.shape.rank} axes where {rank} are expected. Make "
                    "batches: dataset.batch(32)."
                )
        dataset = dataset.map(model.preprocessor, tf.data.AUTOTUNE)
    else:
        check_has_ids(x)
    has_labels = bool(rest) and (
        _is_text_spec(rest[0])
        or any(map(is_sparse, keras.tree.flatten(model.loss)))
    )
    if has_labels:
        dataset = dataset.map(
            tf.autograph.experimental.do_not_convert(
                functools.partial(_with_checked_labels, model)
            ),
            tf.data.AUTOTUNE,
        )
    if has_texts or has_labels:
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    return dataset


def _is_text_spec(spec) -> bool:
    return any(
        getattr(each, "dtype", None) == "string"
        for each in keras.tree.flatten(spec)
    )


def _with_checked_labels(model, x, y, *weights):
    import tensorflow as tf

    shape = tf.shape(x["token_ids"])
    return x, graph_labels(y, model.classes(shape), model.loss), *weights


# Generators and DataLoaders.


def batch_of_ids(model, batch) -> tuple:
    """Converts a batch of texts to (x,), (x, y) or (x, y, sample_weight).

    The batch is x alone, or such a tuple or list, with texts or ids for x.
    Their values are checked here: a compiled model cannot check them.
    """
    if isinstance(batch, tuple) and len(batch) == 2 and _is_text_list(batch):
        raise AlbertError(
            "a stream must give batches: lists of texts, and of labels. "
            f"Received: {batch!r:.80}, which may be a single example."
        )
    is_parts = isinstance(batch, list | tuple) and not _is_text_list(batch)
    x, *rest = batch if is_parts else (batch,)
    while rest and rest[-1] is None:
        rest.pop()
    if holds_text(x):
        x = model.preprocess(_as_named_texts(x))
    else:
        axes = axes_of(model, x)
        check_inputs(model.config, _numpy(x), axes, model.takes_packed)
    if rest:
        rest[0] = labels_of(model, rest[0], x)
        rest[1:] = map(as_array, rest[1:])
        for weights in rest[1:]:
            check_finite("sample weight", weights)
    return x, *rest


def _is_text_list(values) -> bool:
    is_list = isinstance(values, list | tuple) and len(values) > 0
    return is_list and isinstance(values[0], str | bytes)


def _as_named_texts(x):
    """Converts the tuples of a DataLoader to the lists of `preprocess`."""
    if isinstance(x, list | tuple):
        is_pair = len(x) == 2 and all(map(_is_text_list, x))
        return tuple(map(list, x)) if is_pair else list(x)
    return x


def _loader_of_ids(loader, model):
    """A copy of a DataLoader that tokenizes in its worker processes."""
    import torch

    default = torch.utils.data.default_collate
    clone = without_iterator(loader)
    clone.collate_fn = functools.partial(
        _collated, model, loader.collate_fn, loader.collate_fn is default
    )
    return clone


def _collated(model, collate: Callable, is_default: bool, samples) -> tuple:
    import torch

    batch = collate(samples)
    x = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if is_default and isinstance(x, dict) and "choices" in x:
        # torch's default_collate has transposed the choices, from B lists of C
        # texts to C lists of B texts. This transposes them back.
        x["choices"] = [list(row) for row in zip(*x["choices"], strict=True)]
    has_parts = is_default and isinstance(batch, list) and len(batch) > 1
    # default_collate also makes a list of a batch of texts without labels.
    if has_parts and not _is_text_list(samples):
        batch[1] = _by_rows(batch[1], samples[0][1])
    return keras.tree.map_structure(torch.as_tensor, batch_of_ids(model, batch))


def _by_rows(labels, of_one):
    """Transposes C columns of B labels back to B lists of C labels.

    Columns are what torch's default_collate makes of lists. `of_one` are the
    labels of one example; if they are no list, nothing is changed.
    """
    import torch

    if isinstance(of_one, dict):
        return {name: _by_rows(labels[name], of_one[name]) for name in of_one}
    if not isinstance(of_one, list) or not of_one:
        return labels
    if isinstance(labels[0], torch.Tensor):
        return torch.stack(labels, dim=1)
    return [list(row) for row in zip(*labels, strict=True)]


def _numpy(batch):
    return keras.tree.map_structure(
        lambda value: (
            value.numpy(force=True)
            if hasattr(value, "detach")  # a PyTorch tensor
            else np.asarray(value)
        ),
        batch,
    )


def _as_dataset(loader, batches: Iterator[tuple]):
    """Makes a tf.data dataset of batches whose shapes may differ.

    Keras would also convert a generator, but if the first two batches have the
    same length, it expects that length of all batches. The first batch is read
    to find out the structure. A dataset iterates over a `loader` in each epoch,
    and over a generator, for which `loader` is None, only once. Several
    iterations may share that one pass, such as validations of
    `validation_steps` batches, or the one by which Keras builds a model under a
    strategy and which reads a single batch.
    """
    import tensorflow as tf

    first = next(batches, None)
    if first is None:
        raise AlbertError(
            "expected one batch or more. Received: a generator or DataLoader "
            "without any. A generator can be read only once: make a new one."
        )
    first = _numpy(first)

    start = first  # of the next iteration, until a later batch was read

    def of_generator() -> Iterator[tuple]:
        nonlocal start
        batch = next(batches, None) if start is None else start
        if batch is None:
            raise AlbertError(READ_ONCE)
        yield batch
        for batch in batches:
            start = None
            yield batch

    def make() -> Iterator[tuple]:
        return of_generator() if loader is None else map(_numpy, loader)

    signature = tf.nest.map_structure(
        lambda value: tf.TensorSpec([None] * value.ndim, value.dtype), first
    )
    dataset = tf.data.Dataset.from_generator(make, output_signature=signature)
    if loader is not None and hasattr(loader.dataset, "__len__"):
        count = tf.data.experimental.assert_cardinality(len(loader))
        dataset = dataset.apply(count)
    if loader is None:  # prefetching could read batches that nobody needs
        return dataset
    return dataset.prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def unwrapped_errors(model) -> Iterator[None]:
    """Extracts an AlbertError from the long error that a pipeline raises.

    tf.data and the worker processes of a DataLoader wrap an AlbertError in
    errors of their own. On JAX, Keras holds the weights outside the model
    during `fit`; they are written back first.
    """
    try:
        yield
    except BaseException as error:
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        # The message is a line of a traceback (Python), or a quoted string in
        # a list (an Assert operation).
        found = re.findall(r"AlbertError: (.+?)(?=['\"]\]|\n|$)", str(error))
        if not found:
            raise
        message = found[-1].replace("\\'", "'")
        if message.count("]") > message.count("["):  # of the list
            message = message.removesuffix("]")
        raise AlbertError(message) from None
