"""config.json of transformers: architecture, head and settings, both ways."""

from collections.abc import Callable

from keras_albert.checkpoints.names import DIALECTS, groups_there
from keras_albert.checkpoints.transfer import EXPORT_ENCODER
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
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
from keras_albert.text.special_tokens import CLS_ID, PAD_ID, SEP_ID

# Fields of AlbertConfig that config.json has under the same name and meaning.
CONFIG_FIELDS = (
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
# Settings of which this package only supports one value.
_FIXED = {
    "model_type": "albert",
    "layer_norm_eps": LAYER_NORM_EPSILON,
    "position_embedding_type": "absolute",
    "quantization_config": None,
}
# Activations of transformers -> AlbertConfig. For "gelu" the user chooses.
_ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
GELU_CHOICES = {"tanh": "gelu", "erf": "gelu_erf"}
DEFAULT_GELU = "tanh"  # the only form of the original
# Activations of AlbertConfig -> transformers.
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
# A key that we add, for what transformers cannot say: the sharing of models
# whose weights are copied, and that "gelu" means the error function.
_OWN_KEY = "keras_albert"
_SHARING = ("sharing", "num_hidden_groups")


def our_config(content, gelu: str) -> AlbertConfig:
    """The config of a config.json; see `load_huggingface` for `gelu`."""
    if not isinstance(content, dict):
        raise AlbertError("expected a JSON object.")
    for name, known in _FIXED.items():
        if content.get(name, known) != known:
            raise AlbertError(
                f"`{name}` must be {known!r} to be computed here. "
                f"Received: {content[name]!r}."
            )
    fields = {name: content[name] for name in CONFIG_FIELDS if name in content}
    activation = content.get("hidden_act", "gelu_new")  # transformers' default
    if activation == "gelu":
        is_said = _own(content).get("hidden_act") == GELU_CHOICES["erf"]
        fields["hidden_act"] = GELU_CHOICES["erf" if is_said else gelu]
    elif activation in _ACTIVATIONS:
        fields["hidden_act"] = _ACTIVATIONS[activation]
    else:
        raise AlbertError(
            "`hidden_act` must be one of gelu, "
            f"{', '.join(_ACTIVATIONS)}. Received: {activation!r}."
        )
    return AlbertConfig.from_dict(fields)


def stored_sharing(content: dict, config: AlbertConfig) -> AlbertConfig | None:
    """The config with the sharing that this package stored, or None.

    `config` is that of the copies, in which each layer has its own weights.
    """
    own = _own(content)
    if "sharing" not in own:
        return None
    try:
        shared = config.replace(
            **{name: own[name] for name in own if name in _SHARING}
        )
    except AlbertError:
        return None
    return shared if groups_there(shared) == groups_there(config) else None


def _own(content: dict) -> dict:
    """What this package stored; empty if nothing, or if it is no object."""
    own = content.get(_OWN_KEY)
    return own if isinstance(own, dict) else {}


def _labels(content: dict) -> dict:
    """`num_labels` and `labels` of a head.

    The default names of transformers, such as LABEL_0, are dropped.
    """
    names = content.get("id2label")
    if not names:
        return {"num_labels": content.get("num_labels", 2), "labels": None}
    try:
        labels = tuple(names[key] for key in sorted(names, key=int))
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


def _dropout(content: dict) -> dict:
    value = content.get("classifier_dropout_prob")
    return {"dropout": CLASSIFIER_DROPOUT if value is None else value}


def _problem(content: dict) -> dict:
    # Without a problem type, transformers decides by the labels in training.
    count = _labels(content)["num_labels"]
    default = "regression" if count == 1 else "single_label"
    there = content.get("problem_type") or _PROBLEMS[default]
    ours = {v: k for k, v in _PROBLEMS.items()}
    if there not in ours:
        raise AlbertError(
            f"`problem_type` must be one of {', '.join(ours)}. "
            f"Received: {there!r}."
        )
    return {"problem": ours[there]}


# For each architecture the head, and what reads its arguments.
_HEADS: dict[str, tuple[type, tuple[Callable[[dict], dict], ...]]] = {
    "AlbertModel": (AlbertBackbone, ()),
    "AlbertForPreTraining": (AlbertForPretraining, ()),
    "AlbertForMaskedLM": (AlbertForMaskedLM, ()),
    "AlbertForSequenceClassification": (
        AlbertForSequenceClassification,
        (_labels, _problem, _dropout),
    ),
    "AlbertForTokenClassification": (
        AlbertForTokenClassification,
        (_labels, _dropout),
    ),
    "AlbertForMultipleChoice": (AlbertForMultipleChoice, (_dropout,)),
    "AlbertForQuestionAnswering": (AlbertForQuestionAnswering, ()),
}
ARCHITECTURES = tuple(_HEADS)
WITH_POOLER = (
    "AlbertForPreTraining",
    "AlbertForSequenceClassification",
    "AlbertForMultipleChoice",
)


def with_head(
    architecture: str, encoder: AlbertBackbone, content: dict
) -> AlbertModel:
    """The encoder with the head of an architecture, which may be none."""
    head, readers = _HEADS[architecture]
    if head is AlbertBackbone:
        return encoder
    settings: dict = {}
    for read in readers:
        settings |= read(content)
    return head(encoder, **settings)


def _architecture_of(model: AlbertModel) -> str:
    name = next((n for n, (c, _) in _HEADS.items() if isinstance(model, c)), "")
    if isinstance(model, AlbertForPretraining):
        task = model.get_config()["sentence_task"]
        name = {"sop": name, None: "AlbertForMaskedLM"}.get(task)
    if not name:
        raise AlbertError(
            f"{DIALECTS['huggingface']} has no class for this "
            f"{type(model).__name__}. {EXPORT_ENCODER}"
        )
    return name


def _their_head(architecture: str, own: dict) -> dict:
    """The head's part of config.json, from `get_config` of the model."""
    if architecture == "AlbertForPreTraining":
        # transformers has a dropout before the sentence-order head, and the
        # original has none.
        return {"classifier_dropout_prob": 0.0}
    settings = {}
    if "problem" in own:
        settings["problem_type"] = _PROBLEMS[own["problem"]]
    if "dropout" in own:
        settings["classifier_dropout_prob"] = own["dropout"]
    if "num_labels" in own:
        labels = own["labels"] or _default_labels(own["num_labels"])
        settings["id2label"] = {str(i): name for i, name in enumerate(labels)}
        settings["label2id"] = {name: i for i, name in enumerate(labels)}
    return settings


def their_config(model: AlbertModel) -> dict:
    """config.json of a model; its only architecture is that of the model.

    Raises AlbertError if transformers has no such model.
    """
    config, architecture = model.config, _architecture_of(model)
    content = {
        "architectures": [architecture],
        "model_type": _FIXED["model_type"],
        **{name: getattr(config, name) for name in CONFIG_FIELDS},
        "num_hidden_groups": groups_there(config),
        "hidden_act": _ACTIVATIONS_THERE[config.hidden_act],
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "classifier_dropout_prob": CLASSIFIER_DROPOUT,
        "pad_token_id": PAD_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        "tie_word_embeddings": True,
        **_their_head(architecture, model.get_config()),
    }
    own = {}
    if config.sharing != "all":
        own = {name: getattr(config, name) for name in _SHARING}
    if config.hidden_act == GELU_CHOICES["erf"]:
        own["hidden_act"] = config.hidden_act
    return content | ({_OWN_KEY: own} if own else {})
