"""Settings of `finetune`, and of commands that use and convert models."""

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
from keras_albert.download import hub_name
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_fields,
    check_flag,
    check_positive,
    check_positive_number,
    check_probability,
    check_seed,
)
from keras_albert.finetuning.option_checks import check_together
from keras_albert.modeling.config import (
    CLASSIFIER_DROPOUT,
    EXITS,
    IDF,
    POOLINGS,
    PRECISIONS,
)
from keras_albert.tasks.config import (
    CUT,
    LONG_TEXT_MODES,
    EmbeddingOptions,
    ModelUse,
    SeveralModelsUse,
)
from keras_albert.tasks.names import FINETUNE_TASKS
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    WindowOptions,
)
from keras_albert.training.config import (
    TEACHER_SHARE,
    TEMPERATURE,
    check_teaching,
    check_warmup,
)

FORMATS = ("keras-albert", "huggingface", "kerashub", "sentence-transformers")
FINETUNE_OPTIMIZERS = ("adamw", "muon")
FROZEN = ("embeddings", "encoder", "backbone")
OWN_VALIDATION = Path("auto")  # a part of the training table


@dataclasses.dataclass(frozen=True)
class FinetuneRun:
    """Fine-tune a model on labelled texts with model.fit.

    The same command continues an interrupted run. `--recipe paper` takes the
    hyper-parameters of the paper's Table 14 for --task, and `--recipe MRPC`
    those for MRPC; the options below override them.
    """

    model: str
    """a pretrained model: a folder written by `pretrain` or `convert`, a
    released archive (albert_config.json, model.ckpt-best.*, *.model), a folder
    of transformers or KerasHub, hf://organization/name, kaggle://... The
    head of a model that answers questions or makes vectors is trained further
    if the run needs the same head; any other head is dropped"""
    train: Path
    """TSV, CSV, JSONL or Parquet file with a text and a label column, or the
    folder of a saved dataset of Hugging Face; for `qa` also SQuAD's JSON; for
    a published task (CoLA and so on) the benchmark's own folder"""
    output: Path
    """folder for the model; made if absent, must hold no other run"""
    task: Literal[FINETUNE_TASKS] = FINETUNE_TASKS[0]
    """what the model predicts for a text (or a pair of texts): one label; a
    number; any number of labels; a label for each word; the right one of
    several choices; the place of the answer to a question (qa); a vector, from
    texts that belong together (embedding) or from scores of pairs
    (similarity). Or a published task, with its files, labels and scores"""
    validation: Path | None = OWN_VALIDATION
    """file to evaluate on after each epoch; the best model is kept. auto: a
    tenth of --train, which is then not trained on (if it has 50 rows or more;
    the same rows for every seed). none: all rows are trained on, and some
    of them measured. A published task has its own file"""
    validate_every: int | None = None
    """steps between two evaluations; by default those of an epoch"""
    patience: int | None = None
    """number of evaluations without a better model after which training stops;
    by default it does not stop early"""
    checkpoint_every: int | None = None
    """steps between two checkpoints, from which an interrupted run continues;
    by default as --validate-every"""
    tune_threshold: bool = False
    """for two labels, or several labels a text: after training, choose the
    probabilities above which the labels (of two labels: the second one) are
    predicted, for the best F1 on the held-out rows. `predict`, `evaluate` and
    exported models use them"""
    calibrate: bool = False
    """for one label a text: after training, divide the logits by the number
    with which the probabilities fit the held-out rows best (temperature
    scaling); it becomes part of the model's weights"""
    class_weights: bool = False
    """weight the examples so that all labels have the same total weight"""
    skip_bad: bool = False
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = False
    """accept files of a published task that do not have the published number
    of rows"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""
    from_scratch: bool = False
    """keep the model's architecture and vocabulary, but start from random
    weights: the baseline that shows what pretraining gave"""
    sequence_length: int | None = None
    """most tokens of a text; the rest is cut off. By default as many as the
    model can read (512 in released models and in the reference). A context
    with a question is not cut: it is read in windows of this many tokens (by
    default 384, or as many as the model can read)"""
    long_texts: Literal[LONG_TEXT_MODES] = CUT
    """single texts of more tokens than --sequence-length, for a label, labels
    or a number: they are cut; or read in windows that overlap by half, each of
    which is an example in training. The answer to a text has the mean of the
    windows' probabilities (or numbers), or is that of the highest logits"""
    batch_size: int | None = None
    """examples in a step; by default 16 if --train has fewer than 10,000 rows,
    else 32"""
    epochs: int | None = None
    """passes over the training file; by default, for fewer than 10,000 rows, 10
    or as many as make 1,000 steps (up to 50); 5 for fewer than 100,000 rows,
    else 3"""
    steps: int | None = None
    """optimizer steps; --epochs is then ignored"""
    learning_rate: float | None = None
    """peak learning rate; by default 3e-4 for a hidden size up to 256, 1e-4
    below 768, else 2e-5; ten times as much if all layers are frozen"""
    optimizer: Literal[FINETUNE_OPTIMIZERS] = FINETUNE_OPTIMIZERS[0]
    """adamw, as in the reference; or muon, with which a small model (hidden
    size 256, rate 5e-4) learned from many examples in half of the steps. The
    default of --learning-rate is for adamw"""
    warmup_share: float = 0.1
    """share of the steps used for linear warm-up (Table 14: 0.06 for CoLA, 0.1
    for MNLI, 0.25 for RTE)"""
    warmup_steps: int | None = None
    """steps of linear warm-up, instead of --warmup-share"""
    classifier_dropout: float = CLASSIFIER_DROPOUT
    """dropout before the classifier (Paper Table 14)"""
    dropout: float | None = None
    """hidden and attention dropout of the encoder (Table 14, "ALBERT DR"); by
    default as in the pretrained config"""
    freeze: Literal[FROZEN] | None = None
    """weights that are not trained: those of the embeddings; those and all
    layers, so that the pooler and the head learn; or all but the head"""
    lora_rank: int | None = None
    """train small matrices of this rank beside the query and value kernels
    (LoRA), the pooler and the head, and no other weight: 8 is usual. They are
    merged into the model; OUTPUT/adapter also has them alone, for `peft`"""
    teacher: str | None = None
    """a model that was fine-tuned for the same labels, or the output of
    `finetune --seeds` or an ensemble that was saved: the model also learns
    from what it predicts for the training rows (distillation)"""
    teacher_share: float = TEACHER_SHARE
    """weight of the loss for the teacher's predictions; that for the labels has
    the rest, up to 1"""
    temperature: float = TEMPERATURE
    """number by which the logits of teacher and student are divided, so that
    the less probable labels count more"""
    depth: int | None = None
    """number of layers, L; by default L0, that of the pretrained model. Layer
    l, from 0, starts with the weights of pretrained layer l * L0 // L"""
    exits: Literal[EXITS] | None = None
    """train a classifier after every layer, so that `predict --patience` can
    stop before the last one. own: each layer has its own; shared: all layers
    have the same; drawn: the same, trained in each step on one layer, drawn at
    random"""
    seed: int = 0
    """seed of the classifier's weights, the order of examples and dropout"""
    seeds: int = 1
    """number of runs, one after another, with seeds from --seed on, each in a
    folder of its own in OUTPUT; the report has their median (as the paper,
    over 5 runs, section 4.1) and spread"""
    precision: Literal[PRECISIONS] = PRECISIONS[0]
    """precision of the computation; weights, logits and losses stay float32"""
    remat: bool = False
    """recompute activations for the gradient: less memory, more time"""
    distribution: Literal[DISTRIBUTIONS] = DeviceConfig.distribution
    """which devices share the computation of each batch, see `pretrain`"""
    model_parallel: int = DeviceConfig.model_parallel
    """number of devices that the weights are divided among, with `model`"""
    processes: ProcessConfig = DeviceConfig.processes
    columns: TableColumns = TableColumns()
    windows: WindowOptions = WindowOptions()
    """how contexts are cut into windows"""
    answers: AnswerConfig = AnswerConfig()
    """how answers are found"""
    embedding: EmbeddingOptions = EmbeddingOptions()
    """how the vectors of texts are made and learned"""

    def __post_init__(self):
        self.devices  # noqa: B018  checks the options of the devices
        if str(self.validation).lower() == "none":
            object.__setattr__(self, "validation", None)
        check_choice("task", self.task, FINETUNE_TASKS)
        self._check_values()
        check_together(self)
        check_teaching(self.teacher, self.teacher_share, self.temperature)
        if self.warmup_steps is not None:
            if self.steps is None:
                raise AlbertError("`warmup_steps` needs `steps`. Give --steps.")
            check_warmup(self.warmup_steps, self.steps)

    def _check_values(self) -> None:
        """Checks the options that have a meaning of their own."""
        flags = (
            "tune_threshold calibrate class_weights skip_bad any_size any_text "
            "from_scratch"
        )
        counts = (
            "seeds batch_size depth epochs patience sequence_length steps "
            "validate_every checkpoint_every lora_rank"
        )
        check_fields(check_flag, self, flags)
        check_fields(check_positive, self, counts)
        check_choice("optimizer", self.optimizer, FINETUNE_OPTIMIZERS)
        if self.freeze is not None:
            check_choice("freeze", self.freeze, FROZEN)
        if self.exits is not None:
            check_choice("exits", self.exits, EXITS)
        check_fields(check_positive_number, self, "learning_rate")
        shares = "warmup_share classifier_dropout dropout"
        check_fields(check_probability, self, shares)
        check_seed(self.seed)
        if self.seed + self.seeds > 2**32:
            raise AlbertError(
                "the last seed, seed + seeds - 1, must be at most 4294967295. "
                f"Received: seed={self.seed}, seeds={self.seeds}."
            )

    @property
    def trains_few(self) -> bool:
        """Whether all layers are frozen."""
        return self.lora_rank is not None or self.freeze in FROZEN[1:]

    @property
    def devices(self) -> DeviceConfig:
        """The devices of the run."""
        return DeviceConfig(
            self.distribution, self.model_parallel, processes=self.processes
        )


