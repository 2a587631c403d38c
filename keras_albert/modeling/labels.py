"""Converts label names to numbers and checks the range of labels for `fit`.

Without the check, a label out of range fails in the middle of a graph
(TensorFlow, PyTorch), or the model silently trains on nonsense (JAX).
"""

from typing import Any, NamedTuple

import keras
import numpy as np

from keras_albert.errors import AlbertError, is_number
from keras_albert.modeling.inputs import as_list

CORRECT = "Correct it: labels are numbered from 0."


class Classes(NamedTuple):
    """The valid labels of an output."""

    count: Any
    """labels are from 0 to count - 1: an int; an int32 scalar in a graph of
    TensorFlow; None if the shape of the inputs is not known"""
    why: str
    """what determines that number, for error messages"""
    names: tuple | None = None
    """names of the labels in order; None if they have none"""


def labels_of(model, y, x):
    """Converts labels `y` of inputs `x` to numbers and checks their range."""
    shape = x["token_ids"].shape if isinstance(x, dict) else ()
    return checked_labels(y, model.classes(shape), getattr(model, "loss", None))


def checked_labels(y, classes: dict, losses):
    """Converts label names to numbers and checks the range of labels.

    Args:
        y: an array, list, column or tensor of labels; or a dict of them.
        classes: `Classes` by the name of the output; the name is None if the
            model has a single output.
        losses: the losses that the model was compiled with. The range is only
            checked for sparse categorical cross-entropy.
    """
    return _of_outputs(_checked, y, classes, losses)


def class_weight_of(model, weights):
    """The argument `class_weight` of `fit`, with numbers in place of names.

    Keras ignores a key that is no class, such as a name, and takes the labels
    of several tokens for those of one example.
    """
    classes = model.classes((None, None, None)).get(None)
    if classes is None or not model.has_one_class:
        raise AlbertError(
            "`class_weight` is for models of which each example has one class. "
            f"Received: {type(model).__name__}. Give `sample_weight`."
        )
    if classes.count is None or not isinstance(weights, dict):
        return weights
    numbers = {
        _index(key, classes) if isinstance(key, str) else key: weight
        for key, weight in weights.items()
    }
    ignored = ignored_class(_loss(getattr(model, "loss", None), None))
    for number in numbers:
        if number not in range(classes.count) and number != ignored:
            raise AlbertError(
                f"`class_weight` has a weight for {number!r}. Expected numbers "
                f"from 0 to {classes.count - 1} ({classes.why}), or names of "
                "labels."
            )
        if not is_number(numbers[number]):
            raise AlbertError(
                "every weight of `class_weight` must be a finite number. "
                f"Received: {numbers[number]!r:.60} for {number!r}."
            )
    return numbers


def _of_outputs(check, y, classes: dict, losses):
    """Calls `check` for each output of a model, and returns what it returns.

    `check` is called with the labels, the classes and the loss of an output. A
    model with several outputs has a dict of labels, and gets a dict of results.
    """
    if isinstance(y, dict):
        return {
            name: check(value, classes.get(name), _loss(losses, name))
            for name, value in y.items()
        }
    if y is not None and len(classes) > 1:
        raise AlbertError(
            "a model with several outputs has labels for each. Received: "
            f"{type(y).__name__}. Give a dict of {' and '.join(classes)}."
        )
    return check(y, classes.get(None), _loss(losses, None))


def _checked(y, classes: Classes | None, loss):
    if y is None:
        return None
    is_tensor = keras.ops.is_tensor(y) or hasattr(y, "detach")
    array = _as_array(y)
    if array is None:  # for instance ragged rows, which Keras refuses
        _check_no_names(y)
        return y
    if array.dtype == object:
        _check_none_is_missing(array)
    if is_text(array):
        _check_not_one_hot(loss)
        array = np.array(
            [_index(label, classes) for label in array.ravel().tolist()],
            "int32",
        ).reshape(array.shape)
        is_tensor = False
    elif classes is not None and is_sparse(loss) and array.ndim < 2:
        _check_not_ambiguous(classes)
    if classes is not None and is_sparse(loss) and array.dtype.kind in "biuf":
        wrong = ~((array >= 0) & (array < classes.count) & (array % 1 == 0))
        if (ignored := ignored_class(loss)) is not None:
            wrong &= array != ignored
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise AlbertError(
                f"labels must be whole numbers from 0 to {classes.count - 1} "
                f"({classes.why}). Received: {array[wrong][0]} in row {row}. "
                f"{CORRECT}"
            )
    check_finite("label", array)
    return y if is_tensor else array


