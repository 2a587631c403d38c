"""Folders of transformers: config.json, weights, spiece.model.

transformers itself is not needed for either direction.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.checkpoints.names import DIALECTS, groups_there
from keras_albert.checkpoints.tokenizer_json import tokenizer_json
from keras_albert.checkpoints.transfer import (
    EXPORT_ENCODER,
    copies_agree,
    exported,
    imported,
    is_identity,
    without_projection,
)
from keras_albert.errors import AlbertError, optional_import
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, check_model
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import (
    CLASSIFIER_DROPOUT,
    LAYER_NORM_EPSILON,
    AlbertConfig,
)
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import AlbertForQuestionAnswering
from keras_albert.modeling.weight_checks import check_plausible
from keras_albert.storage import read_json, write_json, written_whole
from keras_albert.text.special_tokens import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_albert.text.tokenizer import VOCAB_FILE, Tokenizer

HF_CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
PICKLE_FILE = "pytorch_model.bin"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
MODEL_TYPE = "albert"

# Fields of AlbertConfig that config.json has under the same name and meaning.
_FIELDS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)
# Where another value would be another model. name -> the only one known here.
_FIXED = {
    "model_type": MODEL_TYPE,
    "layer_norm_eps": LAYER_NORM_EPSILON,
    "position_embedding_type": "absolute",
    "quantization_config": None,
}
# transformers' names of activations -> ours; its "gelu" is a choice.
_ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
GELU_CHOICES = {"tanh": "gelu", "erf": "gelu_erf"}
DEFAULT_GELU = "tanh"  # the only form of the original
# Ours -> transformers'.
_ACTIVATIONS_THERE = {
    "gelu": "gelu_new",
    "gelu_new": "gelu_new",
    "gelu_erf": "gelu",
    "relu": "relu",
}
_PROBLEMS = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
# A key of our own in config.json: how halves are shared there as copies.
SHARING_KEY = "keras_albert"
_PREFIX = "albert."  # of the encoder's weights in a model with a head
_POOLER = f"{_PREFIX}pooler."
# Weights of transformers that are computed or stored twice.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_TIED = {
    "predictions.decoder.weight": f"{_PREFIX}embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
# Names before transformers 1.0, as PyTorch ports of TensorFlow had them.
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
    folder: Path, gelu: str = "tanh", backbone: bool = False, **form
) -> AlbertModel:
    """The model of a transformers folder; `architectures` tells which one.

    Args:
        folder: holds config.json and model.safetensors (or its shards, or
            pytorch_model.bin).
        gelu: what `hidden_act` "gelu" means. "tanh": the only form of the
            original, also where its configs say gelu; "erf": what transformers
            computes. `gelu_new` is always tanh.
        backbone: the encoder only.
        form: `dtype`, `loop` and `remat` of AlbertBackbone.

    Raises:
        AlbertError: an architecture, activation or other setting that is not
            known here, a damaged file, weights that do not fit.
    """
    content = read_json(folder / HF_CONFIG_FILE)
    try:
        config = _our_config(content, gelu)
    except AlbertError as error:
        raise AlbertError(f"{folder / HF_CONFIG_FILE}: {error}") from None
    tensors = _canonical(_read_tensors(folder), folder)
    if config.embedding_size == config.hidden_size:
        if is_identity(tensors, config, "huggingface"):
            tensors = without_projection(tensors, "huggingface")
        else:
            config = config.replace(project_equal_sizes=True)
    shared = _shared(content, config)
    if shared is not None and copies_agree(tensors, shared, "huggingface"):
        config = shared
    check_plausible(
        config,
        sum(value.size for value in tensors.values()),
        str(folder / HF_CONFIG_FILE),
        content.get("num_labels", 0),
    )
    architecture = _architecture(content, folder, backbone)
    encoder = AlbertBackbone(
        config,
        pooler=architecture in _WITH_POOLER
        or any(name.startswith(_POOLER) for name in tensors),
        tokenizer=_tokenizer(folder),
        **form,
    )
    try:
        model = _HEADS[architecture](encoder, content)
    except AlbertError as error:
        raise AlbertError(f"{folder / HF_CONFIG_FILE}: {error}") from None
    imported(model, tensors, "huggingface", str(folder), aside=backbone)
    return model


def save_huggingface(model: AlbertModel, folder: str | Path) -> None:
    """Writes a model as transformers reads it; whole or not at all.

    What transformers has no place for: the pooler of a model whose head does
    not use it (masked LM, token classification, question answering) is left
    out; halves that layers share alone are written once for each layer. An
    encoder without a pooler is read there with `add_pooling_layer=False`.

    Args:
        model: an encoder, or one with a head that transformers has.
        folder: made if absent, must hold nothing.

    Raises:
        AlbertError: transformers has no such model; the folder is taken.
    """
    check_model(model)
    architecture, settings = _there(model)
    tensors = exported(model, "huggingface")
    if architecture == "AlbertModel":
        tensors = {k.removeprefix(_PREFIX): v for k, v in tensors.items()}
    elif architecture not in _WITH_POOLER:
        tensors = {
            k: v for k, v in tensors.items() if not k.startswith(_POOLER)
        }
    save_file = _safetensors().save_file
    content = _config_there(model, architecture, settings)
    with written_whole(folder) as unfinished:
        save_file(
            tensors, unfinished / SAFETENSORS_FILE, metadata={"format": "pt"}
        )
        write_json(unfinished / HF_CONFIG_FILE, content)
        if model.tokenizer is not None:
            _write_tokenizer(model.tokenizer, model.config, unfinished)


# Reading.


def _our_config(content, gelu: str) -> AlbertConfig:
    if not isinstance(content, dict):
        raise AlbertError("expected a JSON object.")
    for name, known in _FIXED.items():
        if content.get(name, known) != known:
            raise AlbertError(
                f"`{name}` must be {known!r} to be computed here. "
                f"Received: {content[name]!r}."
            )
    fields = {name: content[name] for name in _FIELDS if name in content}
    activation = content.get("hidden_act", "gelu_new")  # transformers' default
    if activation == "gelu":
        fields["hidden_act"] = GELU_CHOICES[gelu]
    elif activation in _ACTIVATIONS:
        fields["hidden_act"] = _ACTIVATIONS[activation]
    else:
        raise AlbertError(
            "`hidden_act` must be one of gelu, "
            f"{', '.join(_ACTIVATIONS)}. Received: {activation!r}."
        )
    return AlbertConfig.from_dict(fields)


def _shared(content: dict, config: AlbertConfig) -> AlbertConfig | None:
    """The config that this package wrote the model from, if it shares less."""
    own = content.get(SHARING_KEY)
    if not isinstance(own, dict):
        return None
    try:
        shared = config.replace(**own)
    except AlbertError:
        return None
    same = groups_there(shared) == groups_there(config)
    return shared if same else None


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    for name, read in (
        (SAFETENSORS_FILE, _read_safetensors),
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
    """The file of that name, or those that its index lists."""
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    # Names of files in this folder, nothing else.
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


def _safetensors():
    needed_by = "a model of transformers"
    optional_import("ml_dtypes", "huggingface", needed_by)  # NumPy's bfloat16
    return optional_import("safetensors.numpy", "huggingface", needed_by)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    library = _safetensors()
    try:
        tensors = library.load_file(path)
    except Exception as error:  # SafetensorError derives from Exception
        raise _damaged(path, error) from None
    return {name: _float32(path, name, v) for name, v in tensors.items()}


def _read_pickle(path: Path) -> dict[str, np.ndarray]:
    torch = optional_import("torch", "torch", f"{path}: a .bin file")
    try:
        # No code from the file is run.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {
            name: value.detach().to(torch.float32).numpy()
            for name, value in tensors.items()
        }
    except Exception as error:  # the unpickler raises whatever it stumbles on
        raise _damaged(path, error) from None


def _float32(path: Path, name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "fV" and value.dtype.name != "bfloat16":
        if name.endswith(_BUFFERS):
            return value
        raise AlbertError(
            f"{path}: {name} is {value.dtype}, expected floating point. Fetch "
            "weights that are not quantized."
        )
    return value.astype("float32")


def _damaged(path: Path, error: Exception) -> AlbertError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return AlbertError(
        f"{path}: damaged or incomplete ({reason[0]:.200}). Fetch it again."
    )


def _canonical(
    tensors: dict[str, np.ndarray], folder: Path
) -> dict[str, np.ndarray]:
    """One name for each weight: today's, with the encoder's prefix."""
    prefixed = any(name.startswith(_PREFIX) for name in tensors)
    result = {}
    for name, value in tensors.items():
        if name.endswith(_BUFFERS):
            continue
        for old, new in _OLD_ENDINGS.items():
            if name.endswith(f"LayerNorm{old}") or name.endswith(
                f"layer_norm{old}"
            ):
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
        if not np.array_equal(result.setdefault(original, value), value):
            raise AlbertError(
                f"{folder}: {copy} differs from {original}. ALBERT's decoder "
                "is its word embedding (tie_word_embeddings); another one "
                "cannot be computed here."
            )
    return result


def _tokenizer(folder: Path) -> Tokenizer | None:
    """Of spiece.model and do_lower_case, where there is a vocabulary."""
    if not (folder / VOCAB_FILE).is_file():
        return None
    chosen = {}
    path = folder / TOKENIZER_CONFIG_FILE
    if path.is_file():
        settings = read_json(path)
        if not isinstance(settings, dict):
            raise AlbertError(f"{path}: expected a JSON object.")
        for ours, theirs, default in (
            ("lower_case", "do_lower_case", True),
            ("keep_accents", "keep_accents", False),
        ):
            value = settings.get(theirs, default)
            if not isinstance(value, bool):
                raise AlbertError(
                    f"{path}: `{theirs}` must be true or false. "
                    f"Received: {value!r}."
                )
            chosen[ours] = value
    return Tokenizer(folder / VOCAB_FILE, **chosen)


def _architecture(content: dict, folder: Path, backbone: bool) -> str:
    """Which class of transformers the folder is of, or is read as."""
    if backbone:
        return "AlbertModel"
    names = content.get("architectures") or ["AlbertModel"]
    if not isinstance(names, list) or str(names[0]) not in _HEADS:
        raise AlbertError(
            f"{folder / HF_CONFIG_FILE}: `architectures` must be one of "
            f"{', '.join(_HEADS)}. Received: {names!r}. backbone=True loads "
            "the encoder alone."
        )
    return names[0]


def _labels(content: dict) -> dict:
    """num_labels and labels; transformers' own LABEL_0 is no name."""
    names = content.get("id2label")
    if not names:
        return {"num_labels": content.get("num_labels", 2), "labels": None}
    try:
        labels = tuple(
            names[key] for key in sorted(names, key=lambda key: int(key))
        )
    except (AttributeError, TypeError, ValueError):
        raise AlbertError(
            "`id2label` must be an object from numbers to names. Received: "
            f"{names!r:.100}."
        ) from None
    if labels == _default_labels(len(labels)):
        labels = None
    return {"num_labels": len(names), "labels": labels}


