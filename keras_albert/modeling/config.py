"""The architecture of a model: `AlbertConfig` and the released sizes.

Sources: "Paper" is Lan et al. 2019 (arXiv:1909.11942v6); "reference" is
google-research/albert at b772393. Letters in brackets are the paper's:
E embedding size, H hidden size, L layers, A attention heads, V vocabulary.

This module does not import Keras, so that reading a config is fast."""

import dataclasses
import difflib
from pathlib import Path
from typing import Any

from keras_albert.errors import (
    AlbertError,
    UnknownName,
    check_choice,
    check_fields,
    check_flag,
    check_positive,
    check_positive_number,
    check_probability,
    errors_about,
    to_python_numbers,
)

# The most blocks that a model may apply. The deepest published ALBERT has 48.
# The limit catches damaged config files: blocks that share their weights do
# not need a larger weights file, so its size bounds nothing.
MOST_BLOCKS = 10_000
CONFIG_FILE = "albert_config.json"
FILL_MASK_CHOICES = 5  # pieces shown for a [MASK]
# `preprocess` pads rows to a multiple of this, so that few shapes are compiled.
PREPROCESSED_STEP = 32
LAYER_NORM_EPSILON = 1e-12  # tf.contrib.layers.layer_norm, float32
CLASSIFIER_DROPOUT = 0.1  # Paper Table 14, every task
# Keys of released albert_config.json files that change nothing in the model.
_IGNORED_KEYS = (
    "down_scale_factor",
    "gap_size",
    "net_structure_type",
    "num_memory_blocks",
    "layers_to_keep",
    "ln_type",
)
LOOPS = ("unrolled", "scan")  # see `SharedEncoder`
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# Which halves of a block the layers of a group share (Paper Table 4).
SHARED_HALVES = {
    "all": ("attention", "feed_forward"),
    "attention": ("attention",),
    "ffn": ("feed_forward",),
    "none": (),
}
SHARING = tuple(SHARED_HALVES)
# Sentence order prediction, next sentence prediction, or neither.
SENTENCE_TASKS = ("sop", "nsp", "none")
# How a model with a classifier after every layer is made and trained:
EXITS = (
    "own",  # each layer has its own classifier; all losses are summed
    "shared",  # all layers have the same classifier; all losses are summed
    "drawn",  # the same classifier; each step trains one layer, drawn at random
)
# How the vectors of a text's tokens become one, see `AlbertForTextEmbedding`.
# In two of them, pieces that few texts have weigh more.
IDF, IDF_FIRST_LAST = IDF_POOLINGS = ("idf", "idf_first_last")
POOLINGS = ("mean", "cls", "max", "weighted_layers", *IDF_POOLINGS)
# Fields of a config on which no output of a trained model depends.
FOR_TRAINING = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
)
ACTIVATION_NAMES = ("gelu", "gelu_new", "gelu_erf", "relu")
# Fields that a config file must have. A file that lacks a size is more likely
# damaged than meant to use the default, which is that of ALBERT-base.
_SIZES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@dataclasses.dataclass(frozen=True, repr=False)
class AlbertConfig:
    """The architecture, with the field names of `albert_config.json`.

    The defaults are ALBERT-base v2. Use `VARIANTS` for the released sizes and
    `AlbertConfig.from_json` to read a file. Raises AlbertError if a size is not
    a positive integer, a probability is not in [0, 1), `hidden_size` is not a
    multiple of `num_attention_heads`, or `hidden_act` is unknown.
    """

    vocab_size: int = 30000
    """V, number of pieces in the vocabulary"""
    embedding_size: int = 128
    """E, width of the factorized embedding (Paper 3.1)"""
    hidden_size: int = 768
    """H, width of the encoder"""
    num_hidden_layers: int = 12
    """L, number of layers"""
    num_hidden_groups: int = 1
    """number of groups; the layers of a group share their parameters"""
    inner_group_num: int = 1
    """number of different blocks in a layer, applied one after another"""
    sharing: str = "all"
    """which parts of a block the layers of a group share: all, attention, ffn
    or none (Paper Table 4; the released models share all)"""
    relaxed_rank: int = 0
    """rank of the low-rank matrix that each layer adds to its shared kernels
    (Bae et al. 2024, arXiv:2410.20672); 0 for plain sharing"""
    num_attention_heads: int = 12
    """A, number of attention heads"""
    intermediate_size: int = 3072
    """width of the feed-forward layer (4 H in the paper)"""
    hidden_act: str = "gelu"
    """activation: gelu or gelu_new (both the tanh approximation, as in the
    reference), gelu_erf (the exact GELU, which the transformers library calls
    gelu) or relu"""
    hidden_dropout_prob: float = 0.0
    """dropout rate of the embeddings and of the outputs of both halves of a
    block; 0.1 in most v1 models"""
    attention_probs_dropout_prob: float = 0.0
    """dropout rate of the attention probabilities; 0.1 in most v1 models"""
    max_position_embeddings: int = 512
    """length of the longest sequence, in tokens"""
    type_vocab_size: int = 2
    """number of segments, such as the two texts of a pair"""
    initializer_range: float = 0.02
    """standard deviation of the truncated normal initializer"""
    project_equal_sizes: bool = False
    """whether the embeddings are projected from E to H even if E == H, as in
    transformers and KerasHub; the reference has no projection then"""

    def __post_init__(self):
        to_python_numbers(self)
        for field in dataclasses.fields(self):
            if field.type is int and field.name != "relaxed_rank":
                check_positive(field.name, getattr(self, field.name))
        if type(self.relaxed_rank) is not int or self.relaxed_rank < 0:
            raise AlbertError(
                "`relaxed_rank` must be an integer, 0 (off) or more. "
                f"Received: relaxed_rank={self.relaxed_rank!r}."
            )
        check_flag("project_equal_sizes", self.project_equal_sizes)
        check_choice("sharing", self.sharing, SHARING)
        check_choice("hidden_act", self.hidden_act, ACTIVATION_NAMES)
        if self.relaxed_rank and self.sharing == "none":
            raise AlbertError(
                "`relaxed_rank` is the rank of differences from shared "
                'kernels; with sharing="none" there are none. Received: '
                f"relaxed_rank={self.relaxed_rank}. Set relaxed_rank=0, or "
                'another `sharing`: "all", "attention" or "ffn".'
            )
        dropouts = "hidden_dropout_prob attention_probs_dropout_prob"
        check_fields(check_probability, self, dropouts)
        check_positive_number("initializer_range", self.initializer_range)
        for name in ("embedding_size", "hidden_size"):
            if getattr(self, name) < 2:
                raise AlbertError(
                    f"`{name}` must be 2 or more: LayerNorm makes 0 of a "
                    f"single number. Received: {name}={getattr(self, name)}."
                )
        if self.hidden_size % self.num_attention_heads:
            raise AlbertError(
                "`hidden_size` must be a multiple of `num_attention_heads`. "
                f"Received: hidden_size={self.hidden_size}, "
                f"num_attention_heads={self.num_attention_heads}."
            )
        if self.num_hidden_layers * self.inner_group_num > MOST_BLOCKS:
            raise AlbertError(
                "`num_hidden_layers` x `inner_group_num` must be at most "
                f"{MOST_BLOCKS:,}. Received: num_hidden_layers="
                f"{self.num_hidden_layers}, inner_group_num="
                f"{self.inner_group_num}."
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise AlbertError(
                "`num_hidden_groups` must not exceed `num_hidden_layers`. "
                f"Received: num_hidden_groups={self.num_hidden_groups}, "
                f"num_hidden_layers={self.num_hidden_layers}."
            )

    def __repr__(self) -> str:
        """The constructor call, without fields that have their defaults."""
        shown = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name in _SIZES
            or getattr(self, field.name) != field.default
        )
        return f"AlbertConfig({shown})"

    @property
    def has_projection(self) -> bool:
        """Whether the model has a projection from E to H."""
        return (
            self.project_equal_sizes or self.embedding_size != self.hidden_size
        )

    @property
    def activation(self) -> str:
        """`hidden_act`, but "gelu" for both names of the tanh form."""
        return "gelu" if self.hidden_act == "gelu_new" else self.hidden_act

    @property
    def shared_halves(self) -> tuple[str, ...]:
        """The halves that a group shares, of attention and feed_forward."""
        return SHARED_HALVES[self.sharing]

    def group_of(self, layer: int) -> int:
        """The group of a layer; both are counted from 0.

        This uses integer division, since the floating-point formula of the
        reference is wrong for some L.
        """
        return layer * self.num_hidden_groups // self.num_hidden_layers

    def replace(self, **changes: Any) -> "AlbertConfig":
        """A copy with some fields changed.

        Raises AlbertError for an unknown field, or a value out of range.
        """
        return AlbertConfig.from_dict({**dataclasses.asdict(self), **changes})

    def to_json(self, path: str | Path) -> None:
        """Writes the fields to a file in the format of `albert_config.json`."""
        # Imported late: a model without files needs no storage.
        from keras_albert.storage import local_path, write_json

        write_json(local_path(path), dataclasses.asdict(self))

    @classmethod
    def from_json(cls, path: str | Path) -> "AlbertConfig":
        """Reads a released `albert_config.json`, or one written by `to_json`.

        Raises AlbertError, with its name, if the file is missing, not JSON, has
        a field that does not exist, or a value out of range.
        """
        # Imported late: a model without files needs no storage.
        from keras_albert.storage import local_path, read_json

        path = local_path(path)
        content = read_json(path)
        with errors_about(path):
            return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: dict) -> "AlbertConfig":
        """Makes a config from the content of an `albert_config.json`.

        Keys of released files that do not change the model are ignored. Raises
        AlbertError if a key is unknown, or a size missing or out of range.
        """
        if not isinstance(content, dict):
            raise AlbertError(
                "expected a dict of fields (in a file, a JSON object). "
                f"Received: {type(content).__name__}."
            )
        if content.get("net_structure_type", 0) != 0:
            raise AlbertError(
                "`net_structure_type` must be 0, as in every released ALBERT. "
                f"Received: {content['net_structure_type']!r}."
            )
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [k for k in content if k not in (*known, *_IGNORED_KEYS)]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"Did you mean `{close[0]}`?" if close else "Remove them."
            raise AlbertError(
                "these are not fields of an ALBERT config: "
                f"{', '.join(f'`{key}`' for key in unknown)}. {hint}"
            )
        missing = [key for key in _SIZES if key not in content]
        if missing:
            raise AlbertError(
                "an ALBERT config needs all of its sizes. Missing: "
                f"{', '.join(f'`{key}`' for key in missing)}."
            )
        return cls(**{k: v for k, v in content.items() if k in known})


