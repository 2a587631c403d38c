"""Settings of pretraining examples, and of the command `pretrain`."""

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
    check_fields,
    check_flag,
    check_positive,
    check_probability,
    check_seed,
    to_python_numbers,
)
from keras_albert.modeling.config import (
    LOOPS,
    PRECISIONS,
    SENTENCE_TASKS,
    SMALL,
    VARIANTS,
)
from keras_albert.training.config import (
    TEACHER_SHARE,
    TEMPERATURE,
    OptimizerConfig,
    check_parts,
    check_teaching,
    check_warmup,
)

DEFAULT_VARIANT = "base_v2"
SIZES = {**VARIANTS, "small": SMALL}  # of `pretrain --variant`
LENGTH_TARGETS = ("document", "example")
SINGLE_SENTENCES = ("skip_order", "random_document")
SHORTEST_SEQUENCE = 8  # tokens
LONGEST_SEQUENCE = 2**16  # tokens; masking.py stores word numbers in 16 bits


@dataclasses.dataclass(frozen=True)
class ExampleConfig:
    """How pretraining examples are cut from documents and masked."""

    sequence_length: int = 512
    """most tokens in an example, with [CLS] and [SEP]s (Paper 4.1)"""
    max_predictions: int = 20
    """most masked tokens in an example (reference run_pretraining.py)"""
    masked_lm_prob: float = 0.15
    """share of the tokens to predict, up to `max_predictions`. In held-out
    examples it is always the default, so that models can be compared"""
    ngram: int = 3
    """longest masked n-gram, in words; the probability of n is proportional to
    1/n (Paper 4.1)"""
    short_seq_prob: float = 0.1
    """share of documents (or of examples, see `target_per`) that get a random
    shorter length (Paper 4.1)"""
    sentence_task: Literal[SENTENCE_TASKS] = SENTENCE_TASKS[0]
    """sop: predict whether the segments are swapped (Paper 3.1); nsp: predict
    whether the second segment is from another document (BERT); none: no
    prediction, and each example is a single segment of whole sentences
    (RoBERTa, DOC-SENTENCES)"""
    target_per: Literal[LENGTH_TARGETS] = LENGTH_TARGETS[0]
    """whether a shorter length is drawn once for each document (as in the
    reference) or for each example"""
    single_sentence: Literal[SINGLE_SENTENCES] = SINGLE_SENTENCES[0]
    """what to do with an example of a single sentence, which has no order.
    skip_order: leave it out of the sentence task; random_document: pair it with
    a random document and label it 1, as the reference does, which makes the
    model learn topics"""
    cross_sep: bool = False
    """let words and n-grams cross [SEP], as in the reference"""
    pack: bool = False
    """pack several short examples into a row of `sequence_length` tokens
    instead of padding each; attention does not cross examples. `batch_size`
    then counts rows"""
    max_examples: int = 16
    """most examples in a packed row. For paragraphs (97 tokens on average) in
    rows of 512 tokens, 16 fill 99 % of the positions and 8 fill 90 %. A larger
    number makes every batch a little larger"""

    def __post_init__(self):
        to_python_numbers(self)
        sizes = "sequence_length max_predictions ngram max_examples"
        check_fields(check_positive, self, sizes)
        check_fields(check_flag, self, "pack cross_sep")
        lengths = SHORTEST_SEQUENCE, LONGEST_SEQUENCE
        if not lengths[0] <= self.sequence_length <= lengths[1]:
            raise AlbertError(
                f"`sequence_length` must be at least {lengths[0]} tokens and "
                f"at most {lengths[1]}. "
                f"Received: sequence_length={self.sequence_length}."
            )
        check_choice("sentence_task", self.sentence_task, SENTENCE_TASKS)
        check_choice("target_per", self.target_per, LENGTH_TARGETS)
        check_choice("single_sentence", self.single_sentence, SINGLE_SENTENCES)
        # The default is always allowed: `num_predictions` reduces it.
        if self.max_predictions > max(
            self.sequence_length, ExampleConfig.max_predictions
        ):
            raise AlbertError(
                "`max_predictions` must not exceed `sequence_length`. "
                f"Received: max_predictions={self.max_predictions}, "
                f"sequence_length={self.sequence_length}."
            )
        check_fields(check_probability, self, "masked_lm_prob short_seq_prob")
        if self.masked_lm_prob == 0:
            raise AlbertError(
                "`masked_lm_prob` must be above 0: nothing would be predicted."
            )

    def held_out(self) -> "ExampleConfig":
        """The settings for held-out text, with the default `masked_lm_prob`.

        Losses on examples with other shares of masked tokens could not be
        compared, since a model predicts better if it sees more of the text.
        """
        return dataclasses.replace(
            self, masked_lm_prob=ExampleConfig.masked_lm_prob
        )

    @property
    def num_predictions(self) -> int:
        """Most predictions in an example.

        This is the budget of an example of full length, if it is less than
        `max_predictions`: unused predictions would cost as much as used ones.
        """
        budget = max(1, round(self.sequence_length * self.masked_lm_prob))
        return min(self.max_predictions, budget)

    @property
    def row_predictions(self) -> int:
        """Most predictions in a row: the sum over its examples, at most.

        An example of n tokens has max(1, round(n p)) predictions, where p is
        `masked_lm_prob`. Rounding adds at most 1/2 to n p. The minimum of one
        adds at most 1 - 3 p, since an example has 3 tokens or more.
        """
        if not self.pack:
            return self.num_predictions
        share = self.masked_lm_prob
        rounding = self.max_examples * max(0.5, 1 - 3 * share)
        room = self.sequence_length * share + rounding
        return min(self.max_examples * self.num_predictions, int(room + 1e-6))

    @property
    def row_examples(self) -> int:
        """Most examples in a row."""
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

    The same command resumes an interrupted run. `--file run.toml` reads options
    from a TOML file or a run.json, and `--set optimizer.learning_rate=0.002`
    changes one of them; the options below override both. `--recipe small` takes
    the size and the settings of a run of less than two hours on two CPU cores.
    """

    data: Path
    """folder of token shards, written by `prepare`"""
    output: Path
    """folder for the model; created if absent. If it holds an interrupted run
    with the same settings, that run is resumed; any other run is an error"""
    config: Path | None = None
    """albert_config.json of the model; if not given, --variant is used"""
    variant: Literal[tuple(SIZES)] | None = None
    """a released size, or the one of `--recipe small`, with the vocabulary of
    the shards; if neither it nor --config is given, the size of --warm-start,
    else base_v2"""
    validation: Path | None = None
    """folder of held-out token shards. The model with the lowest loss on them
    is kept. If not given, the last model is kept"""
    batch_size: int = 4096
    """number of examples in a step (Paper 4.1), or of rows with
    --examples.pack"""
    accumulate: int = 1
    """number of equal parts of a batch that are computed one after another, to
    save memory; their gradients are averaged"""
    steps: int = 125_000
    """number of optimizer steps (Paper 4.1)"""
    warmup_steps: int = 3_125
    """steps of linear warm-up (reference run_pretraining.py)"""
    short_steps: int = 0
    """number of first steps, whose examples have `short_length` tokens; nine
    tenths of all steps in BERT (Devlin et al. 2018, appendix A.2), none in
    ALBERT"""
    short_length: int = 128
    """most tokens in an example of the first `short_steps` steps"""
    validate_every: int = 1_000
    """steps between validations, log lines and saved models"""
    validation_steps: int | None = None
    """batches in a validation; if not given, all of the held-out shards"""
    checkpoint_every: int | None = None
    """steps between checkpoints, from which an interrupted run resumes; if not
    given, --validate-every"""
    keep_checkpoints: int = 2
    """number of newest checkpoints to keep, besides the one with the lowest
    held-out loss"""
    tensorboard: bool = False
    """also write the log for TensorBoard, into OUTPUT/tensorboard"""
    seed: int = 0
    """seed of initial weights, examples and dropout"""
    warm_start: str | None = None
    """model to start from; it may have fewer layers or groups, or share other
    weights (Paper Table 11). Anything that `convert --input` accepts"""
    teacher: str | None = None
    """a pretrained model with the same vocabulary: the model also learns from
    its probabilities of masked pieces (distillation); on one device"""
    teacher_share: float = TEACHER_SHARE
    """weight of the loss for the teacher's probabilities; that for the masked
    pieces has the rest, up to 1"""
    temperature: float = TEMPERATURE
    """number by which the logits of teacher and student are divided, so that
    the less probable pieces count more"""
    precision: Literal[PRECISIONS] = PRECISIONS[0]
    """dtype policy of the model; weights, logits and losses stay float32"""
    loop: Literal[LOOPS] = LOOPS[0]
    """scan compiles one layer and loops over it, which is best on TPUs;
    unrolled is best elsewhere"""
    remat: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    distribution: Literal[DISTRIBUTIONS] = DeviceConfig.distribution
    """how each batch is divided among devices. auto: among all GPUs or TPUs
    that this process sees, and all configured processes. data: among JAX's
    devices or PyTorch's processes. model: among JAX's devices, together with
    the weights. mirrored, multiworker, tpu: TensorFlow's strategies of these
    names"""
    model_parallel: int = DeviceConfig.model_parallel
    """number of devices among which the weights are divided, with
    --distribution model"""
    steps_per_execution: int = DeviceConfig.steps_per_execution
    """steps in each call of the compiled program, with TensorFlow's strategies;
    with more steps a TPU waits less for its host. `steps`, `validate_every`,
    `checkpoint_every` and `short_steps` are multiples of it"""
    processes: ProcessConfig = DeviceConfig.processes
    examples: ExampleConfig = ExampleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self):
        # run.json also has the default `variant` of a run with `config`.
        if self.config and self.variant not in (None, DEFAULT_VARIANT):
            raise AlbertError(
                "`config` and `variant` both say the size of the model. "
                f"Received: {self.config} and {self.variant}. Leave one out."
            )
        if self.variant is None and (self.config or not self.warm_start):
            object.__setattr__(self, "variant", DEFAULT_VARIANT)
        self.devices  # noqa: B018  its constructor checks the options
        check_fields(
            check_positive,
            self,
            "batch_size accumulate steps validate_every keep_checkpoints "
            "validation_steps checkpoint_every short_length",
        )
        check_parts(self.batch_size, self.accumulate)
        if type(self.short_steps) is not int or not (
            0 <= self.short_steps < self.steps
        ):
            raise AlbertError(
                "`short_steps` must be an integer from 0 to steps - 1. "
                f"Received: short_steps={self.short_steps!r}, "
                f"steps={self.steps}."
            )
        # The steps of one compiled call have batches of the same shape: a
        # change of the length must not fall within a call either.
        counts = "steps", "validate_every", "checkpoint_every", "short_steps"
        for name in counts:
            value = getattr(self, name) or 0
            if more := value % self.steps_per_execution:
                near = value - more or self.steps_per_execution
                raise AlbertError(
                    f"`{name}` must be a multiple of `steps_per_execution`. "
                    f"Received: {name}={value}, "
                    f"steps_per_execution={self.steps_per_execution}. Give, "
                    f"for example, --{name.replace('_', '-')} {near}."
                )
        check_warmup(self.warmup_steps, self.steps)
        check_seed(self.seed)
        longest = self.examples.sequence_length
        fits = SHORTEST_SEQUENCE <= self.short_length < longest
        if self.short_steps and not fits:
            raise AlbertError(
                f"`short_length` must be at least {SHORTEST_SEQUENCE} tokens "
                "and below `examples.sequence_length`. "
                f"Received: short_length={self.short_length}, "
                f"examples.sequence_length={longest}."
            )
        self.examples_of(1)
        check_teaching(self.teacher, self.teacher_share, self.temperature)

    @property
    def devices(self) -> DeviceConfig:
        """The device settings of the run."""
        return DeviceConfig(
            self.distribution,
            self.model_parallel,
            self.steps_per_execution,
            self.processes,
        )

    def examples_of(self, step: int) -> ExampleConfig:
        """The settings of the examples of a step, counted from 1."""
        if step > self.short_steps:
            return self.examples
        most = min(self.examples.max_predictions, self.short_length)
        return dataclasses.replace(
            self.examples,
            sequence_length=self.short_length,
            max_predictions=most,
        )