def _default_labels(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def _dropout(content: dict) -> float:
    value = content.get("classifier_dropout_prob")
    return CLASSIFIER_DROPOUT if value is None else value


def _sequence_classification(encoder, content) -> AlbertModel:
    labels = _labels(content)
    # transformers decides by the labels it sees, where nothing is said.
    default = "regression" if labels["num_labels"] == 1 else "single_label"
    there = content.get("problem_type") or _PROBLEMS[default]
    ours = {v: k for k, v in _PROBLEMS.items()}
    if there not in ours:
        raise AlbertError(
            f"`problem_type` must be one of {', '.join(ours)}. "
            f"Received: {there!r}."
        )
    return AlbertForSequenceClassification(
        encoder, problem=ours[there], dropout=_dropout(content), **labels
    )


_HEADS: dict[str, Callable[[AlbertBackbone, dict], AlbertModel]] = {
    "AlbertModel": lambda encoder, content: encoder,
    "AlbertForPreTraining": lambda encoder, content: AlbertForPretraining(
        encoder
    ),
    "AlbertForMaskedLM": lambda encoder, content: AlbertForMaskedLM(encoder),
    "AlbertForSequenceClassification": _sequence_classification,
    "AlbertForTokenClassification": (
        lambda encoder, content: AlbertForTokenClassification(
            encoder, dropout=_dropout(content), **_labels(content)
        )
    ),
    "AlbertForMultipleChoice": (
        lambda encoder, content: AlbertForMultipleChoice(
            encoder, dropout=_dropout(content)
        )
    ),
    "AlbertForQuestionAnswering": (
        lambda encoder, content: AlbertForQuestionAnswering(encoder)
    ),
}
_WITH_POOLER = (
    "AlbertForPreTraining",
    "AlbertForSequenceClassification",
    "AlbertForMultipleChoice",
)


# Writing.


def _there(model: AlbertModel) -> tuple[str, dict]:
    """The architecture, and what config.json says of its head."""
    own = model.get_config()
    if isinstance(model, AlbertBackbone):
        return "AlbertModel", {}
    if isinstance(model, AlbertForPretraining):
        task = own["sentence_task"]
        if task == "sop":
            # transformers drops out before its sentence-order head, the
            # original does not.
            return "AlbertForPreTraining", {"classifier_dropout_prob": 0.0}
        if task is None:
            return "AlbertForMaskedLM", {}
    elif isinstance(model, AlbertForMaskedLM):
        return "AlbertForMaskedLM", {}
    elif isinstance(model, AlbertForSequenceClassification):
        return "AlbertForSequenceClassification", {
            "problem_type": _PROBLEMS[own["problem"]],
            **_labels_there(own),
        }
    elif isinstance(model, AlbertForTokenClassification):
        return "AlbertForTokenClassification", _labels_there(own)
    elif isinstance(model, AlbertForMultipleChoice):
        return "AlbertForMultipleChoice", {
            "classifier_dropout_prob": own["dropout"]
        }
    elif isinstance(model, AlbertForQuestionAnswering):
        return "AlbertForQuestionAnswering", {}
    raise AlbertError(
        f"{DIALECTS['huggingface']} has no class for this "
        f"{type(model).__name__}. {EXPORT_ENCODER}"
    )


def _labels_there(own: dict) -> dict:
    labels = own["labels"] or _default_labels(own["num_labels"])
    return {
        "classifier_dropout_prob": own["dropout"],
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }


def _config_there(model: AlbertModel, architecture: str, head: dict) -> dict:
    config = model.config
    content = {
        "architectures": [architecture],
        "model_type": MODEL_TYPE,
        **{name: getattr(config, name) for name in _FIELDS},
        "num_hidden_groups": groups_there(config),
        "hidden_act": _ACTIVATIONS_THERE[config.hidden_act],
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "classifier_dropout_prob": CLASSIFIER_DROPOUT,
        "pad_token_id": PAD_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        "tie_word_embeddings": True,
        **head,
    }
    if config.sharing != "all":
        content[SHARING_KEY] = {
            "sharing": config.sharing,
            "num_hidden_groups": config.num_hidden_groups,
        }
    return content


def _write_tokenizer(
    tokenizer: Tokenizer, config: AlbertConfig, folder: Path
) -> None:
    """What AutoTokenizer reads, in new and in old versions.

    Not of the class AlbertTokenizer: that of transformers 5 builds its own
    tokenizer, which changes quotes, and gives pairs no segments.
    """
    (folder / TOKENIZER_FILE).write_text(tokenizer_json(tokenizer), "utf-8")
    (folder / VOCAB_FILE).write_bytes(tokenizer.model_bytes)
    special = {
        "bos_token": SPECIAL_PIECES[CLS_ID],
        "eos_token": SPECIAL_PIECES[SEP_ID],
        "unk_token": SPECIAL_PIECES[UNK_ID],
        "sep_token": SPECIAL_PIECES[SEP_ID],
        "pad_token": SPECIAL_PIECES[PAD_ID],
        "cls_token": SPECIAL_PIECES[CLS_ID],
        "mask_token": SPECIAL_PIECES[MASK_ID],
    }
    write_json(folder / SPECIAL_TOKENS_FILE, special)
    write_json(
        folder / TOKENIZER_CONFIG_FILE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": [
                "input_ids",
                "token_type_ids",
                "attention_mask",
            ],
            "do_lower_case": tokenizer.lower_case,
            "keep_accents": tokenizer.keep_accents,
            "model_max_length": config.max_position_embeddings,
            **special,
        },
    )
