"""Reads and writes folders of sentence-transformers, for vectors of texts.

A folder has modules.json, which lists the steps from a text to its vector: an
encoder of transformers, perhaps weights of the pieces, a pooling, perhaps a
dense layer, and perhaps a scaling to length 1. The package
sentence-transformers is not needed.

Source: sentence-transformers 2 to 6, as `SentenceTransformer.save` writes.
"""

from pathlib import Path

import numpy as np
from keras import ops

from keras_albert.checkpoints.huggingface import (
    HF_CONFIG_FILE,
    load_huggingface,
    read_tensors,
    safetensors,
    save_huggingface,
)
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import encoder_of
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import IDF
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.modeling.inputs import check_model, no_vocabulary
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import read_json, write_json, written_whole
from keras_albert.text.pieces import TOKENIZER_CONFIG_FILE

MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
SETTINGS_FILE = "config_sentence_transformers.json"
ENCODER, POOLING, DENSE = "Transformer", "Pooling", "Dense"
WEIGHTS, NORMALIZE = "WordWeights", "Normalize"
MODULES = "sentence_transformers.models"
# In files before version 6, each kind of pooling has a switch.
_SWITCH = "pooling_mode_{}"
_SWITCHES = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
_IDENTITY = "torch.nn.modules.linear.Identity"


def is_sentence_transformers(folder: Path) -> bool:
    """Whether the folder has a modules.json of sentence-transformers."""
    return (folder / MODULES_FILE).is_file()


def load_sentence_transformers(
    folder: Path, backbone: bool = False, **build_options
) -> AlbertModel:
    """Loads a folder as AlbertForTextEmbedding.

    `backbone` and `build_options` are those of `load_huggingface`. The
    activation "gelu" is that of transformers, with which these models were
    trained.
    """
    modules = _modules(folder)
    encoder_folder = folder / modules[ENCODER]
    if not (encoder_folder / HF_CONFIG_FILE).is_file():
        raise AlbertError(
            f"{folder / MODULES_FILE}: the encoder must be in "
            f"{modules[ENCODER] or 'the folder itself'}, and there is no "
            f"{HF_CONFIG_FILE}. Fetch it."
        )
    encoder = load_huggingface(
        encoder_folder, "erf", backbone=True, **build_options
    )
    if backbone:
        return encoder
    _check_no_prompt(folder / SETTINGS_FILE)
    dense = _read_dense(folder / modules[DENSE]) if DENSE in modules else None
    pooling, weights = _read_pooling(folder / modules[POOLING]), None
    if WEIGHTS in modules:
        path = folder / modules[WEIGHTS] / HF_CONFIG_FILE
        pooling, weights = IDF, _read_weights(path, pooling, encoder)
    model = AlbertForTextEmbedding(
        encoder,
        pooling,
        projection=None if dense is None else len(dense[1]),
        max_tokens=_read_length(encoder_folder, encoder),
        normalize=NORMALIZE in modules,
    )
    if dense is not None:
        kernel = model.projection.kernel
        if tuple(kernel.shape) != dense[0].shape:
            raise AlbertError(
                f"{folder / modules[DENSE]}: the dense layer must take "
                f"{kernel.shape[0]} numbers. Received: {dense[0].shape[0]}."
            )
        model.projection.set_weights(list(dense))
    if weights is not None:
        model.token_weights.assign(weights)
    return model


