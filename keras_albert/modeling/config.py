"""The architecture of a model: `AlbertConfig` and the released sizes.

Sources: "Paper" is Lan et al. 2019 (arXiv:1909.11942v6); "reference" is
google-research/albert at b772393. Letters in brackets are the paper's:
E embedding size, H hidden size, L layers, A attention heads, V vocabulary.

This module imports no Keras, so that reading a config costs nothing."""

import dataclasses
import difflib
import json
from pathlib import Path
from typing import Any

from keras_albert.errors import (
    AlbertError,
    UnknownName,
    check_choice,
    check_flag,
    check_positive,
    check_probability,
    is_number,
)
from keras_albert.storage import read_json

# Blocks that a token passes. The deepest published ALBERT has 48; shared ones
# have no weights of their own that would bound a damaged number in a file.
MOST_BLOCKS = 10_000


CONFIG_FILE = "albert_config.json"


FILL_MASK_CHOICES = 5  # pieces shown for a [MASK]


# Texts given to a model are padded to a multiple: few shapes to compile.
LENGTH_STEP = 32


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


LOOPS = ("unrolled", "scan")  # how the encoder repeats its layers


PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


SHARING = ("all", "attention", "ffn", "none")


SENTENCE_TASKS = ("sop", "nsp", "none")  # of pretraining examples


ACTIVATION_NAMES = ("gelu", "gelu_new", "gelu_erf", "relu")


# What a config file must say: a size left out is hardly meant to be base's.
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
    `AlbertConfig.from_json` for a released or own file.

    Raises:
        AlbertError: a size is not a positive integer, a probability is not in
            [0, 1), `hidden_size` is not a multiple of `num_attention_heads`,
            or `hidden_act` is unknown.
    """

    vocab_size: int = 30000
    """V, pieces in the vocabulary"""
    embedding_size: int = 128
    """E, width of the factorized embedding (Paper 3.1)"""
    hidden_size: int = 768
    """H, width of the encoder"""
    num_hidden_layers: int = 12
    """L, how often blocks are applied"""
    num_hidden_groups: int = 1
    """groups of layers that share their parameters"""
    inner_group_num: int = 1
    """blocks inside a group, applied one after another"""
    sharing: str = "all"
    """which half of a block the layers of a group share: all, attention, ffn
    or none (Paper Table 4; the released models share all)"""
    relaxed_rank: int = 0
    """rank of each layer's own low-rank difference from the shared kernels
    (Bae et al. 2024, arXiv:2410.20672); 0 is plain sharing"""
    num_attention_heads: int = 12
    """A, attention heads"""
    intermediate_size: int = 3072
    """width of the feed-forward layer (4 H in the paper)"""
    hidden_act: str = "gelu"
    """gelu and gelu_new (both the tanh form, as in the reference), gelu_erf
    (the exact form, that transformers means by gelu) or relu"""
    hidden_dropout_prob: float = 0.0
    """dropout of embeddings and of both block outputs; 0.1 in most v1 models"""
    attention_probs_dropout_prob: float = 0.0
    """dropout of attention probabilities; 0.1 in most v1 models"""
    max_position_embeddings: int = 512
    """longest sequence, in tokens"""
    type_vocab_size: int = 2
    """segments"""
    initializer_range: float = 0.02
    """standard deviation of the truncated normal initializer"""
    project_equal_sizes: bool = False
    """keep a projection E -> H where E == H, as transformers and KerasHub do;
    the reference has none"""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and field.name != "relaxed_rank":
                check_positive(field.name, value)
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
                'kernels; with sharing="none" there are none. Set '
                "relaxed_rank=0, or share a half."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            check_probability(name, getattr(self, name))
        if not is_number(self.initializer_range) or self.initializer_range <= 0:
            raise AlbertError(
                "`initializer_range` must be a positive number. "
                f"Received: initializer_range={self.initializer_range!r}."
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
        """The constructor's call, without fields left at their defaults."""
        shown = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name in _SIZES
            or getattr(self, field.name) != field.default
        )
        return f"AlbertConfig({shown})"

    @property
    def has_projection(self) -> bool:
        """Whether the embedding is projected from E to H."""
        return (
            self.project_equal_sizes or self.embedding_size != self.hidden_size
        )

    def group_of(self, layer: int) -> int:
        """The group of a layer; both are counted from 0.

        In integers: the reference's float arithmetic errs for some L.
        """
        return layer * self.num_hidden_groups // self.num_hidden_layers

    def replace(self, **changes: Any) -> "AlbertConfig":
        """A copy with some fields changed; unknown names are refused."""
        return AlbertConfig.from_dict({**dataclasses.asdict(self), **changes})

    def to_json(self, path: str | Path) -> None:
        """Writes the fields as `albert_config.json` has them."""
        Path(path).write_text(
            json.dumps(dataclasses.asdict(self), indent=2) + "\n"
        )

    @classmethod
    def from_json(cls, path: str | Path) -> "AlbertConfig":
        """Reads a released `albert_config.json`, or one written by `to_json`.

        Raises:
            AlbertError: the file is missing, not JSON, has a field that does
                not exist, or a value out of range; the message names it.
        """
        path = Path(path)
        content = read_json(path)
        try:
            return cls.from_dict(content)
        except AlbertError as error:
            raise AlbertError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, content: dict) -> "AlbertConfig":
        """Like the constructor, for the keys that released files have."""
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
        unknown = [
            key for key in content if key not in (*known, *_IGNORED_KEYS)
        ]
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
    """Configs by name; an unknown name gets a suggestion."""

    def __missing__(self, name):
        close = difflib.get_close_matches(str(name), self, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownName(
            f"VARIANTS has {', '.join(map(repr, self))}. "
            f"Received: {name!r}.{hint}"
        )


def _variants() -> dict[str, AlbertConfig]:
    """Released sizes (Paper Table 1; dropouts from the released configs)."""
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
