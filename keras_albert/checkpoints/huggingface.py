"""Reads and writes model folders of transformers (Hugging Face).

A folder has config.json, weights and spiece.model. transformers is not needed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_albert.checkpoints.huggingface_config import (
    ARCHITECTURES,
    WITH_POOLER,
    our_config,
    stored_sharing,
    their_config,
    with_head,
)
from keras_albert.checkpoints.tokenizer_json import (
    read_tokenizer_json,
    tokenizer_json,
)
from keras_albert.checkpoints.transfer import (
    copies_agree,
    exported,
    imported,
    read_projection,
)
from keras_albert.errors import (
    AlbertError,
    errors_about,
    optional_import,
    reason_of,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.inputs import check_model
from keras_albert.modeling.weight_checks import check_plausible
from keras_albert.storage import read_json, write_json, written_whole
from keras_albert.text.pieces import (
    TOKENIZER_CONFIG_FILE,
    WORDPIECE_FILE,
    not_of_sentencepiece,
)
from keras_albert.text.special_tokens import SPECIAL_PIECES
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

HF_CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
PICKLE_FILE = "pytorch_model.bin"
TOKENIZER_FILE = "tokenizer.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
_PREFIX = "albert."  # of the encoder's weights in a model with a head
_POOLER = f"{_PREFIX}pooler."
# Entries of a checkpoint that are not weights (constants, `_BUFFERS`), or are
# copies of other weights (`_TIED`: copy -> original).
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_BIAS = "predictions.bias"
_TIED = {
    "predictions.decoder.weight": f"{_PREFIX}embeddings.word_embeddings.weight",
    "predictions.decoder.bias": _BIAS,
}
# Names of LayerNorm weights before transformers 1.0.
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}


def is_huggingface(folder: Path) -> bool:
    """Whether the folder has a config.json of transformers."""
    path = folder / HF_CONFIG_FILE
    if not path.is_file():
        return False
    content = read_json(path)
    return isinstance(content, dict) and (
        "model_type" in content or "architectures" in content
    )


def load_huggingface(
    folder: Path, gelu: str = "tanh", backbone: bool = False, **build_options
) -> AlbertModel:
    """Loads a folder of transformers; the head is that of `architectures`.

    The folder has config.json and model.safetensors (or its shards, or
    pytorch_model.bin). `gelu` is the meaning of `hidden_act` "gelu": "tanh" is
    the only form of the original, whose configs also say "gelu"; "erf" is what
    transformers computes. `backbone` loads only the encoder, and
    `build_options` has `dtype`, `loop` and `remat` of AlbertBackbone.
    """
    path = folder / HF_CONFIG_FILE
    tokenizer = None
    if (folder / VOCAB_FILE).is_file():
        tokenizer = Tokenizer(folder)
    elif (folder / TOKENIZER_FILE).is_file():
        tokenizer = read_tokenizer_json(folder / TOKENIZER_FILE)
    return _read(
        read_json(path),
        lambda: read_tensors(folder),
        tokenizer,
        gelu,
        backbone,
        str(path),
        str(folder),
        **build_options,
    )


def _read(
    content: Any,
    tensors_of: Callable[[], dict[str, np.ndarray]],
    tokenizer: Tokenizer | None,
    gelu: str,
    backbone: bool,
    path: str,
    source: str,
    **build_options,
) -> AlbertModel:
    """Makes a model from a config and weights in the format of transformers.

    `content` is what config.json has, and `tensors_of` returns the weights;
    both come from a folder or from a model in memory. `path` and `source` name
    the origin of the config and of the weights in messages. The weights are
    read after the config has been checked.
    """
    with errors_about(path):
        config = our_config(content, gelu)
    tensors = _canonical(tensors_of(), source, backbone)
    tensors, config = read_projection(tensors, config, "huggingface")
    shared = stored_sharing(content, config)
    if shared is not None and copies_agree(tensors, shared, "huggingface"):
        config = shared
    stored = sum(value.size for value in tensors.values())
    check_plausible(config, stored, path, content.get("num_labels", 0))
    architecture = _architecture(content, path, backbone)
    encoder = AlbertBackbone(
        config,
        pooler=architecture in WITH_POOLER
        or any(name.startswith(_POOLER) for name in tensors),
        tokenizer=tokenizer,
        **build_options,
    )
    with errors_about(path):
        model = with_head(architecture, encoder, content)
    imported(model, tensors, "huggingface", source, ignore_heads=backbone)
    return model


def save_huggingface(model: AlbertModel, folder: str | Path) -> None:
    """Writes a model in the format of transformers, atomically.

    The pooler is omitted if the head does not use it (masked LM, token
    classification, question answering), as transformers has none then. If
    layers only share attention or only feed-forward weights, the shared
    weights are written for each layer. To load an encoder without a pooler
    into transformers, pass `add_pooling_layer=False`.

    Args:
        model: an encoder, or a model with a head that transformers has.
        folder: the output folder; created if absent, must be empty.

    Raises:
        AlbertError: transformers has no such model, or the folder is not empty.
    """
    content, tensors = _config_and_tensors_of(model)
    save_file = safetensors().save_file
    with written_whole(folder) as unfinished:
        save_file(tensors, unfinished / SAFETENSORS_FILE, {"format": "pt"})
        write_json(unfinished / HF_CONFIG_FILE, content)
        if model.tokenizer is not None:
            _write_tokenizer(model.tokenizer, model.config, unfinished)


def _config_and_tensors_of(
    model: AlbertModel,
) -> tuple[dict, dict[str, np.ndarray]]:
    """Converts a model to the config.json and the weights of transformers."""
    check_model(model)
    content = their_config(model)
    (architecture,) = content["architectures"]
    tensors = exported(model, "huggingface")
    if architecture == "AlbertModel":
        tensors = {k.removeprefix(_PREFIX): v for k, v in tensors.items()}
    elif architecture not in WITH_POOLER:
        tensors = {k: tensors[k] for k in tensors if not k.startswith(_POOLER)}
    return content, tensors


# Models in memory.


def from_transformers(model: Any, tokenizer: Any = None) -> AlbertModel:
    """Makes a model of this package from one of transformers, in memory.

    It computes the same numbers. Its labels and its problem (one label,
    several, regression) are those of `model.config`. Here "gelu" in
    `config.hidden_act` is what transformers computes, the form with the error
    function; `load` reads it as the original's.

    Args:
        model: one of transformers' ALBERT classes, such as
            AlbertForSequenceClassification, or a subclass of one.
        tokenizer: a Tokenizer of this package; or one of transformers that was
            read from a folder with `spiece.model`, whose settings are kept.

    Returns:
        A model with the same head, or an AlbertBackbone.

    Raises:
        AlbertError: it is another kind of model, is quantized, or has settings
            that cannot be computed here; or the tokenizer has no file of
            SentencePiece, or other pieces than that file.
    """
    name = next(
        (
            kind.__name__
            for kind in type(model).__mro__
            if kind.__module__.startswith("transformers.")
            and kind.__name__ in ARCHITECTURES
        ),
        None,
    )
    if name is None:
        raise AlbertError(
            "expected a model of transformers, one of "
            f"{', '.join(ARCHITECTURES)}. Received: {type(model).__name__} of "
            f"{type(model).__module__.split('.')[0]}."
        )
    source = f"the {type(model).__name__}"
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = _tokenizer_from_transformers(tokenizer)
    return _read(
        {**model.config.to_dict(), "architectures": [name]},
        lambda: {
            key: _float32(source, key, _from_torch(value))
            for key, value in model.state_dict().items()
        },
        tokenizer,
        "erf",
        False,
        source,
        source,
    )


def to_transformers(model: AlbertModel) -> tuple[Any, Any]:
    """Makes a model of transformers, and its tokenizer, in memory.

    They are what transformers reads from a folder of `save_huggingface`: the
    same numbers, labels and ids of texts.

    Args:
        model: an encoder, or a model with a head that transformers has.

    Returns:
        a PyTorch model in evaluation mode, float32, on the CPU; and a
        PreTrainedTokenizerFast, or None without a vocabulary.

    Raises:
        AlbertError: a library is missing, or transformers has no such model.
    """
    content, tensors = _config_and_tensors_of(model)
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise AlbertError(
            f"a model of transformers needs torch and transformers ({error}). "
            "Run: pip install torch transformers"
        ) from None
    (architecture,) = content["architectures"]
    options = {}
    if architecture == "AlbertModel":
        options["add_pooling_layer"] = model.pooler is not None
    theirs = getattr(transformers, architecture)(
        transformers.AlbertConfig(**content), **options
    )
    # Buffers and tied copies are not among our weights.
    absent, unknown = theirs.load_state_dict(
        {name: torch.tensor(value) for name, value in tensors.items()},
        strict=False,
    )
    absent = [name for name in absent if not name.endswith(_BUFFERS)]
    assert not unknown and {*absent} <= {*_TIED}, (absent, unknown)
    tokenizer = None
    if model.tokenizer is not None:
        settings = _tokenizer_settings(model.tokenizer, model.config)
        del settings["tokenizer_class"]
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(
                tokenizer_json(model.tokenizer)
            ),
            **settings,
        )
    return theirs.eval(), tokenizer


def _from_torch(value: Any) -> np.ndarray:
    """A tensor of PyTorch; NumPy has no bfloat16."""
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() else value).numpy()


def _tokenizer_from_transformers(theirs: Any) -> Tokenizer:
    """The tokenizer of the `spiece.model` that one of transformers came from.

    transformers keeps the pieces, and not the SentencePiece model itself.
    """
    backend = getattr(theirs, "backend_tokenizer", None)
    names = getattr(theirs, "vocab_files_names", {}).values()
    kind = type(getattr(backend, "model", None)).__name__
    if WORDPIECE_FILE in names or kind == "WordPiece":
        raise AlbertError(
            f"`tokenizer`: {not_of_sentencepiece(WORDPIECE_FILE)} Leave "
            "`tokenizer` out."
        )
    places = [
        getattr(theirs, "vocab_file", None),
        Path(str(getattr(theirs, "name_or_path", "")), VOCAB_FILE),
    ]
    place = next((p for p in places if p and Path(p).is_file()), None)
    remedy = (
        f"Give the vocabulary itself: keras_albert.Tokenizer({VOCAB_FILE!r})."
    )
    if place is None:
        raise AlbertError(
            "`tokenizer` must have been read from a folder with "
            f"{VOCAB_FILE}. Received: {type(theirs).__name__} without it. "
            f"{remedy}"
        )
    given = theirs.init_kwargs
    tokenizer = Tokenizer(
        place,
        lower_case=given.get("do_lower_case", True),
        keep_accents=given.get("keep_accents", False),
    )
    pieces = {tokenizer.id_to_piece(i): i for i in range(tokenizer.vocab_size)}
    if theirs.get_vocab() != pieces:
        raise AlbertError(
            f"`tokenizer` must have the pieces of {place}. Received: "
            f"{type(theirs).__name__} with others. {remedy}"
        )
    return tokenizer


# Reading.


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """The weights in a folder of transformers, by their names, float32."""
    for name, read in (
        (SAFETENSORS_FILE, read_safetensors),
        (PICKLE_FILE, _read_pickle),
    ):
        paths = _shards(folder, name)
        if paths:
            tensors = {}
            for path in paths:
                tensors |= read(path)
            return tensors
    raise AlbertError(
        f"{folder}: no weights. Expected {SAFETENSORS_FILE} or {PICKLE_FILE} "
        f"(or {SAFETENSORS_FILE}.index.json and its shards)."
    )


def _shards(folder: Path, name: str) -> list[Path]:
    """The file with that name, or the shards that its index lists."""
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    # A name must not be a path, which could point outside the folder.
    if not isinstance(places, dict) or not all(
        isinstance(place, str) and Path(place).name == place
        for place in places.values()
    ):
        raise AlbertError(
            f"{index}: expected `weight_map`, a file in this folder for each "
            "weight. Fetch it again."
        )
    paths = [folder / place for place in sorted(set(places.values()))]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise AlbertError(
            f"{index}: these files are missing: {', '.join(absent)}. Fetch "
            "them."
        )
    return paths


def safetensors(needed_by: str = "a model of transformers"):
    """The module that reads and writes .safetensors files of NumPy arrays."""
    optional_import("ml_dtypes", "huggingface", needed_by)  # NumPy's bfloat16
    return optional_import("safetensors.numpy", "huggingface", needed_by)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a .safetensors file by name, float32."""
    library = safetensors()
    try:
        tensors = library.load_file(path)
    except Exception as error:  # SafetensorError derives from Exception
        raise _damaged(path, error) from None
    return {name: _float32(path, name, v) for name, v in tensors.items()}


