"""Checks a model's inputs, and tokenizes texts of any container.

Letters: B batch, S sequence length.
"""

import math
from collections.abc import Mapping

import keras
import numpy as np

from keras_albert.errors import LARGEST_COUNT, AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import PREPROCESSED_STEP, AlbertConfig
from keras_albert.text.normalization import to_text
from keras_albert.text.pieces import not_of_sentencepiece
from keras_albert.text.special_tokens import PAD_ID
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

TOKEN_INPUTS = ("token_ids", "segment_ids", "padding_mask")  # same shape
POSITION_INPUTS = ("masked_positions", "start_positions")
PACKED_INPUTS = ("example_ids", "position_ids", "cls_positions")
ROW = AlbertModel.axes
SEVERAL = ("batch", "text", "sequence")  # see `AlbertModel.takes_several`


def holds_text(inputs) -> bool:
    """Whether `inputs` holds strings: one, or sequences, arrays or a dict.

    An empty list counts as texts: its error then says that they are missing.
    """
    if isinstance(inputs, dict):
        return any(map(holds_text, inputs.values()))
    if isinstance(inputs, list | tuple):  # a missing text is reported later
        return holds_text(next((x for x in inputs if not _is_missing(x)), ""))
    if hasattr(inputs, "to_pylist"):  # of PyArrow
        return holds_text(inputs.drop_null()[:1].to_pylist())
    if is_column(inputs):
        return len(inputs) > 0 and holds_text(inputs[0])
    # `kind` of NumPy's and pandas's dtypes: objects, bytes, fixed-length and
    # variable-length strings.
    kind = getattr(getattr(inputs, "dtype", None), "kind", None)
    return (
        isinstance(inputs, str | bytes)
        or kind in ("O", "S", "U", "T")
        or _is_string_tensor(inputs)
    )


