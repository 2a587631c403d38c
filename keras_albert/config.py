"""Every default of the package, written once, with its unit and source.

Sources: "Paper" is Lan et al. 2019 (arXiv:1909.11942v6); "reference" is
google-research/albert at b772393. Letters in brackets are the paper's:
E embedding size, H hidden size, L layers, A attention heads, V vocabulary.

This module imports the standard library only, so that reading a config or
printing `keras-albert --help` costs nothing.
"""

import dataclasses
import difflib
import json
import math
from pathlib import Path
from typing import Any, Literal


class AlbertError(ValueError):
    """A mistake in the user's input: says what, expected, received, remedy.

    The command line prints its message on one line and exits with status 2.
    """


class UnknownName(AlbertError, KeyError):
    """A key that a mapping of this package does not have."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class LostProcess(AlbertError):
    """Another process of the run cannot be reached: no mistake of a user."""


LARGEST_COUNT = 2**31 - 1  # backends count in int32
# Blocks that a token passes. The deepest published ALBERT has 48; shared ones
# have no weights of their own that would bound a damaged number in a file.
MOST_BLOCKS = 10_000


def is_number(value) -> bool:
    """Whether this is a finite int or float (bool is neither)."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def check_positive(name: str, value: int) -> None:
    """AlbertError unless `value` is an integer of 1 or more."""
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise AlbertError(
            f"`{name}` must be a positive integer (up to {LARGEST_COUNT}). "
            f"Received: {name}={value!r}."
        )


def check_flag(name: str, value: bool) -> None:
    """AlbertError unless `value` is True or False."""
    if type(value) is not bool:
        raise AlbertError(
            f"`{name}` must be True or False. Received: {name}={value!r}."
        )


def check_seed(seed: int) -> None:
    """AlbertError unless `seed` is an integer, 0 or more."""
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise AlbertError(
            "`seed` must be an integer from 0 to 4294967295. "
            f"Received: seed={seed!r}."
        )


def check_positive_number(name: str, value: float) -> None:
    """AlbertError unless `value` is a finite number above 0."""
    if not is_number(value) or value <= 0:
        raise AlbertError(
            f"`{name}` must be a positive number. Received: {name}={value!r}."
        )