class _Variants(dict):
    """Configs by name; the error for an unknown name suggests a similar one."""

    def __missing__(self, name):
        close = difflib.get_close_matches(str(name), self, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownName(
            f"VARIANTS has {', '.join(map(repr, self))}. "
            f"Received: {name!r}.{hint}"
        )


def _variants() -> dict[str, AlbertConfig]:
    """The released sizes (Paper Table 1; dropouts of the released files)."""
    sizes = {  # H, L, A, feed-forward, dropout of v1
        "base": (768, 12, 12, 3072, 0.1),
        "large": (1024, 24, 16, 4096, 0.1),
        "xlarge": (2048, 24, 16, 8192, 0.1),
        "xxlarge": (4096, 12, 64, 16384, 0.0),
    }
    variants = {}
    for name, (hidden, layers, heads, ffn, v1_dropout) in sizes.items():
        for version, dropout in (("v1", v1_dropout), ("v2", 0.0)):
            variants[f"{name}_{version}"] = AlbertConfig(
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=ffn,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
    return _Variants(variants)


VARIANTS = _variants()
# For CPUs; not a released size. Its vocabulary is that of the training data.
SMALL = AlbertConfig(
    vocab_size=8_000,
    hidden_size=256,
    num_hidden_layers=2,  # in the same time, four layers learn less
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=128,
    initializer_range=0.04,
)
