"""Reads and writes preset folders of KerasHub, with the package keras-hub.

A preset folder has config.json, model.weights.h5 and metadata.json;
tokenizer.json with assets/tokenizer/vocabulary.spm; and for a head task.json
and task.weights.h5.

KerasHub's tokenizer only runs SentencePiece; it neither lower-cases texts nor
drops accents. `save_keras_hub` therefore writes a vocabulary.spm whose table of
replacements does both (see `text/charsmap.py`). The original vocabulary
(spiece.model, spiece.json) is written beside it for this package; KerasHub
ignores it.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_albert.checkpoints.names import DIALECTS, check_groups, groups_there
from keras_albert.checkpoints.transfer import (
    EXPORT_ENCODER,
    exported,
    imported,
    read_projection,
)
from keras_albert.errors import AlbertError, optional_import
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, check_model
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.weight_checks import check_plausible, objects_with
from keras_albert.storage import check_room, read_json, written_whole
from keras_albert.text.charsmap import normalizing_model
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

PRESET_CONFIG_FILE = "config.json"
PRESET_TASK_FILE = "task.json"
PRESET_TASK_WEIGHTS_FILE = "task.weights.h5"
PRESET_VOCAB_FILE = Path("assets", "tokenizer", "vocabulary.spm")
# Bytes of a preset in addition to the weights: vocabulary, settings, and the
# overhead of HDF5.
BESIDE_WEIGHTS = 2**21

# AlbertConfig's field names -> arguments of keras_hub.models.AlbertBackbone.
_FIELDS = {
    "vocab_size": "vocabulary_size",
    "embedding_size": "embedding_dim",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_hidden_groups": "num_groups",
    "inner_group_num": "num_inner_repetitions",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
}
# Both are the tanh form of GELU, the only activation of KerasHub's ALBERT.
_ACTIVATIONS = ("gelu", "gelu_new")
_MASKED_LM = ("AlbertMaskedLM",)
_CLASSIFIER = ("AlbertTextClassifier", "AlbertClassifier")
_POOLER = ("pooled_dense/kernel", "pooled_dense/bias")


def is_keras_hub(folder: Path) -> bool:
    """Whether the folder has a config.json of a KerasHub preset."""
    path = folder / PRESET_CONFIG_FILE
    if not path.is_file():
        return False
    content = read_json(path)
    return isinstance(content, dict) and "registered_name" in content


def load_keras_hub(folder: Path, backbone: bool = False, **form) -> AlbertModel:
    """Loads a preset folder: an encoder, a masked LM or a classifier.

    A folder without weights of a task gives the encoder. KerasHub computes the
    LayerNorm of its masked-LM head with epsilon 1e-5, the original and this
    package with 1e-12, so that masked-LM logits differ slightly. The arguments
    are those of `load_huggingface`.
    """
    hub = _keras_hub()
    name = _class_name(folder / PRESET_CONFIG_FILE)
    if name != "AlbertBackbone":
        raise AlbertError(
            f"{folder}: expected a preset of AlbertBackbone. Received: {name}."
        )
    task = _task(folder, backbone)
    _check_sizes(folder)
    with _explained(folder), _plain_float32():
        if task is None:
            theirs = hub.models.AlbertBackbone.from_preset(str(folder))
        else:
            is_masked_lm = task in _MASKED_LM
            kind = "AlbertMaskedLM" if is_masked_lm else "AlbertTextClassifier"
            theirs = getattr(hub.models, kind).from_preset(
                str(folder), preprocessor=None
            )
    tensors = {
        path: np.asarray(ops.convert_to_numpy(variable))
        for path, variable in _weights(theirs).items()
    }
    encoder = theirs.backbone if task else theirs
    config = AlbertConfig(
        **{ours: getattr(encoder, name) for ours, name in _FIELDS.items()}
    )
    tensors, config = read_projection(tensors, config, "keras_hub")
    pooler = any(tensors[name].any() for name in _POOLER)
    if not pooler:  # `save_keras_hub` writes zeros if a model has no pooler
        tensors = {k: v for k, v in tensors.items() if k not in _POOLER}
    ours = AlbertBackbone(
        config, pooler=pooler, tokenizer=_tokenizer(folder), **form
    )
    if task in _MASKED_LM:
        ours = AlbertForMaskedLM(ours)
    elif task in _CLASSIFIER:
        if keras.activations.serialize(theirs.activation) != "linear":
            raise AlbertError(
                f"{folder / PRESET_TASK_FILE}: `activation` must be linear: "
                "a classifier gives logits here. backbone=True loads the "
                "encoder alone."
            )
        ours = AlbertForSequenceClassification(
            ours, num_labels=theirs.num_classes, dropout=theirs.dropout
        )
    imported(ours, tensors, "keras_hub", str(folder))
    return ours


def save_keras_hub(model: AlbertModel, folder: str | Path) -> None:
    """Writes a model as a preset folder of KerasHub, atomically.

    KerasHub's encoder always has a projection and a pooler. If the model has
    none, an identity projection and a pooler of zeros are written. Names of
    labels and `initializer_range` are lost. If layers only share attention or
    only feed-forward weights, the shared weights are written for each layer.

    KerasHub's tokenizer then gives the ids of `model.tokenizer`, also for
    texts with capitals and accents; `text.charsmap.normalizing_model` lists
    the rare exceptions.

    Args:
        model: an encoder, masked LM, or classifier with one label per text.
        folder: the output folder; created if absent, must be empty.

    Raises:
        AlbertError: keras-hub is not installed, KerasHub has no such model,
            the folder is not empty, or the disk is full.
    """
    check_model(model)
    hub = _keras_hub()
    _check_supported(model)
    tensors = exported(model, "keras_hub")
    if _POOLER[0] not in tensors:
        size = model.config.hidden_size
        tensors |= zip(
            _POOLER,
            (np.zeros((size, size), "float32"), np.zeros(size, "float32")),
            strict=True,
        )
    tokenizer = model.tokenizer and hub.models.AlbertTokenizer(
        proto=normalizing_model(model.tokenizer)
    )
    with _plain_float32():
        theirs = _their_model(hub, model, tokenizer)
    targets = _weights(theirs)
    assert targets.keys() == tensors.keys()
    for path, variable in targets.items():
        variable.assign(tensors[path])
    check_room(folder, BESIDE_WEIGHTS + sum(x.nbytes for x in tensors.values()))
    with written_whole(folder) as unfinished:
        theirs.save_to_preset(str(unfinished))
        if tokenizer is not None:
            if getattr(theirs, "preprocessor", None) is None:
                tokenizer.save_to_preset(str(unfinished))
            model.tokenizer.save((unfinished / PRESET_VOCAB_FILE).parent)


def _their_model(hub, model: AlbertModel, tokenizer):
    """KerasHub's model of the same architecture, with its preprocessor."""
    config = model.config
    arguments = {name: getattr(config, ours) for ours, name in _FIELDS.items()}
    arguments["num_groups"] = groups_there(config)
    encoder = hub.models.AlbertBackbone(**arguments)
    if isinstance(model, AlbertBackbone):
        return encoder

    def preprocessor(kind):
        length = config.max_position_embeddings
        return tokenizer and kind(tokenizer, sequence_length=length)

    if not isinstance(model, AlbertForSequenceClassification):
        return hub.models.AlbertMaskedLM(
            encoder,
            preprocessor=preprocessor(hub.models.AlbertMaskedLMPreprocessor),
        )
    own = model.get_config()
    return hub.models.AlbertTextClassifier(
        encoder,
        num_classes=own["num_labels"],
        dropout=own["dropout"],
        preprocessor=preprocessor(hub.models.AlbertTextClassifierPreprocessor),
    )