def check_finite(name: str, values) -> None:
    """Raises AlbertError if a number is NaN or infinite.

    One such label, or weight, would make all weights of a model NaN. `values`
    are an array, a tensor, or a dict of them; others are not checked.
    """
    if isinstance(values, dict):
        for each in values.values():
            check_finite(name, each)
        return
    array = _as_array(values)
    if array is None or array.dtype.kind != "f" or np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    raise AlbertError(
        f"every {name} must be a finite number. Received: "
        f"{array[tuple(place)]} in row {place[0]}. Correct it, or leave the "
        "example out."
    )


def _check_none_is_missing(array: np.ndarray) -> None:
    """Raises AlbertError if an example, or one of its tokens, has no label."""
    for row, labels in enumerate(array):
        if any(label is None for label in np.ravel(labels)):
            raise AlbertError(
                f"every label must be given. Received: None in row {row}. "
                "Correct it, or leave the example out."
            )


def _check_not_ambiguous(classes: Classes) -> None:
    """Raises AlbertError if a number could be a label's place or its name.

    Not for labels of tokens, [B, S]: `word_examples` has made places of names.
    """
    for place, name in enumerate(classes.names or ()):
        if str(name).isdecimal() and str(name) != str(place):
            raise AlbertError(
                f"the label named {name!r} has the number {place}, so that a "
                "number as a label could be the name of one label and the "
                "place of another. Received: numbers. Give the names, as texts."
            )


def _check_no_names(y) -> None:
    """Raises AlbertError if examples have lists of label names."""
    rows = [row for row in y if isinstance(row, list | tuple)]
    names = [name for row in rows for name in row if isinstance(name, str)]
    if names:
        raise AlbertError(
            "an example with several labels needs a 0 or 1 for each label of "
            f"the model. Received: a list with {names[0]!r:.60}. Make an array "
            "of them: [[name in row for name in model.labels] for row in y]; "
            "or use the task multilabel of keras_albert.finetune, which reads "
            "names."
        )


def _as_array(y) -> np.ndarray | None:
    if hasattr(y, "detach"):  # a PyTorch tensor; any backend accepts it
        y = y.detach().cpu()
    try:
        return np.asarray(y if hasattr(y, "dtype") else as_list(y))
    except (TypeError, ValueError):
        return None


def is_text(array: np.ndarray) -> bool:
    """Whether an array holds strings."""
    if array.dtype.kind == "O":
        return any(isinstance(each, str | bytes) for each in array.ravel())
    return array.dtype.kind in "SUT"


def _index(label, classes: Classes | None) -> int:
    check_named(label, classes)
    name = label.decode() if isinstance(label, bytes) else str(label)
    names = [*map(str, classes.names)]
    if name not in names:
        raise AlbertError(
            f"{unknown(classes)}. Received: {name!r:.60}. Correct it."
        )
    return names.index(name)


def check_named(label, classes: Classes | None) -> None:
    """Raises AlbertError for text labels if the output has no label names.

    `classes` is None if the labels of the output are not classes.
    """
    if classes is None:
        raise AlbertError(
            f"labels of this model must be numbers. Received: {label!r:.60}. "
            "Pairs of texts without labels go in as a tuple in a tuple, "
            "((texts, pairs),), or as a dict of `text` and `pair`."
        )
    if classes.names is None:
        raise AlbertError(
            "labels must be numbers where the model has no names for them. "
            f"Received: {label!r:.60}. Number them from 0, or name them when "
            f"the model is made: labels=[...] ({classes.why})."
        )