def check_probability(name: str, value: float) -> None:
    """AlbertError unless `value` is in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise AlbertError(
            f"`{name}` must be in [0, 1). Received: {name}={value!r}."
        )


def check_choice(name: str, value, choices: tuple) -> None:
    """AlbertError unless `value` is one of `choices`."""
    if value not in choices:
        raise AlbertError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}."
        )


def check_warmup(warmup_steps: int, steps: int) -> None:
    """AlbertError unless the warm-up ends before the run does."""
    if type(warmup_steps) is not int or not 0 <= warmup_steps < steps:
        raise AlbertError(
            "`warmup_steps` must be an integer from 0 to steps - 1. Received: "
            f"warmup_steps={warmup_steps!r}, steps={steps}. A tenth of the "
            "steps is usual."
        )


def check_parts(batch_size: int, accumulate: int) -> None:
    """AlbertError unless a batch has so many equal parts."""
    if batch_size % accumulate:
        raise AlbertError(
            "`batch_size` must be a multiple of `accumulate`. Received: "
            f"batch_size={batch_size}, accumulate={accumulate}."
        )


def read_json(path: str | Path):
    """The content of a JSON file, or an AlbertError that names the file."""
    path = Path(path)
    if not path.is_file():
        raise AlbertError(f"{path}: no such file.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AlbertError(f"{path}: not a JSON file ({error}).") from None


# Token ids fixed by the vocabulary recipe (reference README, "sentencepiece").
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")

# File names inside the folders that the commands write.
MODEL_FILE = "model.keras"
CONFIG_FILE = "albert_config.json"
VOCAB_FILE = "spiece.model"
VOCAB_SETTINGS_FILE = "spiece.json"  # Tokenizer.settings
TASK_FILE = "task.json"
CARD_FILE = "README.md"  # the model card
REPORT_FILE = "report.json"
RUN_FILE = "run.json"
LOG_FILE = "log.csv"
CURVES_FILE = "curves.png"
CONFUSION_FILE = "confusion.png"
CHECKPOINTS_FOLDER = "checkpoints"
LOCK_FILE = ".lock"  # of the process that is at work on a run
TENSORBOARD_FOLDER = "tensorboard"

QA_BEAM = 5  # starts, and ends of each (reference run_squad_v2.py)
FILL_MASK_CHOICES = 5  # pieces shown for a [MASK]
LORA_TARGETS = ("query", "value")  # Hu et al. 2021, section 7.1
# Texts given to a model are padded to a multiple: few shapes to compile.
LENGTH_STEP = 32
LAYER_NORM_EPSILON = 1e-12  # tf.contrib.layers.layer_norm, float32
CLASSIFIER_DROPOUT = 0.1  # Paper Table 14, every task
MASKED_LM_LOSS_EPSILON = 1e-5  # reference run_pretraining.py, denominator
# Weights that LAMB neither decays nor adapts (reference optimization.py L90).
EXCLUDED_WEIGHTS = ("LayerNorm", "layer_norm", "bias")

# Keys of released albert_config.json files that change nothing in the model.
_IGNORED_KEYS = (
    "down_scale_factor",
    "gap_size",
    "net_structure_type",
    "num_memory_blocks",
    "layers_to_keep",
    "ln_type",
)


# A mapped shard holds three open files, of which a process may usually have
# 1,024.
MOST_SHARDS = 256

LOOPS = ("unrolled", "scan")  # how the encoder repeats its layers
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
LOST_PROCESS_STATUS = 75  # "temporary failure" of sysexits.h: start again
DISTRIBUTIONS = (
    "auto",
    "none",
    "data",
    "model",
    "mirrored",
    "multiworker",
    "tpu",
)
SHARING = ("all", "attention", "ffn", "none")
SENTENCE_TASKS = ("sop", "nsp", "none")  # of pretraining examples
LENGTH_TARGETS = ("document", "example")
OWN_TASKS = (
    "classification",
    "pairs",
    "regression",
    "multilabel",
    "tokens",
    "choice",
    "qa",
)
BENCHMARK_TASKS = (
    "CoLA",
    "SST-2",
    "MRPC",
    "STS-B",
    "QQP",
    "MNLI",
    "QNLI",
    "RTE",
    "WNLI",
    "RACE",
    "SQuAD-1.1",
    "SQuAD-2.0",
)
FINETUNE_TASKS = OWN_TASKS + BENCHMARK_TASKS
# What a model is used for without fine-tuning: a vector for a text, and the
# pieces that may stand at "[MASK]".
EMBEDDING, FILL_MASK = PRETRAINED_TASKS = ("embedding", "fill_mask")
# Those whose contexts, of any length, are read in windows.
READING_TASKS = ("qa", "SQuAD-1.1", "SQuAD-2.0")
SINGLE_SENTENCES = ("skip_order", "random_document")
LONGEST_SEQUENCE = 2**16  # tokens; masking numbers words with 16 bits
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


@dataclasses.dataclass(frozen=True)
class VocabRun:
    """Train a SentencePiece vocabulary with ALBERT's recipe."""

    input: tuple[str, ...]
    """files, or quoted patterns of them, as for `prepare`"""
    output: Path
    """folder for spiece.model; made if absent, must hold no other run"""
    vocab_size: int = AlbertConfig.vocab_size
    """pieces, special and user symbols included"""
    character_coverage: float = 0.99995
    """share of all characters that get a piece (reference README)"""
    cased: bool = False
    """keep capital letters (the released vocabularies lower-case)"""
    keep_accents: bool = False
    """keep accents and all other marks, and know the words of any script (the
    released vocabularies drop marks and know English words)"""
    column: str = "text"
    """of JSONL and Parquet files: the one that holds the text"""

    def __post_init__(self):
        check_positive("vocab_size", self.vocab_size)
        if not is_number(self.character_coverage) or not (
            0.9 <= self.character_coverage <= 1
        ):
            raise AlbertError(
                "`character_coverage` must be in [0.9, 1]. "
                f"Received: {self.character_coverage!r}."
            )


@dataclasses.dataclass(frozen=True)
class PrepareRun:
    """Tokenize text into memory-mapped token shards.

    A run that was stopped goes on when the same command is given again.
    """

    input: tuple[str, ...]
    """files, or quoted patterns of them such as 'corpus/**/*.txt': text
    (UTF-8), one sentence or paragraph a line, blank line between documents;
    .jsonl and .parquet, a document a row; text and JSONL also as .gz"""
    vocab: Path
    """spiece.model, or the folder that holds it"""
    output: str
    """folder for the shards; made if absent, must hold no other run"""
    column: str = VocabRun.column
    """of JSONL and Parquet files: the one that holds the text"""
    split_sentences: str | None = None
    """split paragraphs into sentences by the rules of this language, for
    example en (whose rules are also for languages without their own); lines
    stay as they are when not given"""
    workers: int | None = None
    """processes; as many as there are cores when not given"""
    shard_bytes: int = 16_000_000
    """text that becomes a shard, about; more in corpora of gigabytes"""
    any_text: bool = False
    """go on though the vocabulary cannot read half of the text or more"""
    beam: tuple[str, ...] | None = None
    """run as an Apache Beam pipeline with these options, name=value each, for
    example runner=DataflowRunner; paths may then be gs:// and the like"""

    def __post_init__(self):
        if self.workers is not None:
            check_positive("workers", self.workers)
        check_positive("shard_bytes", self.shard_bytes)
        check_flag("any_text", self.any_text)


