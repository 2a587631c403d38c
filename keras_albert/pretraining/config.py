"""Settings of the pretraining examples and of the command `pretrain`."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.distribution.config import (
    DISTRIBUTIONS,
    DeviceConfig,
    ProcessConfig,
)
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_flag,
    check_positive,
    check_probability,
    check_seed,
)
from keras_albert.modeling.config import (
    LOOPS,
    PRECISIONS,
    SENTENCE_TASKS,
    VARIANTS,
)
from keras_albert.training.config import (
    OptimizerConfig,
    check_parts,
    check_warmup,
)

LENGTH_TARGETS = ("document", "example")


SINGLE_SENTENCES = ("skip_order", "random_document")


LONGEST_SEQUENCE = 2**16  # tokens; masking numbers words with 16 bits


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
        self.devices  # noqa: B018  checks the options of the devices
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

    @property
    def devices(self) -> DeviceConfig:
        """The devices of the run."""
        return DeviceConfig(
            self.distribution,
            self.model_parallel,
            self.steps_per_execution,
            self.processes,
        )

    def examples_of(self, step: int) -> ExampleConfig:
        """The examples of a step, counted from 1."""
        if step > self.short_steps:
            return self.examples
        return dataclasses.replace(
            self.examples, sequence_length=self.short_length
        )