def _check_supported(model: AlbertModel) -> None:
    own, config = model.get_config(), model.config
    there = DIALECTS["keras_hub"]
    known = (
        isinstance(model, AlbertBackbone | AlbertForMaskedLM)
        or (
            isinstance(model, AlbertForPretraining)
            and own["sentence_task"] is None
        )
        or (
            isinstance(model, AlbertForSequenceClassification)
            and own["problem"] == "single_label"
        )
    )
    if not known:
        raise AlbertError(
            f"{there} has no class for this {type(model).__name__}, only for "
            "an encoder, a masked LM and a classifier with one label a text. "
            f"{EXPORT_ENCODER}"
        )
    if config.hidden_act not in _ACTIVATIONS:
        raise AlbertError(
            f"{there} knows the tanh form of gelu only. Expected hidden_act "
            f"{' or '.join(_ACTIVATIONS)}. Received: {config.hidden_act!r}."
        )
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        raise AlbertError(
            f"{there} has one dropout. Expected equal hidden_dropout_prob and "
            "attention_probs_dropout_prob. Received: "
            f"{config.hidden_dropout_prob} and "
            f"{config.attention_probs_dropout_prob}."
        )
    if config.num_hidden_layers % groups_there(config):
        raise AlbertError(
            f"{there} wants num_hidden_layers to be a multiple of "
            f"num_hidden_groups. Received: {config.num_hidden_layers} and "
            f"{groups_there(config)}."
        )
    check_groups(config, "keras_hub")


