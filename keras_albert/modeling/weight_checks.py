"""Checks of a model's weights, and of a weights file before it is read.

A damaged or forged config may describe a model of any size, and building it
could exhaust the memory. The number of parameters is therefore computed first
and compared with the size of the weights file.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

import keras
import numpy as np

from keras_albert.errors import AlbertError, errors_about
from keras_albert.modeling.base import AlbertModel, quantized_paths
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.parameter_count import of_blocks, of_embedding

# Small mismatches are left to the loaders, whose messages name each wrong
# weight. A model may therefore be this many times larger than its file, and a
# model of up to this many parameters (80 MB) is always built.
_TOLERATED_FACTOR = 8
_TOLERATED_PARAMETERS = 20_000_000

KERAS_CONFIG_FILE = "config.json"
KERAS_WEIGHTS_FILE = "model.weights.h5"
# Keys by which a serialized AlbertConfig is recognized.
_ENCODER_KEYS = frozenset(("vocab_size", "embedding_size", "hidden_size"))
# Keys that Keras gives every layer, and no AlbertConfig has: a user's layer may
# have arguments with the names above. (An AlbertConfig in a file that has them
# is refused as it is read, before anything is built.)
_LAYER_KEYS = frozenset(("trainable",))


def check_plausible(
    config: AlbertConfig, stored: int, source: str, outputs: object = 0
) -> None:
    """Raises AlbertError if a model is far larger than its weights file.

    Args:
        config: the sizes, from a file.
        stored: an upper bound of the parameters in the weights files: their
            number if it is known, else the size of the files in bytes.
        source: the name of the config file, for the message.
        outputs: the number of outputs of the head, as read from the file. A
            value that is not an integer is ignored; other checks refuse it.
    """
    count = of_embedding(config) + of_blocks(config)
    if type(outputs) is int:
        count += outputs * config.hidden_size
    if count <= _TOLERATED_FACTOR * stored + _TOLERATED_PARAMETERS:
        return
    sizes = ", ".join(
        f"{name}={getattr(config, name)}"
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "num_hidden_layers",
            "num_hidden_groups",
            "inner_group_num",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
            "relaxed_rank",
        )
    )
    raise AlbertError(
        f"{source}: the sizes do not belong to these weights. Expected at most "
        f"{stored:,} parameters, which the weights' file can hold. Received "
        f"sizes that mean {count:,} ({sizes}, {outputs} outputs). Use another "
        "copy of the model."
    )


def check_finite(model: keras.Model) -> None:
    """Raises AlbertError that names the first weight with infinity or NaN."""
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(weight)
        if not np.issubdtype(value.dtype, np.integer):
            bad = value.size - int(np.isfinite(value).sum())
            if bad:
                raise AlbertError(
                    f"the weight {weight.path} is not finite ({bad:,} of "
                    f"{value.size:,} numbers). The training diverged, or the "
                    "file is damaged: train again with a lower learning rate, "
                    "or use another copy of the model."
                )


def check_keras_archive(path: Path, archive: ZipFile) -> None:
    """Calls `check_plausible` for every encoder config in a .keras file.

    Raises KeyError or ValueError without the files, or if one is not JSON.
    """
    content = json.loads(archive.read(KERAS_CONFIG_FILE))
    stored = archive.getinfo(KERAS_WEIGHTS_FILE).file_size
    config_of = AlbertConfig.from_dict
    check_sizes(
        content,
        _ENCODER_KEYS,
        config_of,
        {"num_labels", "projection"},
        stored,
        path,
        _LAYER_KEYS,
    )
    for part in _objects_with(content, {"lora"}):
        lora = part["lora"]
        rank = lora.get("rank") if isinstance(lora, dict) else None
        if type(rank) is int and rank > stored:
            raise AlbertError(
                f"{path}: adapters of rank {rank} do not belong to these "
                f"weights, whose file can hold {stored:,} parameters. Use "
                "another copy of the model."
            )


def check_sizes(
    content: object,
    encoder_keys: frozenset | set,
    config_of: Callable[[Mapping], AlbertConfig],
    outputs_keys: Iterable[str],
    stored: int,
    path: Path,
    other_keys: frozenset = frozenset(),
) -> None:
    """Calls `check_plausible` for every encoder config in a JSON value.

    An encoder config is an object that has all `encoder_keys`, and none of
    `other_keys`. A head has its number of outputs at one of `outputs_keys`; the
    largest one counts, for every layer if each has a classifier of its own.
    """
    outputs = [
        part[key] * (_layers_of(content) if part.get("exits") == "own" else 1)
        for key in outputs_keys
        for part in _objects_with(content, {key})
        if type(part[key]) is int
    ]
    for part in _objects_with(content, encoder_keys):
        if other_keys & part.keys():
            continue
        with errors_about(path):
            config = config_of(part)
        check_plausible(config, stored, str(path), max(outputs, default=0))


def _layers_of(content: object) -> int:
    """The largest number of layers of an encoder config in a JSON value."""
    counts = [
        part["num_hidden_layers"]
        for part in _objects_with(content, {"num_hidden_layers"})
    ]
    return max((n for n in counts if type(n) is int), default=1)


def _objects_with(content: object, keys: frozenset | set) -> Iterator[Mapping]:
    """All objects at any depth of a JSON value that have all of the keys."""
    if isinstance(content, dict):
        if keys <= content.keys():
            yield content
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _objects_with(part, keys)


def check_not_quantized(model: AlbertModel) -> None:
    """Raises AlbertError if a projection or embedding table is int8."""
    quantized = quantized_paths(model)
    if quantized:
        raise AlbertError(
            "the model is quantized: int8 weights cannot be converted. "
            f"Received: int8 in {quantized[0]} and {len(quantized) - 1} more. "
            "Take the model from before `quantize`."
        )


def check_no_lora_or_int8(model: AlbertModel) -> None:
    """Raises AlbertError if a model is quantized or has LoRA adapters."""
    check_not_quantized(model)
    adapted = [p for p, each in model.leaves().items() if each.lora_enabled]
    if adapted:
        raise AlbertError(
            "weights are exchanged between models without adapters. "
            f"Received: LoRA in {', '.join(adapted)}. Load them before "
            "`enable_lora`, or merge an adapted model: "
            "`keras-albert convert`."
        )


def weights_checksum(model: keras.Model) -> str:
    """SHA-256 of the values of all weights, in hexadecimal digits."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()
