"""Loads a model from any supported checkpoint format.

The files of a folder of this package are listed in training/model_folder.py.
"""

import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras

from keras_albert.checkpoints.huggingface import (
    is_huggingface,
    load_huggingface,
)
from keras_albert.checkpoints.huggingface_config import (
    DEFAULT_GELU,
    GELU_CHOICES,
)
from keras_albert.checkpoints.keras_hub import (
    is_keras_hub,
    keras_hub_task,
    load_keras_hub,
)
from keras_albert.checkpoints.lora import (
    head_of_adapter,
    is_adapter,
    load_adapter,
)
from keras_albert.checkpoints.sentence_transformers import (
    is_sentence_transformers,
    load_sentence_transformers,
)
from keras_albert.checkpoints.tf1 import find_tf1, load_tf1_model, tf1_head
from keras_albert.checkpoints.transfer import encoder_with_pooler
from keras_albert.download import locate
from keras_albert.errors import AlbertError, errors_about
from keras_albert.modeling.backbone import AlbertBackbone, encoder_of
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import CONFIG_FILE
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.modeling.inputs import no_vocabulary
from keras_albert.modeling.keras_file import (
    checked_build_options,
    read_own,
    with_build_options,
)
from keras_albert.storage import read_json
from keras_albert.text.pieces import find_wordpiece
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer
from keras_albert.training.model_folder import (
    MODEL_FILE,
    TASK_FILE,
    ModelFolder,
    point_to_best_seed,
    point_to_exported,
)

# organization/name, and no path of a file or of a folder above.
_NAME_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.keras)(?<!\.index)")
SHOWN_FILES = 20  # number of files that an error message lists