def save_sentence_transformers(model: AlbertModel, folder: str | Path) -> None:
    """Writes a folder that SentenceTransformer loads, atomically.

    Args:
        model: an AlbertForTextEmbedding; of another model the encoder is
            written, with the mean of its vectors.
        folder: the output folder; created if absent, must be empty.

    Raises:
        AlbertError: transformers has no such encoder, or the format no such
            pooling; the model has no vocabulary or is an ensemble; or the
            folder is not empty.
    """
    check_model(model)
    if isinstance(model, AlbertEnsemble):
        raise AlbertError(
            "a folder of sentence-transformers has one encoder. Received: an "
            f"ensemble of {len(model.members)} models. Give one of them."
        )
    if not isinstance(model, AlbertForTextEmbedding):
        model = AlbertForTextEmbedding(encoder_of(model))
    weights = model.token_weights
    pooling = "mean" if model.pooling == IDF else model.pooling
    if pooling not in _SWITCHES:
        raise AlbertError(
            f"a folder of sentence-transformers has {', '.join(_SWITCHES)} or "
            f"idf pooling. Received: {model.pooling}. Export the model "
            "instead: `keras-albert export`."
        )
    if model.tokenizer is None:
        message = (
            "sentence-transformers takes texts, and this model has no "
            "vocabulary. Set it: model.tokenizer = Tokenizer('spiece.model')."
        )
        raise AlbertError(no_vocabulary(model, message))
    width = model.config.hidden_size
    parts = {
        WEIGHTS: weights is not None,
        POOLING: True,
        DENSE: model.projection is not None,
        NORMALIZE: model.normalize,
    }
    folders = {ENCODER: ""}
    for kind in filter(parts.get, parts):
        folders[kind] = f"{len(folders)}_{kind}"
    with written_whole(folder) as unfinished:
        save_huggingface(model.backbone, unfinished)
        write_json(unfinished / LENGTH_FILE, {
            "max_seq_length": model.most_tokens, "do_lower_case": False
        })  # fmt: skip
        for name in filter(None, folders.values()):
            (unfinished / name).mkdir()
        switches = {
            _SWITCH.format(_SWITCHES[kind]): kind == pooling
            for kind in _SWITCHES
        }
        write_json(
            unfinished / folders[POOLING] / HF_CONFIG_FILE,
            {"word_embedding_dimension": width, **switches},
        )
        if WEIGHTS in folders:
            _write_weights(model, unfinished / folders[WEIGHTS])
        if DENSE in folders:
            _write_dense(model, unfinished / folders[DENSE])
        write_json(unfinished / MODULES_FILE, _modules_json(folders))


def _modules_json(folders: dict[str, str]) -> list[dict]:
    """The content of modules.json; `folders` has the folder of each module."""
    return [
        {
            "idx": number,
            "name": str(number),
            "path": name,
            "type": f"{MODULES}.{kind}",
        }
        for number, (kind, name) in enumerate(folders.items())
    ]


def _check_no_prompt(path: Path) -> None:
    """Raises AlbertError if sentence-transformers puts words before texts."""
    content = read_json(path) if path.is_file() else {}
    content = content if isinstance(content, dict) else {}
    name = content.get("default_prompt_name")
    prompts = content.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    if name is None or prompts.get(str(name)) == "":
        return
    raise AlbertError(
        f"{path}: sentence-transformers puts the prompt {name!r:.60} "
        f"({prompts.get(str(name), 'not among the prompts')!r:.60}) before "
        "every text, and here texts are read as they are. Remove "
        "`default_prompt_name`, and put the prompt before your texts."
    )


def _modules(folder: Path) -> dict[str, str]:
    """The folder of each step, by its kind."""
    path = folder / MODULES_FILE
    content = read_json(path)
    try:
        steps = [
            (step["type"].split(".")[-1], step["path"]) for step in content
        ]
    except (TypeError, KeyError, AttributeError):
        steps = []
    known = (ENCODER, WEIGHTS, POOLING, DENSE, NORMALIZE)
    kinds = [kind for kind, _ in steps]
    # Names of folders, which must not point outside this one.
    plain = all(isinstance(p, str) and Path(p).name == p for _, p in steps)
    in_order = [known.index(kind) for kind in kinds if kind in known]
    if (
        not {ENCODER, POOLING} <= {*kinds}
        or not plain
        or not set(kinds) <= {*known}
        or in_order != sorted(set(in_order))
    ):
        raise AlbertError(
            f"{path}: expected the steps {', '.join(known)}, in this order; "
            f"all but {ENCODER} and {POOLING} may be absent. Received: "
            f"{', '.join(kinds) or repr(content)[:80]}."
        )
    return dict(steps)


def _read_pooling(folder: Path) -> str:
    path = folder / HF_CONFIG_FILE
    content = read_json(path)
    if not isinstance(content, dict):
        content = {}
    name = content.get("pooling_mode")  # version 6
    switches = {v: k for k, v in _SWITCHES.items()}
    start = _SWITCH.format("")
    chosen = [
        key.removeprefix(start)
        for key, value in content.items()
        if key.startswith(start) and value is True
    ]
    found = [switches.get(each, each) for each in chosen]
    if name:  # or names
        found = name if isinstance(name, list) else [name]
    if len(found) != 1 or found[0] not in _SWITCHES:
        raise AlbertError(
            f"{path}: expected one kind of pooling: {', '.join(_SWITCHES)}. "
            f"Received: {', '.join(map(str, found)) or 'none'}."
        )
    return found[0]