@dataclasses.dataclass(frozen=True)
class EvaluateRun(SeveralModelsUse):
    """Evaluate a fine-tuned model on a table, or a pretrained one on shards."""

    model: str | tuple[str, ...]
    """folder written by `finetune`, `pretrain` or `Predictor.save`, or
    anything else that `convert --input` takes: a ready classifier. Several
    models, or the output of `finetune --seeds`, are averaged"""
    data: Path
    """for a fine-tuned model a TSV, CSV, JSONL or Parquet file (or SQuAD's
    JSON, if it answers questions), or the benchmark's folder if it was trained
    on a published task; for a pretrained model a folder of token shards"""
    batch_size: int = 32
    """examples at a time"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = FinetuneRun.any_size
    """accept files of a published task that do not have the published number
    of rows"""
    split: Literal["dev", "test"] = "dev"
    """split of a published task; only RACE's `test` has labels"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""
    sentence_task: Literal["sop", "nsp"] | None = None
    """sentence task on which the head of a pretrained model is measured; by
    default the one that it was trained for. A model trained for one of the two
    can be measured on the other, as in Table 5 of the paper"""
    corpus: Path | None = None
    """for a model of text vectors: a table with further texts, or a text file
    with a text a line, among which the partner of each text is searched"""
    corpus_column: str | None = None
    """column of the texts of --corpus; by default as in --data"""
    dimensions: tuple[int, ...] = ()
    """for a model of text vectors: sizes to which its vectors are cut, each of
    which gets a score"""
    start: str | None = None
    """for a model of text vectors: another model, such as the one that it was
    fine-tuned from, whose score is printed for comparison"""
    errors: int | None = None
    """how many wrong predictions to print, the surest first (of numbers, the
    farthest off)"""
    errors_file: Path | None = None
    """new CSV file for all wrong predictions, the surest first, with the
    columns of the table; a column with the name of an added one is renamed"""
    exit_curve: Path | None = None
    """new PNG file for the score of a model with exits against the layers and
    the time that it needs, with many rules of early exit"""

    def __post_init__(self):
        check_positive("batch_size", self.batch_size)
        check_fields(check_flag, self, "skip_bad any_size any_text")
        check_fields(check_positive, self, "errors")
        for size in self.dimensions:
            check_positive("dimensions", size)
        if self.sentence_task is not None:
            check_choice("sentence_task", self.sentence_task, ("sop", "nsp"))
        if self.corpus_column is not None and self.corpus is None:
            raise AlbertError(
                "`corpus_column` is a column of `corpus`, and there is none. "
                f"Received: corpus_column={self.corpus_column!r}. Give "
                "--corpus."
            )


