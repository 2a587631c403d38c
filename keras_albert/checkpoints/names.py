"""The name table: each weight of this package and its names in other formats.

Names here are paths of Keras variables without the name of the model.

Letters: H hidden size, A heads, D = H / A, L layers, C labels.
"""

from typing import NamedTuple

import numpy as np

from keras_albert.errors import AlbertError
from keras_albert.modeling.config import AlbertConfig

# The other formats, and their names in error messages.
DIALECTS = {
    "tf1": "a TF1 checkpoint",
    "huggingface": "transformers",
    "keras_hub": "KerasHub",
}


class WeightNames(NamedTuple):
    """The names of one weight in all formats; None where a format lacks it."""

    ours: str
    tf1: str | None
    huggingface: str | None
    keras_hub: str | None
    form: str = "same"  # key of FORMS: how the other formats store the value

    def there(self, value: np.ndarray, dialect: str, heads: int) -> np.ndarray:
        """Converts the weight's value to the layout of another format.

        Args:
            value: the weight in this package.
            dialect: the other format, a key of DIALECTS.
            heads: A, the number of attention heads.
        """
        how = FORMS[self.form].get(dialect)
        if how is None:
            return value
        if how == "transposed":
            return value.T
        return value.reshape(self.shape_there(value.shape, dialect, heads))

    def here(self, value: np.ndarray, dialect: str, shape) -> np.ndarray:
        """Converts the weight's value from the layout of another format.

        Args:
            value: the weight in the other format.
            dialect: the other format, a key of DIALECTS.
            shape: the shape of the weight in this package.
        """
        if FORMS[self.form].get(dialect) == "transposed":
            return value.T
        return value.reshape(shape)

    def shape_there(self, shape, dialect: str, heads: int) -> tuple[int, ...]:
        """The shape of the weight in another format.

        `shape` is its shape in this package; the other arguments are those of
        `there`.
        """
        how = FORMS[self.form].get(dialect)
        if how == "transposed":
            return tuple(shape)[::-1]
        if how == "first":  # the axis H is split into [A, D]
            return (heads, shape[0] // heads, *shape[1:])
        if how == "last":
            return (*shape[:-1], heads, shape[-1] // heads)
        return tuple(shape)


# How other formats store a value. A format that is not listed stores it as this
# package does. PyTorch stores a kernel as [out, in]; Keras's attention layer
# splits the first or last axis, H, into [A, D].
FORMS = {
    "same": {},
    "kernel": {"huggingface": "transposed"},
    # The task heads of the original are [out, in] in TF1 as well.
    "output_weights": {"tf1": "transposed", "huggingface": "transposed"},
    "kernel_to_heads": {"huggingface": "transposed", "keras_hub": "last"},
    "kernel_of_heads": {"huggingface": "transposed", "keras_hub": "first"},
    "bias_of_heads": {"keras_hub": "last"},
}


def _dense(ours, tf1, huggingface, keras_hub, kernel="kernel", bias="same"):
    return [
        WeightNames(
            f"{ours}/kernel",
            tf1 and f"{tf1}/kernel",
            huggingface and f"{huggingface}.weight",
            keras_hub and f"{keras_hub}/kernel",
            kernel,
        ),
        WeightNames(
            f"{ours}/bias",
            tf1 and f"{tf1}/bias",
            huggingface and f"{huggingface}.bias",
            keras_hub and f"{keras_hub}/bias",
            bias,
        ),
    ]


def _layer_norm(ours, tf1, huggingface, keras_hub):
    return [
        WeightNames(
            f"{ours}/{part}",
            tf1 and f"{tf1}/{part}",
            huggingface and f"{huggingface}.{torch_part}",
            keras_hub and f"{keras_hub}/{part}",
        )
        for part, torch_part in (("gamma", "weight"), ("beta", "bias"))
    ]


_EMBEDDINGS = [
    *(
        WeightNames(
            f"embeddings/{name}/embeddings",
            f"bert/embeddings/{name}",
            f"albert.embeddings.{name}.weight",
            f"{keras_hub}/embeddings",
        )
        for name, keras_hub in (
            ("word_embeddings", "token_embedding"),
            ("token_type_embeddings", "segment_embedding"),
            ("position_embeddings", "position_embedding"),
        )
    ),
    *_layer_norm(
        "embeddings/layer_norm",
        "bert/embeddings/LayerNorm",
        "albert.embeddings.LayerNorm",
        "embeddings_layer_norm",
    ),
]
PROJECTION = _dense(
    "embeddings/projection",
    "bert/encoder/embedding_hidden_mapping_in",
    "albert.encoder.embedding_hidden_mapping_in",
    "embedding_projection",
)
# The weights of one block. `name_table` adds prefixes for its group or layer,
# and for its number in there.
_BLOCK = {
    "attention": [
        *(
            row
            for name in ("query", "key", "value")
            for row in _dense(
                f"attention/{name}",
                f"attention_1/self/{name}",
                f"attention.{name}",
                f"self_attention_layer/{name}",
                "kernel_to_heads",
                "bias_of_heads",
            )
        ),
        *_dense(
            "attention/output",
            "attention_1/output/dense",
            "attention.dense",
            "self_attention_layer/attention_output",
            "kernel_of_heads",
        ),
        *_layer_norm(
            "attention/layer_norm",
            "LayerNorm",
            "attention.LayerNorm",
            "self_attention_layer_norm",
        ),
    ],
    "feed_forward": [
        *_dense(
            "feed_forward/intermediate",
            "ffn_1/intermediate/dense",
            "ffn",
            "feedforward_intermediate_dense",
        ),
        *_dense(
            "feed_forward/output",
            "ffn_1/intermediate/output/dense",
            "ffn_output",
            "feedforward_output_dense",
        ),
        *_layer_norm(
            "feed_forward/layer_norm",
            "LayerNorm_1",
            "full_layer_layer_norm",
            "feedforward_layer_norm",
        ),
    ],
}
_POOLER = _dense("pooler", "bert/pooler/dense", "albert.pooler", "pooled_dense")
_MASKED_LM = [
    *_dense(
        "masked_lm/dense",
        "cls/predictions/transform/dense",
        "predictions.dense",
        "mlm_head/intermediate_dense",
    ),
    *_layer_norm(
        "masked_lm/layer_norm",
        "cls/predictions/transform/LayerNorm",
        "predictions.LayerNorm",
        "mlm_head/intermediate_layer_norm",
    ),
    WeightNames(
        "masked_lm/output_bias",
        "cls/predictions/output_bias",
        "predictions.bias",
        "mlm_head/output_bias",
    ),
]
# Heads with weights [C, H] and [C], as the original names them.
_OUTPUTS = [
    WeightNames(
        f"{ours}/{part}",
        f"{tf1}output_{tf1_part}",
        f"{huggingface}.{torch_part}",
        keras_hub and f"{keras_hub}/{part}",
        form,
    )
    for ours, tf1, huggingface, keras_hub in (
        (
            "sentence_pair",
            "cls/seq_relationship/",
            "sop_classifier.classifier",
            None,
        ),
        ("classifier", "", "classifier", "logits"),
        ("span", "cls/squad/", "qa_outputs", None),
    )
    for part, tf1_part, torch_part, form in (
        ("kernel", "weights", "weight", "output_weights"),
        ("bias", "bias", "bias", "same"),
    )
]
# The head for SQuAD 2.0 (reference squad_utils.py L1428-1575).
_SPAN_V2 = [
    *_dense("start", "start_logits/dense", None, None),
    *_dense("end_dense", "end_logits/dense_0", None, None),
    *_layer_norm("end_layer_norm", "end_logits/LayerNorm", None, None),
    *_dense("end", "end_logits/dense_1", None, None),
    *_dense("answer_dense", "answer_class/dense_0", None, None),
    WeightNames(
        "answer/kernel", "answer_class/dense_1/kernel", None, None, "kernel"
    ),
]
HEADS = _MASKED_LM + _OUTPUTS + _SPAN_V2


def name_table(config: AlbertConfig) -> list[WeightNames]:
    """The rows of all weights of the encoder and of all heads.

    In the other formats, layers can only share whole blocks. If
    `config.sharing` is not "all", a model therefore has a group for each layer
    there, and a weight that several layers share here is in several rows.
    """
    rows = list(_EMBEDDINGS)
    if config.has_projection:
        rows += PROJECTION
    for group in range(groups_there(config)):
        for inner in range(config.inner_group_num):
            for half, half_rows in _BLOCK.items():
                ours = _home(config, half, group)
                prefixes = (
                    f"encoder/{ours}_block_{inner}/",
                    "bert/encoder/transformer/"
                    f"group_{group}/inner_group_{inner}/",
                    f"albert.encoder.albert_layer_groups.{group}."
                    f"albert_layers.{inner}.",
                    f"group_{group}_inner_layer_{inner}/",
                )
                rows += [
                    WeightNames(*map(str.__add__, prefixes, row[:4]), row.form)
                    for row in half_rows
                ]
    return rows + _POOLER + HEADS


def groups_there(config: AlbertConfig) -> int:
    """The number of groups that the other formats need for this model."""
    if config.sharing == "all":
        return config.num_hidden_groups
    return config.num_hidden_layers


def _home(config: AlbertConfig, half: str, group: int) -> str:
    """The name of the group or layer that owns a half of a block.

    `half` is "attention" or "feed_forward", and `group` the number of a group
    in the other formats. If `config.sharing` is not "all", these have a group
    for each layer, so that `group` is then the number of the layer.
    """
    if config.sharing == "all":
        return f"group_{group}"
    if half in config.shared_halves:
        return f"group_{config.group_of(group)}"
    return f"layer_{group}"


def check_groups(config: AlbertConfig, dialect: str) -> None:
    """Raises AlbertError if a format would put a layer into a different group.

    The formats compute the group of layer i, of L in G groups, differently:
    int(i / L * G) in floating point in the reference, int(i / (L / G)) in
    transformers, and i // (L // G) in KerasHub, which requires L to be a
    multiple of G.
    """
    layers, groups = config.num_hidden_layers, groups_there(config)
    formula = {
        "tf1": lambda i: int(i / layers * groups),
        "huggingface": lambda i: int(i / (layers / groups)),
        "keras_hub": lambda i: i // (layers // groups),
    }[dialect]
    for layer in range(layers):
        here = layer * groups // layers
        if formula(layer) != here:
            raise AlbertError(
                f"with num_hidden_layers={layers} and num_hidden_groups="
                f"{groups}, layer {layer} (from 0) is in group {here} here, in "
                f"{formula(layer)} in {DIALECTS[dialect]}: the model would be "
                "another one there. Only sizes that agree can be exchanged, "
                "such as layers that are a multiple of the groups."
            )