def load(
    source: str | Path,
    *,
    gelu: str = DEFAULT_GELU,
    backbone: bool = False,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> AlbertModel:
    """Loads a model from a checkpoint of any supported format.

    Args:
        source: a folder or `.keras` file written by this package; the folder
            of a TF1 checkpoint, or its path without `.index` (with
            albert_config.json beside it), or of a TF-Hub module; a folder of
            transformers or sentence-transformers; a preset folder of KerasHub;
            the folder of a LoRA adapter, which is merged into the base model
            that it names; or `hf://organization/name[@revision]` or
            `kaggle://organization/model/framework/variation`, which must hold
            one of these.
        gelu: the meaning of `hidden_act` "gelu" in a config of transformers:
            "tanh", the original's form, or "erf", which transformers computes.
            A config that this package wrote says itself if it is "erf".
        backbone: whether to return only the encoder, without the head.
        dtype: dtype policy of the model, such as "mixed_bfloat16". The default
            is the global policy (`keras.config.set_dtype_policy`). But if that
            is float32, the default of Keras, or if the model is quantized, a
            model of a `.keras` file keeps the policy that it was saved with.
        loop: see `AlbertBackbone`; by default as saved, or "unrolled".
        remat: see `AlbertBackbone`; by default as saved, or False.

    Returns:
        A model with the head of the checkpoint, or an AlbertBackbone if it has
        none. `tokenizer` is set if there is a vocabulary of SentencePiece, in
        the `.keras` file or as spiece.model beside it.

    Raises:
        AlbertError: there is no model, or more than one; a file is damaged; or
            weights are missing, unused or of another shape.
    """
    if gelu not in GELU_CHOICES:
        raise AlbertError(
            f"`gelu` must be one of {', '.join(GELU_CHOICES)}. "
            f"Received: {gelu!r}."
        )
    build_options = checked_build_options(dtype, loop, remat)
    if not isinstance(source, str | os.PathLike):
        raise AlbertError(not_a_path(source))
    path = locate(source)
    found = _found(path)
    if len(found) != 1:
        message = f"{source}: {_several_or_none(path, found)}"
        if not path.exists() and _NAME_ON_HUB.fullmatch(str(source)):
            message += f" On the Hugging Face Hub it would be hf://{source}."
        raise AlbertError(message)
    model = _read(source, *found[0], gelu, backbone, build_options)
    folder = path if path.is_dir() else path.parent
    if model.tokenizer is None:
        if (beside := folder / VOCAB_FILE).is_file():
            with errors_about(f"{beside}, which lies beside the model"):
                model.tokenizer = Tokenizer(beside)
        elif file := find_wordpiece(folder):
            encoder_of(model).wordpiece_file = file
    return model


def _read(
    source: str | Path,
    kind: str,
    what: Path,
    gelu: str,
    backbone: bool,
    build_options: dict,
) -> AlbertModel:
    """Reads the model at the path `what` in the format `kind`.

    `build_options` has `dtype`, `loop` and `remat`; the other arguments are
    those of `load`.
    """
    reader = _FORMATS[kind]
    if reader.takes_gelu:
        build_options = {"gelu": gelu, **build_options}
    elif gelu != DEFAULT_GELU:
        raise AlbertError(
            f"{source}: `gelu` says how to read a model of transformers, this "
            f"is {kind}. Leave gelu={gelu!r} out."
        )
    return reader.read(what, backbone=backbone, **build_options)


def not_a_path(source) -> str:
    """The error message for a source that is not a path, such as a model."""
    kind = type(source)
    received = f"Received: {kind.__name__} of {kind.__module__.split('.')[0]}."
    if isinstance(source, AlbertModel):
        remedy = "the model itself, or keras_albert.AlbertEnsemble of several,"
    elif hasattr(source, "save_to_preset"):  # of KerasHub
        remedy = "keras_albert.from_keras_hub(model)"
    elif hasattr(source, "save_pretrained"):  # of transformers
        remedy = "keras_albert.from_transformers(model)"
    else:
        return f"expected a path or the name of a checkpoint. {received}"
    return (
        "expected a path or the name of a checkpoint, not a model in memory. "
        f"{received} Use {remedy} instead."
    )


def load_pretrained(
    source: str | Path,
    *,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> tuple[AlbertBackbone, Tokenizer]:
    """Loads the encoder and the vocabulary from any source of `load`.

    An encoder without a pooler, such as that of a masked LM of transformers,
    gets a random one from a fixed seed. LoRA adapters are merged.

    Args:
        source, dtype, loop, remat: see `load`.

    Raises:
        AlbertError: as `load`; or the model has no vocabulary or is quantized.
    """
    backbone = load(source, backbone=True, dtype=dtype, loop=loop, remat=remat)
    if backbone.tokenizer is None:
        message = (
            f"the model has no vocabulary. Put its {VOCAB_FILE} into the "
            "folder."
        )
        raise AlbertError(f"{source}: {no_vocabulary(backbone, message)}")
    return encoder_with_pooler(backbone), backbone.tokenizer


def head_name(source: str | Path) -> str | None:
    """The class name of the head with which a model was fine-tuned.

    None for a model without a head, or that was only pretrained.
    """
    found = _found(locate(source))
    if len(found) != 1:
        return None
    kind, what = found[0]
    name = _FORMATS[kind].head(what)
    return name if name and not _PRETRAINED_HEAD.search(name) else None


def _found(path: Path) -> list[tuple[str, Path]]:
    """All models at a path, each as its format and the path to read."""
    return [
        (kind, what)
        for kind, each in _FORMATS.items()
        for what in each.find(path)
    ]


def _several_or_none(path: Path, found: list[tuple[str, Path]]) -> str:
    if found:
        listed = "; ".join(f"{kind} ({what.name})" for kind, what in found)
        return (
            f"more than one model is here: {listed}. Name one: the path of a "
            "TF1 checkpoint without `.index`, a .keras file, or a folder of "
            "its own."
        )
    if path.is_dir():
        point_to_best_seed(path)
        point_to_exported(path)
        names = sorted(each.name for each in path.iterdir())
        held = ", ".join(names[:SHOWN_FILES]) or "nothing"
        more = ", ..." if len(names) > SHOWN_FILES else ""
        seen = f"the folder holds {held}{more}"
    else:
        seen = "an unknown kind of file" if path.exists() else "no such file"
    return (
        f"no model here, {seen}. Expected a folder written by keras-albert "
        f"({TASK_FILE}, {MODEL_FILE}), a .keras file of it, a TF1 checkpoint "
        f"({CONFIG_FILE}, *.index), a folder of transformers (config.json, "
        "model.safetensors) or sentence-transformers (modules.json), a preset "
        "of KerasHub (config.json, model.weights.h5), or a LoRA adapter "
        "(adapter_config.json)."
    )


class _Format(NamedTuple):
    """How models in a format of checkpoints are recognized and read."""

    # the path of each model that is at a path
    find: Callable[[Path], list[Path]]
    # reads the model at such a path; takes `backbone`, `dtype`, `loop` and
    # `remat` of `load`
    read: Callable[..., AlbertModel]
    # the class name of the head at such a path; None if there is none
    head: Callable[[Path], str | None]
    # whether `read` takes `gelu`, too, as the format is one of transformers
    takes_gelu: bool = False


def _one(is_found: Callable[[Path], bool]) -> Callable[[Path], list[Path]]:
    """Makes `_Format.find` from a test whether a path is a model.

    It is for formats of which a path holds at most one model, the path itself.
    """
    return lambda path: [path] if is_found(path) else []


def _is_ours(path: Path) -> bool:
    return (path / TASK_FILE).is_file() and (path / CONFIG_FILE).is_file()


def _keras_files(path: Path) -> list[Path]:
    if path.is_file() and path.suffix == ".keras":
        return [path]
    inside = path / MODEL_FILE
    return [inside] if inside.is_file() and not _is_ours(path) else []


def _reader(read: Callable[[Path], AlbertModel]) -> Callable[..., AlbertModel]:
    """Makes `_Format.read` from a function that takes only a path.

    The model is loaded as it was saved, and the options of `load` are applied
    to it afterwards.
    """

    def read_with_build_options(
        path: Path, backbone: bool, **build_options
    ) -> AlbertModel:
        model = read(path)
        if backbone and isinstance(model, AlbertEnsemble):
            raise AlbertError(
                f"{path}: an ensemble has an encoder for each of its "
                f"{len(model.members)} models. Give one of the models."
            )
        return with_build_options(
            encoder_of(model) if backbone else model, build_options
        )

    return read_with_build_options


def _read_adapter(path: Path, backbone: bool, **options) -> AlbertModel:
    return load_adapter(path, lambda base: load(base, **options), backbone)


def _class_of(path: Path) -> str | None:
    """The class name of the model in a `.keras` file; None if unreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))["class_name"]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return None  # loading the model will say what is wrong with it


def _architecture(folder: Path) -> str | None:
    """The class name of a model of transformers."""
    names = read_json(folder / "config.json").get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return first if isinstance(first, str) else None


# By the name of the format in messages. A folder of sentence-transformers is
# one of transformers, too.
_FORMATS = {
    "a TF1 checkpoint": _Format(find_tf1, load_tf1_model, tf1_head),
    "a folder of this package": _Format(
        _one(_is_ours),
        _reader(lambda path: ModelFolder.load(path).model),
        lambda path: _class_of(path / MODEL_FILE),
    ),
    "a .keras file": _Format(_keras_files, _reader(read_own), _class_of),
    "a folder of sentence-transformers": _Format(
        _one(is_sentence_transformers),
        load_sentence_transformers,
        lambda path: None,
    ),
    "a folder of transformers": _Format(
        _one(lambda p: is_huggingface(p) and not is_sentence_transformers(p)),
        load_huggingface,
        _architecture,
        takes_gelu=True,
    ),
    "a LoRA adapter": _Format(
        _one(is_adapter), _read_adapter, head_of_adapter, takes_gelu=True
    ),
    "a preset of KerasHub": _Format(
        _one(is_keras_hub), load_keras_hub, keras_hub_task
    ),
}
# The heads with which models are pretrained, or that only make vectors.
_PRETRAINED_HEAD = re.compile(
    "Backbone|MaskedLM|Pre[Tt]raining|AlbertModel|TextEmbedding"
)