@dataclasses.dataclass(frozen=True)
class InspectRun:
    """Show how far each layer moves the vectors of tokens (paper, Figure 1)."""

    model: tuple[str, ...]
    """one or more models to compare: anything that `convert --input` takes"""
    data: Path
    """text file with a text a line; blank lines are skipped"""
    output: Path | None = None
    """new PNG file for a plot of all models"""
    rows: int = 256
    """most texts to read"""

    def __post_init__(self):
        check_positive("rows", self.rows)


@dataclasses.dataclass(frozen=True)
class PredictRun(SeveralModelsUse):
    """Predict for the rows of a table; writes JSONL in the same order.

    For GLUE it writes the files to submit.
    """

    model: str | tuple[str, ...]
    """folder written by `finetune`, or anything else that `convert --input`
    takes: a ready classifier; a model that was only pretrained fills in
    [MASK]. Several models, or the output of `finetune --seeds`, are averaged"""
    data: Path
    """TSV, CSV, JSONL or Parquet file; or text, one example a line (.txt); or
    SQuAD's JSON, for a model that answers questions; or the folder of GLUE,
    for a model of one of its tasks"""
    output: Path | None = None
    """JSONL file to write, by default standard output; for SQuAD's JSON the
    prediction file of the official scorer; for the folder of GLUE a folder
    for the files to submit"""
    n_best_output: Path | None = None
    """file for the best answers to each question of SQuAD's JSON, with their
    probabilities (the reference's nbest_predictions.json)"""
    null_odds_output: Path | None = None
    """file for the no-answer odds of each question of SQuAD's JSON (the
    reference's null_odds.json)"""
    batch_size: int = EvaluateRun.batch_size
    """examples at a time"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_size: bool = FinetuneRun.any_size
    """accept files of a published task that do not have the published number
    of rows"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_positive("batch_size", self.batch_size)
        check_fields(check_flag, self, "skip_bad any_size any_text")


