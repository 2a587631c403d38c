"""One name table: each weight of ours beside its name elsewhere.

Our names are Keras variable paths without the model's own name, so that they
do not depend on what a user calls a model.
"""

from typing import NamedTuple

from keras_albert.config import AlbertConfig


class Row(NamedTuple):
    """One weight."""

    ours: str
    tf1: str
    transposed: bool = False
    """the other side stores [out, in] where Keras stores [in, out]"""


_EMBEDDINGS = [
    Row(
        "embeddings/word_embeddings/embeddings",
        "bert/embeddings/word_embeddings",
    ),
    Row(
        "embeddings/token_type_embeddings/embeddings",
        "bert/embeddings/token_type_embeddings",
    ),
    Row(
        "embeddings/position_embeddings/embeddings",
        "bert/embeddings/position_embeddings",
    ),
    Row("embeddings/layer_norm/gamma", "bert/embeddings/LayerNorm/gamma"),
    Row("embeddings/layer_norm/beta", "bert/embeddings/LayerNorm/beta"),
]
_PROJECTION = [
    Row(
        f"embeddings/projection/{part}",
        f"bert/encoder/embedding_hidden_mapping_in/{part}",
    )
    for part in ("kernel", "bias")
]
# Of one block; the prefix names its group and its place in the group.
_BLOCK = [
    Row(f"{ours}/{part}", f"{tf1}/{part}")
    for ours, tf1, parts in (
        ("attention/query", "attention_1/self/query", ("kernel", "bias")),
        ("attention/key", "attention_1/self/key", ("kernel", "bias")),
        ("attention/value", "attention_1/self/value", ("kernel", "bias")),
        ("attention/output", "attention_1/output/dense", ("kernel", "bias")),
        ("attention/layer_norm", "LayerNorm", ("gamma", "beta")),
        (
            "feed_forward/intermediate",
            "ffn_1/intermediate/dense",
            ("kernel", "bias"),
        ),
        (
            "feed_forward/output",
            "ffn_1/intermediate/output/dense",
            ("kernel", "bias"),
        ),
        ("feed_forward/layer_norm", "LayerNorm_1", ("gamma", "beta")),
    )
    for part in parts
]
_POOLER = [
    Row(f"pooler/{part}", f"bert/pooler/dense/{part}")
    for part in ("kernel", "bias")
]
_PRETRAINING_HEADS = [
    Row("masked_lm/dense/kernel", "cls/predictions/transform/dense/kernel"),
    Row("masked_lm/dense/bias", "cls/predictions/transform/dense/bias"),
    Row(
        "masked_lm/layer_norm/gamma",
        "cls/predictions/transform/LayerNorm/gamma",
    ),
    Row(
        "masked_lm/layer_norm/beta", "cls/predictions/transform/LayerNorm/beta"
    ),
    Row("masked_lm/output_bias", "cls/predictions/output_bias"),
    Row("sentence_order/kernel", "cls/seq_relationship/output_weights", True),
    Row("sentence_order/bias", "cls/seq_relationship/output_bias"),
]


def name_table(config: AlbertConfig) -> list[Row]:
    """The weights of the encoder and the pretraining heads."""
    rows = list(_EMBEDDINGS)
    if config.embedding_size != config.hidden_size:
        rows += _PROJECTION
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            ours = f"encoder/group_{group}_block_{inner}"
            tf1 = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
            rows += [
                Row(f"{ours}/{row.ours}", f"{tf1}/{row.tf1}") for row in _BLOCK
            ]
    return rows + _POOLER + _PRETRAINING_HEADS


def our_name(variable) -> str:
    """The name of a Keras variable in the table: its path less the model's."""
    return variable.path.split("/", 1)[1]