def _check_sizes(folder: Path) -> None:
    """Raises AlbertError if an encoder is far larger than its weights file."""
    stored = sum(file.stat().st_size for file in folder.glob("*.h5"))
    for name in (PRESET_CONFIG_FILE, PRESET_TASK_FILE):
        path = folder / name
        content = read_json(path) if path.is_file() else None
        outputs = [
            part["num_classes"]
            for part in objects_with(content, {"num_classes"})
            if type(part["num_classes"]) is int
        ]
        for part in objects_with(content, {"vocabulary_size", "hidden_dim"}):
            known = {ours: part[x] for ours, x in _FIELDS.items() if x in part}
            try:
                config = AlbertConfig(**known)
            except AlbertError as error:
                raise AlbertError(f"{path}: {error}") from None
            check_plausible(config, stored, str(path), max(outputs, default=0))


def _weights(theirs) -> dict:
    """The variables by path, without the seed generators of dropout."""
    return {
        variable.path: variable
        for variable in theirs.variables
        if "seed_generator" not in variable.path
    }


def _class_name(path: Path) -> str | None:
    content = read_json(path)
    name = content.get("class_name") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


def _task(folder: Path, backbone: bool) -> str | None:
    """The class of the head; None if it has no weights or is not wanted."""
    if backbone or not (folder / PRESET_TASK_WEIGHTS_FILE).is_file():
        return None
    name = _class_name(folder / PRESET_TASK_FILE)
    if name not in _MASKED_LM + _CLASSIFIER:
        raise AlbertError(
            f"{folder / PRESET_TASK_FILE}: expected one of "
            f"{', '.join(_MASKED_LM + _CLASSIFIER)}. Received: {name}. "
            "backbone=True loads the encoder alone."
        )
    return name


def keras_hub_task(folder: Path) -> str | None:
    """The class of a preset's head; None if it has no head with weights."""
    has_head = (folder / PRESET_TASK_WEIGHTS_FILE).is_file()
    return _class_name(folder / PRESET_TASK_FILE) if has_head else None


def _tokenizer(folder: Path) -> Tokenizer | None:
    """The preset's vocabulary; the original one if `save_keras_hub` wrote it.

    The original is ignored if its pieces differ, since KerasHub may have
    replaced the vocabulary of the preset later.
    """
    path = folder / PRESET_VOCAB_FILE
    if not path.is_file():
        return None
    tokenizer = Tokenizer(path)
    original = path.with_name(VOCAB_FILE)
    if original.is_file():
        saved = Tokenizer(original)
        if _pieces(saved) == _pieces(tokenizer):
            return saved
    return tokenizer


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]


def _keras_hub():
    return optional_import("keras_hub", "keras-hub", "a preset of KerasHub")


@contextlib.contextmanager
def _plain_float32() -> Iterator[None]:
    """Sets the global dtype policy to float32, so that weights are not cast."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # Keras warns that a file with only the weights of a head has none
            # of the encoder.
            warnings.filterwarnings(
                "ignore", message=".*nested container at '_operations_by_depth"
            )
            yield
    except Exception as error:  # KerasHub, Keras and h5py raise many kinds
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise AlbertError(
            f"{folder}: KerasHub cannot read this preset ({reason[0]:.200}). "
            "Fetch it again."
        ) from error