def _is_missing(value) -> bool:
    """Whether a value is None, NaN, or NA of pandas."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ == "NAType"


def is_column(inputs) -> bool:
    """Whether `inputs` is a sequence that is neither a list nor an array.

    An example is a column of a Hugging Face dataset: it has a length and
    items, but no shape and no dtype.
    """
    return (
        hasattr(inputs, "__len__")
        and hasattr(inputs, "__getitem__")
        and not hasattr(inputs, "shape")
        and not hasattr(inputs, "dtype")
        and not isinstance(
            inputs,
            str | bytes | Mapping | list | tuple | keras.utils.PyDataset,
        )
    )


def as_list(values):
    """Converts arrays, string tensors and columns to lists."""
    if hasattr(values, "to_pylist"):  # of PyArrow
        return values.to_pylist()
    if _is_string_tensor(values):
        values = values.numpy()
    if hasattr(values, "tolist"):  # NumPy and pandas
        return values.tolist()
    if is_column(values):
        return [values[i] for i in range(len(values))]
    return values


def as_array(values):
    """Converts a list or column of numbers, or a dict of them, to arrays."""
    if isinstance(values, dict):
        return {name: as_array(value) for name, value in values.items()}
    if isinstance(values, list | tuple) or is_column(values):
        return np.asarray(as_list(values))
    return values


def as_texts(inputs, name: str = "texts") -> list[str]:
    """Converts a list, array, column or tensor to a list of texts.

    Raises AlbertError for a single text, no text, or other values.
    """
    inputs = as_list(inputs)
    if not isinstance(inputs, list | tuple):
        remedy = ""
        if isinstance(inputs, str | bytes):
            remedy = " Put a single text in a list: [text]."
        raise AlbertError(
            f"`{name}` must be a list of texts. Received: {inputs!r:.60} "
            f"({type(inputs).__name__}).{remedy}"
        )
    if not inputs:
        raise AlbertError(
            f"`{name}` must be a list of one or more texts. Received: an "
            "empty list."
        )
    return [to_text(text) for text in inputs]


def named_texts(texts) -> dict:
    """Puts texts into a dict of `text` and, for pairs of texts, `pair`.

    Takes texts, a tuple of two lists of texts, or such a dict; AlbertError for
    other keys. A tuple of two strings is a list of texts.
    """
    is_pair = isinstance(texts, tuple) and len(texts) == 2
    if is_pair and not all(isinstance(each, str) for each in texts):
        return dict(zip(("text", "pair"), texts, strict=True))
    if not isinstance(texts, dict):
        return {"text": texts}
    if not {"text"} <= texts.keys() <= {"text", "pair"}:
        raise AlbertError(
            "a dict of texts must have the key `text` and, for pairs, `pair`. "
            f"Received: {names_of(texts)}."
        )
    return texts


def check_equally_many(**lists) -> None:
    """Raises AlbertError unless all lists have the same length."""
    if len({len(each) for each in lists.values()}) > 1:
        names = " and ".join(f"`{name}`" for name in lists)
        counts = ", ".join(f"{len(v)} {name}" for name, v in lists.items())
        raise AlbertError(f"{names} must be equally many. Received: {counts}.")


def _is_string_tensor(inputs) -> bool:
    dtype = str(getattr(inputs, "dtype", ""))
    return hasattr(inputs, "numpy") and "string" in dtype


def no_vocabulary(model: AlbertModel, message: str) -> str:
    """The error message for a model without a vocabulary.

    This is `message`, unless the checkpoint has a WordPiece vocabulary, which
    cannot be read; the message then says so.
    """
    file = getattr(model, "backbone", model).wordpiece_file
    return not_of_sentencepiece(file) if file else message


def check_model(model) -> None:
    """Raises AlbertError unless `model` is a model of this package."""
    if isinstance(model, AlbertModel):
        return
    remedy = ""
    if isinstance(getattr(model, "model", None), AlbertModel):
        remedy = " Give its `model`."  # of a Predictor
    elif hasattr(type(model), "predictor"):
        # Of a finished run. A Predictor also has thresholds and lengths.
        remedy = " Give its `predictor.model`, to `export` its `predictor`."
    elif isinstance(model, keras.Model):
        remedy = (
            " Save a model around one of them by its own method, model.save, "
            "or give the part inside."
        )
    raise AlbertError(
        "expected a model of this package, as keras_albert.load gives. "
        f"Received: {type(model).__name__}.{remedy}"
    )


def vocabulary_of(model: AlbertModel) -> Tokenizer:
    """The tokenizer of a model; raises AlbertError if it has none."""
    if model.tokenizer is None:
        message = (
            "Texts need a vocabulary and this model has none. Set it: "
            f"model.tokenizer = Tokenizer({VOCAB_FILE!r}); or pass ids."
        )
        raise AlbertError(no_vocabulary(model, message))
    return model.tokenizer


def tokenized(model: AlbertModel, texts, pairs=None) -> dict:
    """Tokenizes texts, or pairs of texts, and pads them to one length."""
    texts = as_texts(texts)
    longest = model.most_tokens
    tokenizer = vocabulary_of(model)
    pairs = None if pairs is None else as_texts(pairs, "pairs")
    return round_length(tokenizer(texts, pairs, longest), longest)


def round_length(
    arrays: dict[str, np.ndarray], longest: int
) -> dict[str, np.ndarray]:
    """Pads S to a multiple of PREPROCESSED_STEP."""
    length = arrays["token_ids"].shape[-1]
    rounded = min(-(-length // PREPROCESSED_STEP) * PREPROCESSED_STEP, longest)
    padding = [(0, 0)] * (arrays["token_ids"].ndim - 1)
    padding.append((0, max(rounded - length, 0)))
    return {
        name: np.pad(value, padding, constant_values=PAD_ID)
        for name, value in arrays.items()
    }


def axes_of(model: AlbertModel, inputs) -> tuple[str, ...]:
    """The names of the axes that `token_ids` must have."""
    if model.takes_several and isinstance(inputs, dict):
        shape = getattr(inputs.get("token_ids"), "shape", ())
        if len(shape) == len(SEVERAL):
            return SEVERAL
    return model.axes


def check_data(
    config: AlbertConfig,
    inputs,
    axes: tuple[str, ...] = ROW,
    takes_packed: bool = False,
) -> None:
    """Calls `check_inputs` on the argument of `fit` or `predict`.

    Batches of streams are checked in `streams`, but for those of tf.data.
    """
    is_plain = inputs is None or isinstance(inputs, dict | list | tuple)
    is_array = hasattr(inputs, "shape") or hasattr(inputs, "to_pylist")
    if is_plain or is_array:
        check_inputs(config, inputs, axes, takes_packed)


def check_has_ids(inputs) -> None:
    """Raises AlbertError unless inputs are a dict with `token_ids`."""
    if not isinstance(inputs, dict) or "token_ids" not in inputs:
        raise AlbertError(
            "Inputs must be a dict with `token_ids` (and `segment_ids`, "
            "`padding_mask`), as Tokenizer returns. Received: "
            f"{names_of(inputs)}. Texts go in as lists, arrays, or batches of "
            "a tf.data dataset, a torch DataLoader or a generator; elsewhere "
            "make ids of them first: model.preprocess(texts)."
        )


def check_inputs(
    config: AlbertConfig,
    inputs: dict,
    axes: tuple[str, ...] = ROW,
    takes_packed: bool = False,
) -> None:
    """Checks structure, dtypes, shapes and, in NumPy arrays, ranges of inputs.

    Args:
        config: the architecture.
        inputs: the argument of a model's call.
        axes: names of the axes of `token_ids`; the last one is the sequence.
        takes_packed: whether a row may hold several examples.
    """
    check_has_ids(inputs)
    allowed = {*TOKEN_INPUTS, *POSITION_INPUTS}
    if takes_packed:
        allowed |= {*PACKED_INPUTS}
    if unknown := sorted(inputs.keys() - allowed, key=str):
        raise AlbertError(
            f"Inputs may have the keys {sorted(allowed)}. Received also: "
            f"{unknown}."
        )
    for name, value in inputs.items():
        _check_dtype(name, value)
    shape = tuple(inputs["token_ids"].shape)
    if len(shape) != len(axes):
        raise AlbertError(
            f"`token_ids` must have the axes [{', '.join(axes)}]. "
            f"Received shape: {shape}."
        )
    longest = config.max_position_embeddings
    if shape[-1] == 0:
        raise AlbertError(
            "A sequence must have at least one token, [CLS]. "
            f"Received shape: {shape}."
        )
    # PyTorch's device "meta" has no values: there, Keras finds out shapes with
    # an arbitrary length in place of an unknown one.
    device = getattr(inputs["token_ids"], "device", None)
    is_known = isinstance(shape[-1], int) and (
        getattr(device, "type", None) != "meta"
    )
    if is_known and shape[-1] > longest:
        raise AlbertError(
            f"A sequence must not exceed max_position_embeddings={longest} "
            f"tokens. Received: {shape[-1]} tokens. Truncate it: "
            f"Tokenizer(...)(texts, max_length={longest})."
        )
    for name in ("segment_ids", "padding_mask", "example_ids", "position_ids"):
        _check_shape(inputs, name, shape, " of `token_ids`,")
    for name in ("masked_positions", "cls_positions"):
        _check_shape(inputs, name, (*shape[:-1], None))
    _check_shape(inputs, "start_positions", shape[:-1])
    _check_range(config, inputs)


def check_vectors(
    config: AlbertConfig, x, padding_mask=None, example_ids=None
) -> None:
    """Checks the dtypes and shapes of the inputs of an encoder layer.

    `x` must be float [B, S, H]. `padding_mask` and `example_ids` may be None or
    [B, S]; NumPy arrays must be integers, or bools for the mask.
    """
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) != 3 or shape[-1] not in (None, config.hidden_size):
        received = shape if hasattr(x, "shape") else type(x).__name__
        raise AlbertError(
            "expected vectors of the shape [batch, sequence, "
            f"hidden_size={config.hidden_size}]. Received: {received}."
        )
    masks = {"padding_mask": padding_mask, "example_ids": example_ids}
    given = {k: value for k, value in masks.items() if value is not None}
    for name, value in given.items():
        # Only arrays are checked: Keras calls models that it loads with floats.
        if isinstance(value, np.ndarray):
            _check_dtype(name, value)
        _check_shape(given, name, shape[:2], " of the vectors")


def _check_dtype(name: str, value) -> None:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise AlbertError(
            f"`{name}` must be an array or tensor of integers. Received: "
            f"{type(value).__name__}. Make it one (numpy.array), or leave an "
            "optional input out."
        )
    if hasattr(value, "nested_row_splits"):  # a tf.RaggedTensor
        raise AlbertError(
            f"`{name}` must have rows of one length. Received: a "
            "RaggedTensor. Pad its rows: ids.to_tensor()."
        )
    dtype = str(value.dtype)  # "int32", "torch.int32", "<dtype: 'int32'>"
    if "int" not in dtype and not ("bool" in dtype and name == "padding_mask"):
        raise AlbertError(f"`{name}` must be integers. Received: {dtype}.")


def _check_shape(inputs: dict, name: str, expected: tuple, whose="") -> None:
    """Compares a shape with the expected one; None matches any size."""
    if name not in inputs:
        return
    found = tuple(inputs[name].shape)
    if len(found) != len(expected) or any(
        None not in (a, b) and a != b
        for a, b in zip(found, expected, strict=True)
    ):
        raise AlbertError(
            f"`{name}` must have the shape{whose} {expected}. "
            f"Received: {found}."
        )


def _check_range(config: AlbertConfig, inputs: dict) -> None:
    """Raises AlbertError for ids out of range; checks NumPy arrays only."""
    length = inputs["token_ids"].shape[-1], "sequence length={}"
    limits = {
        "token_ids": (config.vocab_size, "vocab_size={}"),
        "segment_ids": (config.type_vocab_size, "type_vocab_size={}"),
        "padding_mask": (2, "1 for a token, 0 for padding"),
        "example_ids": (LARGEST_COUNT, "0 for padding"),
        "position_ids": (
            config.max_position_embeddings,
            "max_position_embeddings={}",
        ),
        "masked_positions": length,
        "start_positions": length,
        "cls_positions": length,
    }
    for name, ids in inputs.items():
        if not isinstance(ids, np.ndarray) or not ids.size:
            continue
        size, remark = limits[name]
        if size is None:  # positions in a sequence of unknown length
            continue
        if ids.min() < 0 or ids.max() >= size:
            wrong = ids.max() if ids.max() >= size else ids.min()
            raise AlbertError(
                f"`{name}` must be from 0 to {size - 1} "
                f"({remark.format(size)}). "
                f"Received: {wrong}."
                + " Use the vocabulary that the model was trained with."
                * (name == "token_ids")
            )


def names_of(texts):
    """The keys of a dict, or the type of anything else, for error messages."""
    if isinstance(texts, dict):
        return sorted(texts, key=str)
    return type(texts).__name__