def _read_pickle(path: Path) -> dict[str, np.ndarray]:
    torch = optional_import("torch", "torch", f"{path}: a .bin file")
    try:
        # `weights_only` keeps the unpickler from running code of the file.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        arrays = {name: _from_torch(value) for name, value in tensors.items()}
    except Exception as error:  # the unpickler raises many kinds of errors
        raise _damaged(path, error) from None
    return {name: _float32(path, name, arrays[name]) for name in arrays}


def _float32(path: str | Path, name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "fV" and value.dtype.name != "bfloat16":
        if name.endswith(_BUFFERS):
            return value
        raise AlbertError(
            f"{path}: {name} is {value.dtype}, expected floating point. Fetch "
            "weights that are not quantized."
        )
    return value.astype("float32")


def _damaged(path: Path, error: Exception) -> AlbertError:
    return AlbertError(
        f"{path}: damaged or incomplete ({reason_of(error):.200}). Fetch it "
        "again."
    )


def _canonical(
    tensors: dict[str, np.ndarray], source: str, backbone: bool
) -> dict:
    """Weights by their current names, without buffers and tied copies.

    Old names are replaced, and a missing prefix of the encoder is added. Copies
    are not compared if only the `backbone` is read.
    """
    prefixed = any(name.startswith(_PREFIX) for name in tensors)
    result = {}
    for name, value in tensors.items():
        if name.endswith(_BUFFERS):
            continue
        for old, new in _OLD_ENDINGS.items():
            if name.endswith((f"LayerNorm{old}", f"layer_norm{old}")):
                name = name.removesuffix(old) + new
        if not prefixed and name.startswith(
            ("embeddings.", "encoder.", "pooler.")
        ):
            name = _PREFIX + name
        result[name] = value
    for copy, original in _TIED.items():
        value = result.pop(copy, None)
        if value is None:
            continue
        kept = result.setdefault(original, value)
        is_one_empty = not (kept.any() and value.any())
        if original == _BIAS and kept.shape == value.shape and is_one_empty:
            # Early versions of transformers had two biases, of which one was
            # ALBERT's and the other zeros, and added both.
            result[original] = kept + value
        elif not (backbone or np.array_equal(kept, value)):
            raise AlbertError(
                f"{source}: {copy} differs from {original}. In ALBERT the "
                "decoder is the word embedding, and has one bias "
                "(tie_word_embeddings). Others cannot be computed here. Read "
                "the encoder alone: with backbone=True from a folder, or the "
                "`albert` of a model in memory."
            )
    return result


def _architecture(content: dict, path: str, backbone: bool) -> str:
    """The class of transformers as which a folder is read."""
    if backbone:
        return "AlbertModel"
    names = content.get("architectures") or ["AlbertModel"]
    if not isinstance(names, list) or str(names[0]) not in ARCHITECTURES:
        raise AlbertError(
            f"{path}: `architectures` must be one of "
            f"{', '.join(ARCHITECTURES)}. "
            f"Received: {names!r}. backbone=True loads the encoder alone."
        )
    return names[0]


# Writing.


def _write_tokenizer(
    tokenizer: Tokenizer, config: AlbertConfig, folder: Path
) -> None:
    """Writes the files that AutoTokenizer reads, in new and old versions.

    The tokenizer class is not AlbertTokenizer, since that of transformers 5
    changes quotes and gives pairs no segments.
    """
    (folder / TOKENIZER_FILE).write_text(tokenizer_json(tokenizer), "utf-8")
    (folder / VOCAB_FILE).write_bytes(tokenizer.model_bytes)
    settings = _tokenizer_settings(tokenizer, config)
    write_json(
        folder / SPECIAL_TOKENS_FILE,
        {k: v for k, v in settings.items() if k.endswith("_token")},
    )
    write_json(folder / TOKENIZER_CONFIG_FILE, settings)


def _tokenizer_settings(tokenizer: Tokenizer, config: AlbertConfig) -> dict:
    pad, unknown, cls, sep, mask = SPECIAL_PIECES
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": tokenizer.lower_case,
        "keep_accents": tokenizer.keep_accents,
        "model_max_length": config.max_position_embeddings,
        "bos_token": cls,
        "eos_token": sep,
        "unk_token": unknown,
        "sep_token": sep,
        "pad_token": pad,
        "cls_token": cls,
        "mask_token": mask,
    }