def _read_weights(path: Path, pooling: str, encoder: AlbertModel) -> np.ndarray:
    """The weights of all pieces, float32 [vocab_size]."""
    if pooling != "mean":
        raise AlbertError(
            f"{path}: weights of pieces are for a mean of vectors. Received: "
            f"{pooling} pooling. Take {WEIGHTS} out of {MODULES_FILE}, or "
            "choose mean pooling."
        )
    content, size = read_json(path), encoder.config.vocab_size
    try:
        known, unknown = content["word_weights"], content["unknown_word_weight"]
        found = [
            float(known.get(piece, known.get(piece.lower(), unknown)))
            for piece in content["vocab"]
        ]
        weights = np.full(max(size, len(found)), float(unknown), "float32")
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise AlbertError(
            f"{path}: expected vocab, word_weights and unknown_word_weight, as "
            f"sentence-transformers writes them. Received: {error!r}."
        ) from None
    weights[: len(found)] = found
    if len(weights) > size or not np.isfinite(weights).all():
        raise AlbertError(
            f"{path}: expected at most {size:,} pieces, as the encoder has, "
            f"and finite weights. Received: {len(found):,} pieces, weights "
            f"from {weights.min()} to {weights.max()}."
        )
    return weights


def _write_weights(model: AlbertForTextEmbedding, folder: Path) -> None:
    array = ops.convert_to_numpy(model.token_weights).tolist()
    # The encoder may have more rows than there are pieces.
    pieces = map(model.tokenizer.id_to_piece, range(model.tokenizer.vocab_size))
    weights = dict(zip(pieces, array, strict=False))
    write_json(
        folder / HF_CONFIG_FILE,
        {
            "vocab": list(weights),
            "word_weights": weights,
            "unknown_word_weight": 1.0,
        },
    )


def _read_length(folder: Path, encoder: AlbertModel) -> int | None:
    """The most tokens of a text; None if the folder does not say it."""
    for name, key in (
        (LENGTH_FILE, "max_seq_length"),  # before version 6
        (TOKENIZER_CONFIG_FILE, "model_max_length"),
    ):
        path = folder / name
        content = read_json(path) if path.is_file() else {}
        length = content.get(key) if isinstance(content, dict) else None
        if type(length) is int and length > 0:
            return min(length, encoder.config.max_position_embeddings)
    return None


def _read_dense(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The kernel [H, D] and the bias [D] of a dense layer."""
    path = folder / HF_CONFIG_FILE
    content = read_json(path)
    function = None
    if isinstance(content, dict):
        function = content.get("activation_function")
    if function != _IDENTITY:
        raise AlbertError(
            f"{path}: expected a dense layer without activation, {_IDENTITY}. "
            f"Received: {function}."
        )
    if content.get("use_residual"):
        raise AlbertError(
            f"{path}: expected a dense layer alone. Received: `use_residual`, "
            "which adds the layer's input to its output. Use another model."
        )
    tensors = read_tensors(folder)
    weight = tensors.get("linear.weight", np.zeros(0))
    bias = tensors.get("linear.bias", np.zeros(weight.shape[:1], "float32"))
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise AlbertError(
            f"{folder}: expected linear.weight of the shape [D, H] and "
            f"linear.bias of [D]. Received: {weight.shape} and {bias.shape}. "
            "Use another copy of the folder."
        )
    return weight.T, bias


def _write_dense(model: AlbertForTextEmbedding, folder: Path) -> None:
    projection = model.projection  # whose kernel includes a LoRA adapter
    kernel, bias = (
        ops.convert_to_numpy(each)
        for each in (projection.kernel, projection.bias)
    )
    write_json(
        folder / HF_CONFIG_FILE,
        {
            "in_features": kernel.shape[0],
            "out_features": kernel.shape[1],
            "bias": True,
            "activation_function": _IDENTITY,
        },
    )
    safetensors().save_file(
        {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias},
        folder / "model.safetensors",
    )
