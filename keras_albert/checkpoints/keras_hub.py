"""Reads and writes preset folders of KerasHub, with the package keras-hub.

A preset has config.json, model.weights.h5, metadata.json; tokenizer.json with
assets/tokenizer/vocabulary.spm; and for a head task.json and task.weights.h5.

KerasHub's tokenizer only runs SentencePiece; it neither lower-cases texts nor
drops accents. `save_keras_hub` therefore writes a vocabulary.spm whose table of
replacements does both (see `text/charsmap.py`). The original vocabulary
(spiece.model, spiece.json) is beside it; KerasHub ignores it.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.config import LAYER_NORM_EPSILON, AlbertConfig
from keras_albert.modeling.inputs import check_model
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.weight_checks import check_sizes
from keras_albert.private_apis import sublayers
from keras_albert.storage import check_disk_space, read_json, written_whole
from keras_albert.text.charsmap import normalizes_itself, normalizing_model
from keras_albert.text.pieces import VOCAB_SETTINGS_FILE
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

PRESET_CONFIG_FILE = "config.json"
PRESET_TASK_FILE = "task.json"
PRESET_TASK_WEIGHTS_FILE = "task.weights.h5"
PRESET_VOCAB_FILE = Path("assets", "tokenizer", "vocabulary.spm")
# Bytes of a preset beside the weights: vocabulary, settings, overhead of HDF5.
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


def load_keras_hub(
    folder: Path, backbone: bool = False, **build_options
) -> AlbertModel:
    """Loads a preset folder: an encoder, a masked LM or a classifier.

    A folder without weights of a task gives the encoder. KerasHub computes the
    LayerNorm of its masked-LM head with epsilon 1e-5, the original with 1e-12:
    logits differ slightly. The arguments are those of `load_huggingface`.
    """
    hub = _keras_hub()
    name = _class_name(folder / PRESET_CONFIG_FILE)
    if name != "AlbertBackbone":
        raise AlbertError(
            f"{folder}: expected a preset of AlbertBackbone. Received: {name}."
        )
    task = _task(folder, backbone)
    _check_sizes(folder)
    with _explained(folder), _float32_policy():
        if task is None:
            hub_model = hub.models.AlbertBackbone.from_preset(str(folder))
        else:
            is_masked_lm = task in _MASKED_LM
            kind = "AlbertMaskedLM" if is_masked_lm else "AlbertTextClassifier"
            hub_model = getattr(hub.models, kind).from_preset(
                str(folder), preprocessor=None
            )
    return _from_keras_hub_model(
        hub_model, _tokenizer(folder), str(folder), **build_options
    )


def from_keras_hub(model: Any) -> AlbertModel:
    """Makes a model of this package from one of KerasHub, in memory.

    It computes the same numbers; those of a masked LM differ slightly, see
    `load_keras_hub`. A model with a preprocessor gives its vocabulary, too:
    texts get the ids of KerasHub, which does not lower-case unless the
    vocabulary does.

    Args:
        model: KerasHub's AlbertBackbone, AlbertMaskedLM, or, without
            activation, AlbertTextClassifier. The latter may also be around an
            encoder of this package, which the result then shares.

    Returns:
        An AlbertBackbone, AlbertForMaskedLM or AlbertForSequenceClassification.
        KerasHub has no names of labels: set `labels` of the classifier.

    Raises:
        AlbertError: keras-hub is not installed, or has no such model.
    """
    hub = _keras_hub().models
    kinds = (hub.AlbertBackbone, hub.AlbertMaskedLM, hub.AlbertTextClassifier)
    if not isinstance(model, kinds):
        raise AlbertError(
            "expected a model of KerasHub, one of "
            f"{', '.join(kind.__name__ for kind in kinds)}. Received: "
            f"{type(model).__name__} of {type(model).__module__.split('.')[0]}."
        )
    preprocessor = getattr(model, "preprocessor", None)
    hub_tokenizer = getattr(preprocessor, "tokenizer", None)
    tokenizer = hub_tokenizer and Tokenizer.from_bytes(
        hub_tokenizer.proto, lower_case=False, keep_accents=True
    )
    return _from_keras_hub_model(
        model, tokenizer, f"the {type(model).__name__}"
    )


def _from_keras_hub_model(
    hub_model, tokenizer: Tokenizer | None, source: str, **build_options
):
    """Converts a model of KerasHub to a model of this package.

    The class of `hub_model` has been checked; `tokenizer` is its vocabulary,
    and `source` names it in messages.
    """
    hub = _keras_hub().models
    is_classifier = isinstance(hub_model, hub.AlbertTextClassifier)
    if is_classifier and (
        keras.activations.serialize(hub_model.activation) != "linear"
    ):
        raise AlbertError(
            f"{source}: `activation` must be linear: a classifier gives "
            "logits here. Take the encoder alone: backbone=True for a folder, "
            "model.backbone in memory."
        )
    encoder = getattr(hub_model, "backbone", hub_model)
    is_ours = isinstance(encoder, AlbertBackbone)
    if is_ours:
        ours, weights = encoder, {}
    else:
        ours, weights = _encoder_and_weights_from(
            hub_model, encoder, tokenizer, build_options
        )
    if isinstance(hub_model, hub.AlbertMaskedLM):
        ours = AlbertForMaskedLM(ours)
    elif is_classifier:
        ours = AlbertForSequenceClassification(
            ours, num_labels=hub_model.num_classes, dropout=hub_model.dropout
        )
    if is_ours:
        ours.classifier.set_weights(hub_model.output_dense.get_weights())
    else:
        imported(ours, weights, "keras_hub", source)
    return ours


def _encoder_and_weights_from(
    hub_model, encoder, tokenizer: Tokenizer | None, build_options: dict
):
    """An encoder like that of `hub_model`, and all of its weights for it."""
    tensors = {
        path: np.asarray(ops.convert_to_numpy(variable)).astype("float32")
        for path, variable in _weights(hub_model).items()
    }
    config = AlbertConfig(
        **{ours: getattr(encoder, name) for ours, name in _FIELDS.items()}
    )
    tensors, config = read_projection(tensors, config, "keras_hub")
    pooler = any(tensors[name].any() for name in _POOLER)
    if not pooler:  # `save_keras_hub` writes zeros if a model has no pooler
        tensors = {k: v for k, v in tensors.items() if k not in _POOLER}
    return (
        AlbertBackbone(
            config, pooler=pooler, tokenizer=tokenizer, **build_options
        ),
        tensors,
    )


def save_keras_hub(model: AlbertModel, folder: str | Path) -> None:
    """Writes a model as a preset folder of KerasHub, atomically.

    KerasHub's encoder always has a projection and a pooler. If the model has
    none, an identity projection and a pooler of zeros are written. Names of
    labels and `initializer_range` are lost. If layers only share attention or
    only feed-forward weights, the shared weights are written for each layer.

    KerasHub's tokenizer then gives the ids of `model.tokenizer`, for capitals
    and accents, too; `text.charsmap.normalizing_model` lists exceptions.

    Args:
        model: an encoder, masked LM, or classifier with one label per text.
        folder: the output folder; created if absent, must be empty.

    Raises:
        AlbertError: keras-hub is not installed, KerasHub has no such model,
            the folder is not empty, or the disk is full.
    """
    hub_model, tokenizer = _to_keras_hub_model(model)
    size = sum(
        value.nbytes for value in map(np.asarray, hub_model.get_weights())
    )
    check_disk_space(folder, BESIDE_WEIGHTS + size)
    with written_whole(folder) as unfinished:
        hub_model.save_to_preset(str(unfinished))
        if tokenizer is not None:
            if getattr(hub_model, "preprocessor", None) is None:
                tokenizer.save_to_preset(str(unfinished))
            model.tokenizer.save((unfinished / PRESET_VOCAB_FILE).parent)


def to_keras_hub(model: AlbertModel) -> Any:
    """Makes a model of KerasHub, in memory.

    It computes the same numbers, and its preprocessor, if the model has a
    vocabulary, gives texts the same ids; see `save_keras_hub` for what KerasHub
    lacks. The LayerNorm of a masked-LM head gets the original's epsilon, 1e-12,
    which `save_to_preset` there does not store.

    Args:
        model: an encoder, masked LM, or classifier with one label per text.

    Returns:
        A float32 AlbertBackbone, AlbertMaskedLM or AlbertTextClassifier.

    Raises:
        AlbertError: keras-hub is not installed, or KerasHub has no such model.
    """
    hub_model, _ = _to_keras_hub_model(model)
    for layer in sublayers(
        getattr(hub_model, "masked_lm_head", None) or hub_model
    ):
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = LAYER_NORM_EPSILON
    return hub_model


def _to_keras_hub_model(model: AlbertModel) -> tuple[Any, Any]:
    """Converts a model of this package to KerasHub's model and tokenizer."""
    check_model(model)
    hub = _keras_hub()
    _check_supported(model)
    tensors = exported(model, "keras_hub")
    if _POOLER[0] not in tensors:
        size = model.config.hidden_size
        zeros = np.zeros((size, size), "float32"), np.zeros(size, "float32")
        tensors |= zip(_POOLER, zeros, strict=True)
    tokenizer = model.tokenizer and hub.models.AlbertTokenizer(
        proto=normalizing_model(model.tokenizer)
    )
    with _float32_policy():
        hub_model = _their_model(hub, model, tokenizer)
    targets = _weights(hub_model)
    assert targets.keys() == tensors.keys()
    for path, variable in targets.items():
        variable.assign(tensors[path])
    return hub_model, tokenizer


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
        check_sizes(
            read_json(path) if path.is_file() else None,
            {"vocabulary_size", "hidden_dim"},
            lambda part: AlbertConfig(
                **{ours: part[x] for ours, x in _FIELDS.items() if x in part}
            ),
            {"num_classes"},
            stored,
            path,
        )


def _weights(hub_model) -> dict:
    """The variables by path, without the seed generators of dropout."""
    own = (v for v in hub_model.variables if "seed_generator" not in v.path)
    return {variable.path: variable for variable in own}


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
    settings = {}
    has_own = path.with_name(VOCAB_SETTINGS_FILE).is_file()
    if not has_own and normalizes_itself(path.read_bytes()):
        settings = {"lower_case": False, "keep_accents": True}
    tokenizer = Tokenizer(path, **settings)
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
def _float32_policy() -> Iterator[None]:
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
            # Keras warns that a file with weights of a head lacks the encoder.
            warnings.filterwarnings(
                "ignore", message=".*nested container at '_operations_by_depth"
            )
            yield
    except Exception as error:  # KerasHub, Keras and h5py raise many kinds
        raise AlbertError(
            f"{folder}: KerasHub cannot read this preset "
            f"({reason_of(error):.200}). Fetch it again."
        ) from error
