"""What goes into a model: checked ids, or texts on the way to ids.

Letters: B batch, C choices, S sequence length.
"""

import numpy as np

from keras_albert.config import LENGTH_STEP, PAD_ID, AlbertConfig, AlbertError

# Beside `token_ids`; the first two have its shape.
OPTIONAL_INPUTS = (
    "segment_ids",
    "padding_mask",
    "masked_positions",
    "start_positions",
)
ROW = ("batch", "sequence")


def holds_text(inputs) -> bool:
    """Whether these are strings, alone or in lists, tuples, arrays, a dict."""
    if isinstance(inputs, dict):
        return any(map(holds_text, inputs.values()))
    if isinstance(inputs, list | tuple):
        return any(map(holds_text, inputs[:1]))
    if isinstance(inputs, np.ndarray):
        return inputs.dtype.kind in "OSU"
    return isinstance(inputs, str | bytes) or _is_string_tensor(inputs)


def as_texts(inputs) -> list:
    """A list of texts, from a list, an array or a TensorFlow tensor."""
    if _is_string_tensor(inputs):
        inputs = inputs.numpy()
    if isinstance(inputs, np.ndarray):
        inputs = inputs.tolist()
    return inputs


def _is_string_tensor(inputs) -> bool:
    return hasattr(inputs, "numpy") and "string" in str(
        getattr(inputs, "dtype", "")
    )


def round_length(
    arrays: dict[str, np.ndarray], longest: int
) -> dict[str, np.ndarray]:
    """Pads S to a multiple of LENGTH_STEP, so that few shapes are compiled."""
    length = arrays["token_ids"].shape[-1]
    rounded = min(-(-length // LENGTH_STEP) * LENGTH_STEP, longest)
    padding = [(0, 0)] * (arrays["token_ids"].ndim - 1)
    padding.append((0, max(rounded - length, 0)))
    return {
        name: np.pad(value, padding, constant_values=PAD_ID)
        for name, value in arrays.items()
    }


def check_inputs(
    config: AlbertConfig, inputs: dict, axes: tuple[str, ...] = ROW
) -> None:
    """Refuses inputs of another structure, shape, or (NumPy) range.

    Args:
        config: the architecture.
        inputs: what a model is called with.
        axes: of `token_ids`; the last one is the sequence.
    """
    if not isinstance(inputs, dict) or "token_ids" not in inputs:
        received = (
            sorted(inputs)
            if isinstance(inputs, dict)
            else type(inputs).__name__
        )
        raise AlbertError(
            "Inputs must be a dict with `token_ids` (and `segment_ids`, "
            f"`padding_mask`), as Tokenizer returns. Received: {received}."
        )
    allowed = {"token_ids", *OPTIONAL_INPUTS}
    if unknown := sorted(inputs.keys() - allowed):
        raise AlbertError(
            f"Inputs may have the keys {sorted(allowed)}. Received also: "
            f"{unknown}."
        )
    shape = tuple(inputs["token_ids"].shape)
    if len(shape) != len(axes):
        raise AlbertError(
            f"`token_ids` must have the axes [{', '.join(axes)}]. "
            f"Received shape: {shape}."
        )
    if shape[-1] is not None and shape[-1] > config.max_position_embeddings:
        raise AlbertError(
            f"A sequence must not exceed max_position_embeddings="
            f"{config.max_position_embeddings} tokens. Received: {shape[-1]} "
            "tokens. Truncate it: Tokenizer(...)(texts, max_length="
            f"{config.max_position_embeddings})."
        )
    for name in ("segment_ids", "padding_mask"):
        other = tuple(inputs[name].shape) if name in inputs else shape
        if len(other) != len(shape) or any(
            None not in (a, b) and a != b
            for a, b in zip(other, shape, strict=True)
        ):
            raise AlbertError(
                f"`{name}` must have the shape of `token_ids`, {shape}. "
                f"Received: {other}."
            )
    check_ids(config, inputs)


def check_ids(config: AlbertConfig, inputs) -> None:
    """Refuses ids out of range in NumPy inputs; other inputs pass unseen."""
    if not isinstance(inputs, dict):
        return
    limits = {
        "token_ids": ("vocab_size", config.vocab_size),
        "segment_ids": ("type_vocab_size", config.type_vocab_size),
        "padding_mask": ("1 token, 0 padding; values", 2),
    }
    token_ids = inputs.get("token_ids")
    if isinstance(token_ids, np.ndarray) and token_ids.ndim >= 2:
        length = ("sequence length", token_ids.shape[-1])
        limits |= {"masked_positions": length, "start_positions": length}
    for name, (field, size) in limits.items():
        ids = inputs.get(name)
        if not isinstance(ids, np.ndarray) or not ids.size:
            continue
        if ids.dtype == bool and name == "padding_mask":
            continue
        if not np.issubdtype(ids.dtype, np.integer):
            raise AlbertError(
                f"`{name}` must be integers. Received: {ids.dtype}."
            )
        if ids.min() < 0 or ids.max() >= size:
            wrong = ids.max() if ids.max() >= size else ids.min()
            raise AlbertError(
                f"`{name}` must be from 0 to {size - 1} ({field}={size}). "
                f"Received: {wrong}."
                + " Use the vocabulary that the model was trained with."
                * (name == "token_ids")
            )
