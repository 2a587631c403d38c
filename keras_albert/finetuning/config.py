"""Settings of the commands that use labelled data."""

import dataclasses
from pathlib import Path
from typing import Literal

from keras_albert.corpus.config import PrepareRun
from keras_albert.data.config import TableColumns
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
    check_positive_number,
    check_probability,
    check_seed,
)
from keras_albert.modeling.config import CLASSIFIER_DROPOUT, PRECISIONS
from keras_albert.tasks.config import ModelUse
from keras_albert.tasks.names import (
    BENCHMARK_TASKS,
    FINETUNE_TASKS,
    READING_TASKS,
)
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowOptions,
)
from keras_albert.training.config import check_warmup

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
        self.devices  # noqa: B018  checks the options of the devices
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

    @property
    def devices(self) -> DeviceConfig:
        """The devices of the run."""
        return DeviceConfig(
            self.distribution, self.model_parallel, processes=self.processes
        )


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