@dataclasses.dataclass(frozen=True)
class ExampleConfig:
    """How pretraining examples are cut from documents and masked."""

    sequence_length: int = 512
    """tokens in an example, [CLS] and [SEP] included (Paper 4.1)"""
    max_predictions: int = 20
    """most masked tokens in an example (reference run_pretraining.py)"""
    masked_lm_prob: float = 0.15
    """share of tokens to predict, before the limit above"""
    ngram: int = 3
    """longest masked n-gram, in words; p(n) is proportional to 1/n (Paper
    4.1)"""
    short_seq_prob: float = 0.1
    """share of documents cut to a random shorter length (Paper 4.1)"""
    sentence_task: Literal[SENTENCE_TASKS] = SENTENCE_TASKS[0]
    """sop: are the segments swapped (Paper 3.1); nsp: is the second one from
    another document (BERT); none: whole sentences of a document as a single
    segment (RoBERTa, DOC-SENTENCES)"""
    target_per: Literal[LENGTH_TARGETS] = LENGTH_TARGETS[0]
    """what a shorter length is drawn for: a document (reference), or each
    example"""
    single_sentence: Literal[SINGLE_SENTENCES] = SINGLE_SENTENCES[0]
    """an example of a single sentence has no order: leave it out of the
    sentence task, or pair it with a random document and label it 1 as the
    reference does, which teaches topic"""
    cross_sep: bool = False
    """let words and n-grams reach over [SEP], as in the reference"""
    pack: bool = False
    """let short examples share a row of `sequence_length` tokens, without
    seeing one another, instead of padding it; a batch then counts rows"""
    max_examples: int = 16
    """most examples in a shared row. Sixteen fill 0.99 of rows of 512 tokens
    with paragraphs (97 tokens on average), eight 0.90; each one more takes a
    place in every batch"""

    def __post_init__(self):
        for name in (
            "sequence_length",
            "max_predictions",
            "ngram",
            "max_examples",
        ):
            check_positive(name, getattr(self, name))
        check_flag("pack", self.pack)
        if not 8 <= self.sequence_length <= LONGEST_SEQUENCE:
            raise AlbertError(
                "`sequence_length` must be at least 8 tokens and at most "
                f"{LONGEST_SEQUENCE}. Received: {self.sequence_length}."
            )
        check_choice("sentence_task", self.sentence_task, SENTENCE_TASKS)
        check_choice("target_per", self.target_per, LENGTH_TARGETS)
        check_choice("single_sentence", self.single_sentence, SINGLE_SENTENCES)
        check_flag("cross_sep", self.cross_sep)
        # The default may stand with short sequences: what is unused is masked.
        if self.max_predictions > max(
            self.sequence_length, ExampleConfig.max_predictions
        ):
            raise AlbertError(
                "`max_predictions` must not exceed `sequence_length`. "
                f"Received: max_predictions={self.max_predictions}, "
                f"sequence_length={self.sequence_length}."
            )
        check_probability("masked_lm_prob", self.masked_lm_prob)
        check_probability("short_seq_prob", self.short_seq_prob)
        if self.masked_lm_prob == 0:
            raise AlbertError(
                "`masked_lm_prob` must be above 0: nothing would be predicted."
            )

    @property
    def num_predictions(self) -> int:
        """Most predictions in an example: no more than a full one asks for,
        since unused ones cost as much."""
        budget = max(1, round(self.sequence_length * self.masked_lm_prob))
        return min(self.max_predictions, budget)

    @property
    def row_predictions(self) -> int:
        """Predictions that a batch has room for in each row: as many as
        its examples can ask for.

        An example of n tokens asks for max(1, round(n p)), which is at most
        n p + 1/2, or, of its three tokens or more, n p + 1 - 3 p.
        """
        if not self.pack:
            return self.num_predictions
        share = self.masked_lm_prob
        rounding = self.max_examples * max(0.5, 1 - 3 * share)
        room = self.sequence_length * share + rounding
        return min(self.max_examples * self.num_predictions, int(room + 1e-6))

    @property
    def row_examples(self) -> int:
        """Examples that a batch has room for in each row."""
        return self.max_examples if self.pack else 1

    @property
    def needs_other_documents(self) -> bool:
        """Whether some examples pair two documents."""
        return self.sentence_task == "nsp" or self.pairs_single_sentences

    @property
    def pairs_single_sentences(self) -> bool:
        """Whether a single sentence is paired with a random document."""
        return (
            self.sentence_task != "none"
            and self.single_sentence == "random_document"
        )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """LAMB as published (Paper 4.1; reference optimization.py).

    The learning rate is meant for a batch of 4096. For a smaller batch scale
    it with the square root: 0.00176 * sqrt(batch_size / 4096).
    """

    optimizer: Literal["lamb", "adamw"] = "lamb"
    """adamw is LAMB without the trust ratio, as in the reference"""
    learning_rate: float = 0.00176
    """peak learning rate"""
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    """largest global gradient norm"""
    ema_momentum: float | None = None
    """momentum of moving averages of the weights: they are then evaluated and
    saved instead of the weights; off when not given"""

    def __post_init__(self):
        for name in ("learning_rate", "epsilon", "clip_norm"):
            check_positive_number(name, getattr(self, name))
        check_probability("beta_1", self.beta_1)
        check_probability("beta_2", self.beta_2)
        if self.ema_momentum is not None:
            check_probability("ema_momentum", self.ema_momentum)
        if not is_number(self.weight_decay) or self.weight_decay < 0:
            raise AlbertError(
                "`weight_decay` must be 0 or more. "
                f"Received: {self.weight_decay!r}."
            )
        if self.optimizer not in ("lamb", "adamw"):
            raise AlbertError(
                '`optimizer` must be "lamb" or "adamw". '
                f"Received: {self.optimizer!r}."
            )


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """The processes of a run, where neither TPU, TF_CONFIG nor torchrun tell.

    For JAX and PyTorch; TensorFlow's are named by TF_CONFIG, but for `wait`.
    """

    coordinator: str | None = None
    """HOST:PORT where process 0 listens, the same in every process"""
    count: int | None = None
    """how many processes there are"""
    index: int | None = None
    """which of them this is, from 0"""
    wait: int = 300
    """seconds to wait for the others before giving up: when a run starts, when
    one of them is lost, and while process 0 saves"""

    def __post_init__(self):
        check_positive("processes.wait", self.wait)
        given = [self.coordinator, self.count, self.index]
        if given == [None] * 3:
            return
        host, _, port = (self.coordinator or "").rpartition(":")
        is_port = port.isdecimal() and 1 <= int(port) < 2**16
        if None in given or not host or not is_port:
            raise AlbertError(
                "several processes need --processes.coordinator HOST:PORT, "
                "PORT from 1 to 65535, --processes.count and "
                "--processes.index. Received: "
                f"coordinator={self.coordinator!r}, count={self.count!r}, "
                f"index={self.index!r}."
            )
        check_positive("processes.count", self.count)
        if type(self.index) is not int or not 0 <= self.index < self.count:
            raise AlbertError(
                "`processes.index` must be an integer from 0 to count - 1. "
                f"Received: index={self.index!r}, count={self.count}."
            )


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """The devices of a run; the fields are those of the runs that train."""

    distribution: str = "auto"
    model_parallel: int = 1
    steps_per_execution: int = 1
    processes: ProcessConfig = ProcessConfig()

    def __post_init__(self):
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        check_positive("model_parallel", self.model_parallel)
        check_positive("steps_per_execution", self.steps_per_execution)
        if (self.distribution == "model") != (self.model_parallel > 1):
            raise AlbertError(
                "`distribution=model` and `model_parallel` of 2 or more go "
                f"together. Received: distribution={self.distribution!r}, "
                f"model_parallel={self.model_parallel}."
            )

    @classmethod
    def of(cls, run: "PretrainRun | FinetuneRun") -> "DeviceConfig":
        """That of a run."""
        return cls(
            **{
                field.name: getattr(run, field.name)
                for field in dataclasses.fields(cls)
                if hasattr(run, field.name)
            }
        )


