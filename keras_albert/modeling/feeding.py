"""What users give to a model, turned into what the model computes with.

Texts become ids, label names become numbers, and both are checked. Models
import this module when their first inputs arrive, see `base.feeding`; it is
the only way from the forward pass to the tokenizer.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import (
    as_array,
    axes_of,
    check_data,
    check_inputs,
    check_vectors,
    holds_text,
    named_texts,
    tokenized,
    vocabulary_of,
)
from keras_albert.modeling.labels import (
    check_finite,
    class_weight_of,
    labels_of,
)
from keras_albert.modeling.masked_texts import fill_masks, masked_rows
from keras_albert.modeling.preprocessing import Preprocessor, preprocessor_of
from keras_albert.modeling.streams import (
    batches_of_ids,
    check_read_once,
    checked_py_dataset,
    is_stream,
    unwrapped_errors,
)
from keras_albert.private_apis import is_placeholder
from keras_albert.text.tokenizer import (
    VOCAB_FILE,
    Tokenizer,
    check_is_tokenizer,
)

# Models also use these from here, so that there is one module to import late.
__all__ = (
    "check_inputs",
    "check_read_once",
    "check_vectors",
    "fill_masks",
    "masked_rows",
    "named_texts",
    "tokenized",
    "unwrapped_errors",
)


def called_with(model: AlbertModel, inputs: Any) -> Any:
    """The inputs of a call of the model: checked, and ids instead of texts."""
    if holds_text(inputs):
        inputs = model.preprocess(inputs)
    if isinstance(inputs, dict):
        inputs = {name: _as_integers(x) for name, x in inputs.items()}
    axes = axes_of(model, inputs)
    check_inputs(model.config, inputs, axes, model.takes_packed)
    return inputs


def _as_integers(x: Any) -> Any:
    """Casts floats that Keras made up; others are left to `check_inputs`."""
    is_float = "float" in str(getattr(x, "dtype", ""))
    return ops.cast(x, "int32") if is_float and is_placeholder(x) else x


def fed(model: AlbertModel, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fit`, by name, in a form that Keras accepts."""
    given = dict(given)
    if "sample_weight" in given:
        given["sample_weight"] = as_array(given["sample_weight"])
        check_finite("sample weight", given["sample_weight"])
    if given.get("class_weight") is not None:
        given["class_weight"] = class_weight_of(model, given["class_weight"])
    x = given.get("x")
    if isinstance(x, keras.utils.PyDataset):
        return {**given, "x": checked_py_dataset(x, model)}
    if is_stream(x):
        return {**given, "x": batches_of_ids(x, model)}
    x = given["x"] = arrays(model, x)
    is_ids = isinstance(x, dict)  # and not a dataset of a TensorFlow strategy
    if is_ids and x["token_ids"].shape[0] == 0:
        raise AlbertError("expected one example or more. Received: none.")
    if given.get("y") is not None:
        given["y"] = labels_of(model, given["y"], x)
    elif is_ids and "y" in given and getattr(model, "loss", None) is not None:
        raise AlbertError(
            "the model was compiled with a loss, which needs labels. Received: "
            "none. Give them after the inputs: fit(x, y), evaluate(x, y), "
            "validation_data=(x, y)."
        )
    return given


def call_fed(
    model: AlbertModel, method: Callable, *args: Any, **kwargs: Any
) -> Any:
    """Calls a method of Keras with the arguments that `fed` makes of these."""
    return method(**fed(model, by_name(method, *args, **kwargs)))


def by_name(function: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call, by the names of the function's parameters."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    further = given.pop("kwargs", {})  # those that have no parameter
    return {**given, **further}


def held_out(model: AlbertModel, data: Any) -> Any:
    """`validation_data` of `fit` in a form that Keras accepts."""
    if data is None:
        return None
    if not isinstance(data, list | tuple):
        return fed(model, {"x": data})["x"]
    names = "x", "y", "sample_weight"
    if not 1 <= len(data) <= len(names):
        raise AlbertError(
            "`validation_data` must be (x,), (x, y) or (x, y, sample_weight). "
            f"Received: {len(data)} parts. Give one of these forms."
        )
    given = dict(zip(names, data, strict=False))
    return tuple(fed(model, given).values())


def arrays(model: AlbertModel, x: Any) -> Any:
    """The ids of texts; ids themselves are checked."""
    if holds_text(x):
        x = model.preprocess(x)
    axes = axes_of(model, x)
    check_data(model.config, x, axes, model.takes_packed)
    if model.takes_several and model.predicted_axes not in (None, axes):
        # TensorFlow would generalize its graph of the other number of axes to
        # arrays of any number of axes, which the model cannot read.
        model.predict_function = None
    model.predicted_axes = axes
    return x


def preprocessor(model: AlbertModel) -> Preprocessor:
    """The layer that tokenizes texts of a tf.data pipeline for the model."""
    return preprocessor_of(vocabulary_of(model), model.most_tokens)


def check_tokenizer(tokenizer: Any, vocab_size: int) -> None:
    """Raises AlbertError unless a model has embeddings for a vocabulary."""
    check_is_tokenizer(tokenizer)
    if tokenizer.vocab_size > vocab_size:
        raise AlbertError(
            f"the vocabulary has {tokenizer.vocab_size} pieces, the model "
            f"knows vocab_size={vocab_size}. Use the vocabulary that the "
            "model was trained with."
        )


def saved_tokenizer(folder: str) -> Tokenizer | None:
    """The tokenizer that was saved in a folder, if there is one."""
    return Tokenizer(folder) if Path(folder, VOCAB_FILE).is_file() else None