def unknown(classes: Classes) -> str:
    """The first part of the error message for an unknown label name."""
    shown = ", ".join(repr(str(name)) for name in classes.names[:20])
    more = ", ..." if len(classes.names) > 20 else ""
    return f"a label must be one of {shown}{more}"


# Properties of losses.


def _loss(losses, name: str | None):
    """The loss of an output among those that a model was compiled with."""
    if isinstance(losses, list | tuple) and len(losses) == 1:
        return losses[0]
    return losses.get(name) if isinstance(losses, dict) else losses


def is_sparse(loss) -> bool:
    """Whether a loss is sparse categorical cross-entropy."""
    kind = keras.losses.SparseCategoricalCrossentropy
    return _is_loss(loss, kind, "sparse_categorical_crossentropy")


def _is_loss(loss, kind: type, name: str) -> bool:
    """Whether a loss is of a class, or Keras's function of that name."""
    names = (loss, getattr(loss, "__name__", None))
    return isinstance(loss, kind) or name in names


def _check_not_one_hot(loss) -> None:
    """Raises AlbertError for a loss that takes no names of labels."""
    kind = keras.losses.CategoricalCrossentropy
    if _is_loss(loss, kind, "categorical_crossentropy"):
        raise AlbertError(
            "names of labels need the loss SparseCategoricalCrossentropy. "
            "Received: CategoricalCrossentropy, which needs a 0 or 1 for each "
            "label."
        )


def ignored_class(loss) -> int | None:
    """The label that a loss ignores, or None."""
    return getattr(loss, "ignore_class", None)


# The same checks in the graph of a tf.data pipeline.


def graph_labels(y, classes: dict, losses):
    """`checked_labels` for tensors in a TensorFlow graph.

    A wrong label fails an Assert operation of the graph, whose message
    `streams.unwrapped_errors` extracts from the error of TensorFlow.
    """
    return _of_outputs(_graph_checked, y, classes, losses)


def _graph_checked(y, classes: Classes | None, loss):
    import tensorflow as tf

    if y.dtype == tf.string:
        _check_not_one_hot(loss)
        check_named("a text", classes)
        names = tf.constant([*map(str, classes.names)])
        hits = tf.equal(y[..., tf.newaxis], names)
        y = _asserted(
            tf.argmax(hits, axis=-1, output_type=tf.int32),
            tf.reduce_any(hits, axis=-1),
            y,
            [unknown(classes), ". Received: ", ". Correct it."],
        )
    elif classes is not None and is_sparse(loss) and not y.dtype.is_bool:
        if y.shape.rank == 1:
            _check_not_ambiguous(classes)
        right = (y >= 0) & (y < tf.cast(classes.count, y.dtype))
        if y.dtype.is_floating:
            right &= tf.equal(y, tf.floor(y))
        if (ignored := ignored_class(loss)) is not None:
            right |= tf.equal(y, tf.cast(ignored, y.dtype))
        last = tf.strings.as_string(classes.count - 1)
        y = _asserted(
            y,
            right,
            tf.strings.as_string(y),
            [
                tf.strings.join(
                    ["labels must be whole numbers from 0 to ", last]
                ),
                f" ({classes.why}). Received: ",
                f". {CORRECT}",
            ],
        )
    return y


def _asserted(value, right, shown, message: list):
    """Returns `value`; the graph fails if an element of `right` is false.

    `shown` are the labels as text, of which the error message quotes the first
    wrong one. `message` are the parts of the message; the label is inserted
    before the last part.
    """
    import tensorflow as tf

    *before, after = message
    wrong = tf.boolean_mask(shown, ~right)
    text = tf.strings.join(
        ["AlbertError: ", *before, tf.concat([wrong, [""]], axis=0)[0], after]
    )
    check = tf.debugging.Assert(tf.reduce_all(right), [text])
    with tf.control_dependencies([check]):
        return tf.identity(value)