@dataclasses.dataclass(frozen=True)
class PretrainRun:
    """Pretrain: masked-LM with n-gram masking and sentence-order prediction.

    The same command again goes on where an interrupted run stopped. `--file
    run.toml` reads options from a TOML file or a run.json, `--set
    optimizer.learning_rate=0.002` changes one; the options below win over both.
    """

    data: Path
    """folder of token shards, written by `prepare`"""
    output: Path
    """folder for the model; made if absent, must hold no other run than an
    interrupted one of the same settings, which then goes on"""
    config: Path | None = None
    """albert_config.json of the model; without it, --variant counts"""
    variant: Literal[tuple(VARIANTS)] = "base_v2"
    """a released size, with the vocabulary of the shards"""
    validation: Path | None = None
    """folder of held-out token shards: the model of the lowest loss on them
    is kept; without it nothing is held out, and the last one is kept"""
    batch_size: int = 4096
    """examples in a step (Paper 4.1); rows of them with --examples.pack"""
    accumulate: int = 1
    """equal parts that a batch is computed in, one after another: less memory.
    The gradients of the parts are averaged"""
    steps: int = 125_000
    """optimizer steps (Paper 4.1)"""
    warmup_steps: int = 3_125
    """steps of linear warm-up (reference run_pretraining.py)"""
    short_steps: int = 0
    """first steps, whose examples have `short_length` tokens; nine tenths of
    all in BERT (Devlin et al. 2018, appendix A.2), none in ALBERT"""
    short_length: int = 128
    """tokens in an example of those steps"""
    validate_every: int = 1_000
    """steps between two validations, log lines and saved models"""
    validation_steps: int | None = None
    """batches in a validation; all of the held-out shards when not given"""
    checkpoint_every: int | None = None
    """steps between two checkpoints, from which an interrupted run goes on; as
    --validate-every when not given"""
    keep_checkpoints: int = 2
    """newest checkpoints to keep, besides that of the best held-out loss"""
    tensorboard: bool = False
    """write the log for TensorBoard, too, into OUTPUT/tensorboard"""
    seed: int = 0
    """of initial weights, examples and dropout"""
    warm_start: str | None = None
    """model to start from, with fewer layers or groups (Paper Table 11);
    anything that `convert --input` takes"""
    precision: Literal[PRECISIONS] = PRECISIONS[0]
    """what the model computes in; weights, logits and losses stay float32"""
    loop: Literal[LOOPS] = LOOPS[0]
    """scan compiles one layer and loops over it (TPU); unrolled elsewhere"""
    remat: bool = False
    """compute activations again for the gradient: less memory, more time"""
    distribution: Literal[DISTRIBUTIONS] = DeviceConfig.distribution
    """which devices compute a part of each batch. auto: all GPUs or TPUs that
    this process sees, or was told of. data: JAX's devices, PyTorch's processes.
    model: JAX's, which also divide the weights. mirrored, multiworker, tpu:
    TensorFlow's strategies"""
    model_parallel: int = DeviceConfig.model_parallel
    """devices that the weights are divided among, with `model`"""
    steps_per_execution: int = DeviceConfig.steps_per_execution
    """steps in a call of the compiled program, with TensorFlow's strategies: a
    TPU then waits less for its host"""
    processes: ProcessConfig = DeviceConfig.processes
    examples: ExampleConfig = ExampleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self):
        DeviceConfig.of(self)
        for name in (
            "batch_size",
            "accumulate",
            "steps",
            "validate_every",
            "keep_checkpoints",
        ):
            check_positive(name, getattr(self, name))
        for name in ("validation_steps", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_parts(self.batch_size, self.accumulate)
        for name in ("steps", "validate_every", "checkpoint_every"):
            if (getattr(self, name) or 0) % self.steps_per_execution:
                raise AlbertError(
                    f"`{name}` must be a multiple of `steps_per_execution`. "
                    f"Received: {name}={getattr(self, name)}, "
                    f"steps_per_execution={self.steps_per_execution}."
                )
        check_warmup(self.warmup_steps, self.steps)
        check_seed(self.seed)
        check_positive("short_length", self.short_length)
        if type(self.short_steps) is not int or not (
            0 <= self.short_steps < self.steps
        ):
            raise AlbertError(
                "`short_steps` must be an integer from 0 to steps - 1. "
                f"Received: short_steps={self.short_steps!r}, "
                f"steps={self.steps}."
            )
        longest = self.examples.sequence_length
        if self.short_steps and self.short_length >= longest:
            raise AlbertError(
                "`short_length` must be below `examples.sequence_length`. "
                f"Received: short_length={self.short_length}, "
                f"examples.sequence_length={longest}."
            )
        self.examples_of(1)

    def examples_of(self, step: int) -> ExampleConfig:
        """The examples of a step, counted from 1."""
        if step > self.short_steps:
            return self.examples
        return dataclasses.replace(
            self.examples, sequence_length=self.short_length
        )


@dataclasses.dataclass(frozen=True)
class CompileRun:
    """Compile the training step of `pretrain` for a TPU slice, without a TPU.

    Says how much memory it needs, what the devices exchange, and the largest
    batch that fits. The options are those of `pretrain`.
    """

    topology: str
    """the slice, as Cloud TPU names it: v5e-16, v6e-8, v4-32, v3-8, v5p-8,
    and so on"""
    slices: int = 1
    """how many of them, joined by the data center's network"""
    model_parallel: int = DeviceConfig.model_parallel
    """devices that share the weights of one replica; the batch is divided by
    the others"""
    config: Path | None = PretrainRun.config
    """albert_config.json of the model; without it, --variant counts"""
    variant: Literal[tuple(VARIANTS)] = PretrainRun.variant
    """a released size"""
    batch_size: int = PretrainRun.batch_size
    """examples in a step, on all devices; rows of them with --examples.pack"""
    accumulate: int = PretrainRun.accumulate
    """equal parts that a batch is computed in: one of them is compiled"""
    precision: Literal[PRECISIONS] = PretrainRun.precision
    """what the model computes in; mixed_bfloat16 is what a TPU is fast in"""
    loop: Literal[LOOPS] = PretrainRun.loop
    """scan, with --remat, takes the least memory and compiles the fastest"""
    remat: bool = PretrainRun.remat
    """compute activations again for the gradient: less memory, more time"""
    search: bool = True
    """look for the largest batch that fits: some compilations more"""
    examples: ExampleConfig = PretrainRun.examples
    optimizer: OptimizerConfig = PretrainRun.optimizer

    def __post_init__(self):
        for name in ("slices", "model_parallel", "batch_size", "accumulate"):
            check_positive(name, getattr(self, name))
        check_parts(self.batch_size, self.accumulate)


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """How a question and its context are cut into windows."""

    sequence_length: int = 384
    """most tokens in a window, [CLS] and two [SEP] included (Paper Table 14,
    SQuAD 1.1; 512 for SQuAD 2.0)"""
    stride: int = 128
    """tokens of the context from one window to the next (reference
    run_squad_v1.py, run_squad_v2.py: doc_stride)"""
    query_length: int = 64
    """most tokens of a question; the rest is cut off (the same:
    max_query_length)"""

    def __post_init__(self):
        for name in ("sequence_length", "stride", "query_length"):
            check_positive(name, getattr(self, name))
        if self.sequence_length <= self.query_length + 3:
            raise AlbertError(
                "`sequence_length` must be above `query_length` + 3, or no "
                "context fits beside a long question. Received: "
                f"sequence_length={self.sequence_length}, "
                f"query_length={self.query_length}."
            )


@dataclasses.dataclass(frozen=True)
class AnswerConfig:
    """Which answers are considered (reference run_squad_v1.py)."""

    n_best: int = 20
    """most answers to a question; also how many starts and ends of a window
    are combined to answers"""
    answer_length: int = 30
    """most tokens of an answer"""

    def __post_init__(self):
        check_positive("n_best", self.n_best)
        check_positive("answer_length", self.answer_length)


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """How contexts are cut into windows: what may be left open."""

    stride: int | None = None
    """tokens of the context from one window to the next; 128 (reference
    run_squad_v1.py), or a third of a window if that is less, when not given"""
    query_length: int | None = None
    """most tokens of a question, the rest is cut off; 64 (the same), or a
    third of a window if that is less, when not given"""

    def of(self, sequence_length: int) -> WindowConfig:
        """The windows of so many tokens; AlbertError if they are too short."""
        third = max(sequence_length // 3, 1)
        return WindowConfig(
            sequence_length,
            self.stride or min(WindowConfig.stride, third),
            self.query_length or min(WindowConfig.query_length, third),
        )

    def __post_init__(self):
        for name in ("stride", "query_length"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """How a fine-tuned model reads contexts for answers."""

    windows: WindowConfig
    answers: AnswerConfig
    threshold: float | None = 0.0
    """a question is answered with "" where more than this speaks for "no
    answer": a logit, 0 being a probability of 0.5. None: what is best for the
    examples at hand"""

    @classmethod
    def from_dict(cls, settings: dict) -> "ReadingConfig":
        """The inverse of `dataclasses.asdict`."""
        return cls(
            WindowConfig(**settings["windows"]),
            AnswerConfig(**settings["answers"]),
            settings["threshold"],
        )


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Which columns of a TSV, CSV, JSONL or Parquet file hold what."""

    text: str = "text"
    """column of the text"""
    pair: str | None = None
    """column of the second text of a pair, where there is one"""
    label: str = "label"
    """column of the label; of several labels, of a label for each word, of a
    number, or of the right choice"""
    question: str | None = None
    """column of the question about a text: where there are choices, or
    answers (question when not given)"""
    choices: str = "choices"
    """column of the choices"""
    context: str = "context"
    """column of the text that answers a question"""
    answers: str = "answers"
    """column of the answers to a question: a list of {text, answer_start}, or
    of texts that the context has once; empty where it has no answer"""


OWN_VALIDATION = Path("auto")  # a part of the training table


@dataclasses.dataclass(frozen=True)
class FinetuneRun:
    """Fine-tune a model on labelled texts with model.fit.

    The same command again goes on where an interrupted run stopped. `--recipe
    paper` takes the hyper-parameters of the paper's Table 14 for --task, or
    `--recipe MRPC` those of MRPC; the options below win over it.
    """

    model: str
    """a pretrained model: a folder written by `pretrain` or `convert`, a
    released archive (albert_config.json, model.ckpt-best.*, *.model), a folder
    of transformers or KerasHub, hf://organization/name, kaggle://..."""
    train: Path
    """TSV, CSV, JSONL or Parquet file with a text and a label column, for
    `qa` also SQuAD's JSON; for a published task (CoLA and so on) the
    benchmark's own folder"""
    output: Path
    """folder for the model; made if absent, must hold no other run"""
    task: Literal[FINETUNE_TASKS] = FINETUNE_TASKS[0]
    """what to learn of a text: one label (or of a pair of texts); a number;
    any number of labels; a label for each word; the right one of several
    choices; where it answers a question (qa); or a published task, with its
    files, labels and scores"""
    validation: Path | None = OWN_VALIDATION
    """file to evaluate on after each epoch: the model of the best one is kept.
    auto: a tenth of --train, which is then not learned from (of 50 rows or
    more; the same rows for every seed). none: nothing. A published task has
    its own"""
    validate_every: int | None = None
    """steps between two evaluations; an epoch when not given"""
    patience: int | None = None
    """evaluations without a better model after which to stop; all of them when
    not given"""
    checkpoint_every: int | None = None
    """steps between two checkpoints, from which an interrupted run goes on; as
    --validate-every when not given"""
    class_weights: bool = False
    """weigh examples so that each label counts the same in all"""
    skip_bad: bool = False
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = False
    """take a published task's files though they have not as many rows as
    published"""
    any_text: bool = PrepareRun.any_text
    """go on though the vocabulary cannot read half of the text or more"""
    from_scratch: bool = False
    """keep the model's architecture and vocabulary, but start from random
    weights: the baseline that shows what pretraining gave"""
    sequence_length: int | None = None
    """longest text, in tokens; the rest is cut off. As long as the model can
    (512 in released models and in the reference) when not given. Of a context
    nothing is cut off: it is read in windows of this many (384, if the model
    can, when not given)"""
    batch_size: int | None = None
    """examples in a step; chosen when not given: 16 where --train has fewer
    than 10,000 rows, else 32"""
    epochs: int | None = None
    """passes over the training file; chosen when not given: for fewer than
    10,000 rows 10, or as many as make 1,000 steps (up to 50); 5 for fewer than
    100,000 rows, else 3"""
    steps: int | None = None
    """optimizer steps, instead of --epochs"""
    learning_rate: float | None = None
    """peak learning rate; chosen when not given: 3e-4 for models of a width up
    to 256, 1e-4 below 768, else 2e-5"""
    warmup_share: float = 0.1
    """share of the steps used for linear warm-up (Table 14: 0.06 in CoLA, 0.1
    in MNLI, 0.25 in RTE)"""
    warmup_steps: int | None = None
    """steps of linear warm-up, instead of --warmup-share"""
    classifier_dropout: float = CLASSIFIER_DROPOUT
    """dropout before the classifier (Paper Table 14)"""
    dropout: float | None = None
    """hidden and attention dropout of the encoder (Table 14, "ALBERT DR");
    as in the pretrained config when not given"""
    seed: int = 0
    """of the classifier's weights, the order of examples and dropout"""
    seeds: int = 1
    """runs, one after another, with this many seeds from --seed on, each in a
    folder of its own in OUTPUT; the report has their median, as the paper's
    (of 5 runs, 4.1), and spread"""
    precision: Literal[PRECISIONS] = PRECISIONS[0]
    """what the model computes in; weights, logits and losses stay float32"""
    remat: bool = False
    """compute activations again for the gradient: less memory, more time"""
    distribution: Literal[DISTRIBUTIONS] = DeviceConfig.distribution
    """which devices compute a part of each batch, see `pretrain`"""
    model_parallel: int = DeviceConfig.model_parallel
    """devices that the weights are divided among, with `model`"""
    processes: ProcessConfig = DeviceConfig.processes
    columns: TableColumns = TableColumns()
    windows: WindowOptions = WindowOptions()
    """of contexts"""
    answers: AnswerConfig = AnswerConfig()
    """to questions"""

    def __post_init__(self):
        DeviceConfig.of(self)
        check_positive("seeds", self.seeds)
        for name in (
            "class_weights",
            "skip_bad",
            "any_size",
            "any_text",
            "from_scratch",
        ):
            check_flag(name, getattr(self, name))
        for name in (
            "batch_size",
            "epochs",
            "patience",
            "sequence_length",
            "steps",
            "validate_every",
            "checkpoint_every",
        ):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_choice("task", self.task, FINETUNE_TASKS)
        published = self.task in BENCHMARK_TASKS
        if str(self.validation).lower() == "none":
            object.__setattr__(self, "validation", None)
        if published and self.validation != OWN_VALIDATION:
            raise AlbertError(
                f"{self.task} has held-out examples of its own. Leave "
                "--validation out."
            )
        if not published and self.validation is None:
            for name in ("patience", "validate_every"):
                if getattr(self, name) is not None:
                    raise AlbertError(
                        f"`{name}` needs held-out examples. Give them with "
                        "--validation, or leave out `--validation none`."
                    )
        if self.any_size and not published:
            raise AlbertError(
                "`any_size` is for published tasks. Received: "
                f"task={self.task!r}."
            )
        if self.task not in READING_TASKS:
            for name in ("windows", "answers"):
                if getattr(self, name) != getattr(FinetuneRun, name):
                    raise AlbertError(
                        f"`{name}` are for {', '.join(READING_TASKS)}. "
                        f"Received: task={self.task!r}."
                    )
        if self.warmup_steps is not None and self.steps is None:
            raise AlbertError("`warmup_steps` goes with `steps`. Give --steps.")
        if self.warmup_steps is not None:
            check_warmup(self.warmup_steps, self.steps)
        if self.learning_rate is not None:
            check_positive_number("learning_rate", self.learning_rate)
        check_probability("warmup_share", self.warmup_share)
        check_probability("classifier_dropout", self.classifier_dropout)
        if self.dropout is not None:
            check_probability("dropout", self.dropout)
        check_seed(self.seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUse:
    """What a model is used for, where its own folder does not say so.

    The commands that use a fine-tuned model inherit these options, so that the
    command line has them without a prefix.
    """

    task: Literal[FINETUNE_TASKS + PRETRAINED_TASKS] | None = None
    """what the model is for, where its folder does not say so and several
    tasks fit its head: pairs, above all"""
    labels: tuple[str, ...] | None = None
    """names of the classes in the order of the model's outputs, where it has
    none; 0, 1 and so on when not given"""
    columns: TableColumns = TableColumns()
    """columns of the tables that the model reads; when not given, those of the
    table that it was trained on"""

    @property
    def given(self) -> dict:
        """The options that were given, as `Predictor.load` takes them."""
        options = {name: getattr(self, name) for name in ("task", "labels")}
        if self.columns != TableColumns():
            options["columns"] = self.columns
        return options


@dataclasses.dataclass(frozen=True)
class EvaluateRun(ModelUse):
    """Evaluate a fine-tuned model on a table, or a pretrained one on shards."""

    model: str
    """folder written by `finetune`, `pretrain` or `Predictor.save`, or
    anything else that `convert --input` takes: a ready classifier"""
    data: Path
    """TSV, CSV, JSONL or Parquet file for a fine-tuned model (or SQuAD's JSON,
    if it answers questions); the benchmark's folder if it was a published
    task; folder of token shards for a pretrained one"""
    batch_size: int = 32
    """examples at a time"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = FinetuneRun.any_size
    """take a published task's files though they have not as many rows as
    published"""
    split: Literal["dev", "test"] = "dev"
    """of a published task; `test` has labels in RACE alone"""
    any_text: bool = PrepareRun.any_text
    """go on though the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_positive("batch_size", self.batch_size)
        check_flag("skip_bad", self.skip_bad)
        check_flag("any_size", self.any_size)
        check_flag("any_text", self.any_text)


@dataclasses.dataclass(frozen=True)
class PredictRun(ModelUse):
    """Predict for the rows of a table; writes JSONL in the same order.

    Of a published task: the files that its benchmark takes.
    """

    model: str
    """folder written by `finetune`, or anything else that `convert --input`
    takes: a ready classifier; one that was only pretrained fills [MASK] in"""
    data: Path
    """TSV, CSV, JSONL or Parquet file; or text, one example a line (.txt); or
    SQuAD's JSON, of a model that answers questions; or the folder of GLUE, of
    a model for one of its tasks"""
    output: Path | None = None
    """JSONL file to write, standard output when not given; for SQuAD's JSON
    the file that the official scorer takes; for the folder of GLUE the folder
    of the files to submit"""
    n_best_output: Path | None = None
    """file for the best answers to each question of SQuAD's JSON, with their
    probabilities (the reference's nbest_predictions.json)"""
    null_odds_output: Path | None = None
    """file for how much speaks against an answer to each question of SQuAD's
    JSON (the reference's null_odds.json)"""
    batch_size: int = EvaluateRun.batch_size
    """examples at a time"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = FinetuneRun.any_size
    """take a published task's files though they have not as many rows as
    published"""
    any_text: bool = PrepareRun.any_text
    """go on though the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_positive("batch_size", self.batch_size)
        check_flag("skip_bad", self.skip_bad)
        check_flag("any_size", self.any_size)
        check_flag("any_text", self.any_text)


# How each format can store weights.
EXPORT_WEIGHTS = {
    "saved_model": ("float32", "bfloat16", "float16"),
    "litert": ("float32", "float16", "int8"),
    "onnx": ("float32", "int8"),
}
LARGEST_FALL = 0.01  # of an export's score below the model's: a point


@dataclasses.dataclass(frozen=True)
class ExportRun(ModelUse):
    """Export a model for servers and devices."""

    model: str
    """folder written by `finetune`, `pretrain` or `Predictor.save`, or
    anything else that `convert --input` takes; one that was only pretrained
    gives vectors and fills [MASK] in"""
    output: Path
    """folder of a SavedModel's versions; or of a LiteRT or ONNX model: made if
    absent, must hold nothing"""
    format: Literal["saved_model", "litert", "onnx"] = "saved_model"
    """saved_model: strings in, answers out, for TensorFlow Serving; litert and
    onnx: token ids in, with the vocabulary beside the model"""
    weights: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    """how they are stored; saved_model: all but int8, litert: all but
    bfloat16, onnx: float32 and int8"""
    version: int | None = None
    """of a saved_model: the folder OUTPUT/VERSION; the next one when not
    given"""
    data: Path | None = None
    """labelled table, SQuAD's JSON or a benchmark's folder (its dev split) on
    which the export is compared with the model; needed for int8"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows of `data` that cannot be read, and say how many"""
    force: bool = False
    """export although its score on `data` falls by more than a point, or
    texts are answered in another way than their ids, or without `data`"""

    def __post_init__(self):
        check_choice("format", self.format, tuple(EXPORT_WEIGHTS))
        if self.weights not in EXPORT_WEIGHTS[self.format]:
            raise AlbertError(
                f"--format {self.format} stores weights as "
                f"{', '.join(EXPORT_WEIGHTS[self.format])}. Received: "
                f"--weights {self.weights}."
            )
        if self.version is not None:
            check_positive("version", self.version)
            if self.format != "saved_model":
                raise AlbertError(
                    "`version` is for a saved_model. Received: --format "
                    f"{self.format}. Leave --version out."
                )
        check_flag("skip_bad", self.skip_bad)
        check_flag("force", self.force)
        if self.weights == "int8" and self.data is None and not self.force:
            raise AlbertError(
                "int8 may cost accuracy: name labelled examples as --data, on "
                "which it is compared with the model (or give --force)."
            )


@dataclasses.dataclass(frozen=True)
class CheckRun:
    """Compare an exported model with the one it was made from."""

    export: Path
    """what `export` wrote; of a SavedModel's versions the newest is taken, or
    the one whose folder this is"""
    model: str
    """what was exported, see `export --model`"""
    data: Path
    """a table as for `predict`; labels are not needed"""
    rows: int = 200
    """how many of it are compared, the first ones"""
    threads: int = 1
    """of LiteRT and ONNX Runtime"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """go on though the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_flag("skip_bad", self.skip_bad)
        check_flag("any_text", self.any_text)
        check_positive("rows", self.rows)
        check_positive("threads", self.threads)


@dataclasses.dataclass(frozen=True)
class ConvertRun(ModelUse):
    """Convert a checkpoint between formats."""

    input: str
    """what to convert: a TF1 checkpoint (folder with albert_config.json, or
    path without .index), a folder of transformers, KerasHub or this package, a
    .keras file, hf://organization/name[@revision], or
    kaggle://organization/model/framework/variation"""
    output: Path
    """folder for the result; made if absent, must hold nothing"""
    to: Literal["keras-albert", "huggingface", "kerashub"] = "keras-albert"
    """format of the result; keras-albert is what `finetune` and `load` take"""
    gelu: Literal["tanh", "erf"] = "tanh"
    """how "hidden_act": "gelu" of transformers is read: tanh, the original's
    only form, or erf, what transformers computes"""
    backbone: bool = False
    """convert the encoder alone, for a format that does not have the head"""