@dataclasses.dataclass(frozen=True)
class WhitenRun:
    """Make vectors that tell your texts apart, without labels or training.

    A projection is computed after which the vectors of these texts have a mean
    of 0, and their numbers are uncorrelated and have nearly the same variance.
    `embed` and `finetune` take the result.
    """

    model: str
    """a pretrained model, one that makes vectors, or anything else that
    `convert --input` takes"""
    data: Path
    """texts like those that will be compared: a TSV, CSV, JSONL or Parquet
    file; or text, one text a line (.txt)"""
    output: Path
    """folder for the model; made if absent, must hold nothing"""
    columns: tuple[str, ...] = ("text",)
    """columns of the texts"""
    max_texts: int = 20_000
    """most texts that the model reads, evenly spread over the table"""
    pooling: Literal[POOLINGS] | None = None
    """how the vectors of the tokens become one, see `finetune
    --embedding.pooling`; by default as in --model if it makes vectors, else
    mean, or idf with --words"""
    dimensions: int | None = None
    """how many numbers a whitened vector has, without those of --words; by
    default as many as those of --model"""
    words: float | None = None
    """append numbers to each vector that tell which pieces its text has; the
    value is their share of the squared length of a vector, such as 0.1. If
    --model makes vectors, by pooling idf, its own numbers stay as they are;
    those of a pretrained model are whitened first"""
    skip_bad: bool = FinetuneRun.skip_bad
    """leave out rows that cannot be read, and say how many"""
    any_text: bool = PrepareRun.any_text
    """continue even if the vocabulary cannot read half of the text or more"""

    def __post_init__(self):
        check_fields(check_positive, self, "max_texts dimensions")
        check_fields(check_positive_number, self, "words")
        check_fields(check_probability, self, "words")
        check_fields(check_flag, self, "skip_bad any_text")
        if self.pooling is not None:
            check_choice("pooling", self.pooling, POOLINGS)
        if self.words and self.pooling not in (None, IDF):
            raise AlbertError(
                f"words are added to vectors of the pooling {IDF!r}. Received: "
                f"pooling={self.pooling!r}. Leave --pooling out."
            )
        if not self.columns:
            raise AlbertError(
                "`columns` must name one column or more. Received: none."
            )


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
    to: Literal[FORMATS] = FORMATS[0]
    """format of the result; `finetune` and `load` read all of them"""
    gelu: Literal["tanh", "erf"] = "tanh"
    """how "hidden_act": "gelu" of transformers is read: tanh, the original's
    only form, or erf, what transformers computes. A folder that this package
    wrote says itself if it is erf"""
    backbone: bool = False
    """convert only the encoder, for a format that does not have the head"""


@dataclasses.dataclass(frozen=True)
class PushRun:
    """Upload a model to the Hugging Face Hub."""

    input: str
    """the model: the output of `finetune`, `pretrain` or `convert`, or anything
    else that `convert` takes"""
    output: str
    """repository of the Hub, hf://organization/name; made if absent"""
    to: Literal[FORMATS] = FORMATS[0]
    """format of the files there"""
    private: bool = False
    """if the repository is made: only its owners see it"""
    overwrite: bool = False
    """replace all files of a repository that has some; its history keeps
    them"""
    dry_run: bool = False
    """only list the files, with their sizes; needs no token and no network"""

    def __post_init__(self):
        hub_name(self.output)
        check_choice("to", self.to, FORMATS)
        check_fields(check_flag, self, "private overwrite dry_run")
