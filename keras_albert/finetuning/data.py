"""Reads the tables of a fine-tuning run and chooses the length of rows."""

import dataclasses
import functools
import re
from collections.abc import Callable

import keras
import numpy as np

from keras_albert.data.batches import Features, epoch_plan
from keras_albert.data.held_out import FEWEST_OF_A_LABEL, FEWEST_ROWS, hold_out
from keras_albert.data.saved_dataset import is_saved_dataset
from keras_albert.data.tables import (
    Table,
    check_has_columns,
    evenly_spaced,
    naming_columns,
    reader_of,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import OWN_VALIDATION, FinetuneRun
from keras_albert.finetuning.model import head_options
from keras_albert.finetuning.option_checks import measuring
from keras_albert.modeling.config import AlbertConfig
from keras_albert.pretraining.flops import encoder_flops
from keras_albert.tasks.question_answering.config import (
    ReadingConfig,
    WindowConfig,
)
from keras_albert.tasks.registry import ALL_TASKS, read_split
from keras_albert.tasks.task import LABEL
from keras_albert.text.tokenizer import (
    SHORTEST_PAIR,
    SHORTEST_SINGLE,
    Tokenizer,
)
from keras_albert.training.speed import Work, matrix_product_peak

# If nothing is held out, this many training rows are scored at the end, which
# reveals a model that always gives the same answer.
MEASURED_ROWS = 1_000
_NUMBER = re.compile(r"\s*[-+.,:/\d]*\s*").fullmatch  # or a date, or nothing


@dataclasses.dataclass(frozen=True)
class Tables:
    """The training table and the held-out table of a run."""

    train: Table
    held_out: Table | None
    names: tuple[str, ...] | None  # the label names of both tables
    split: bool = False  # whether `held_out` is a part of the training file

    @property
    def checksums(self) -> dict[str, str | None]:
        """Checksums of the values, to recognize the data of a run."""
        return {
            "train": self.train.checksum,
            "validation": self.held_out and self.held_out.checksum,
        }


def with_text_column(run: FinetuneRun) -> FinetuneRun:
    """The run, with the only column of texts if none is called `text`.

    The first row decides. Nothing is guessed if the user named a column, if the
    task reads two texts, or if several columns could be meant.
    """
    task, columns = ALL_TASKS[run.task], run.columns
    check_has_columns(run.train, "columns.text", columns.text)
    reader = reader_of(run.train)
    if (
        columns.text != FinetuneRun.columns.text
        or task.is_published
        or [*task.inputs(columns)] != ["text"]
        or reader is None
        or run.train.suffix.lower() == ".txt"
        or not (run.train.is_file() or is_saved_dataset(run.train))
    ):
        return run
    others = {each.column for each in task.fields(columns, True).values()}
    others.discard(columns.text)
    _, row = next(reader(run.train, others), (0, None))
    if not isinstance(row, dict) or columns.text in row or others - row.keys():
        return run
    texts = [
        name
        for name, value in row.items()
        if name not in others and isinstance(value, str) and not _NUMBER(value)
    ]
    if len(texts) != 1:
        return run
    print(
        f"{run.train} has no column `{columns.text}`: the texts are read from "
        f"`{texts[0]}`, the only other column with text (--columns.text)"
    )
    columns = dataclasses.replace(columns, text=texts[0])
    return dataclasses.replace(run, columns=columns)


def read_tables(run: FinetuneRun) -> Tables:
    """Reads the tables of a run, and holds rows out if none are given."""
    tables = _read_tables(run)
    names, task = tables.names, ALL_TASKS[run.task]
    if run.tune_threshold and not task.thresholds(names):
        raise AlbertError(
            f"`tune_threshold` needs two labels with --task {run.task}. "
            f"Received: {len(names)} labels in {run.train}. Leave "
            "--tune-threshold out."
        )
    if run.calibrate and len(tables.held_out) < 2:
        raise AlbertError(
            "`calibrate` divides the held-out examples into two halves. "
            f"Received: one row of {tables.held_out.path}. Give more with "
            "--validation."
        )
    return tables


def check_tables(
    run: FinetuneRun,
    tables: Tables,
    tokenizer: Tokenizer,
    config: AlbertConfig,
) -> None:
    """Raises AlbertError if nothing can be learned from the tables.

    `config` is that of the model that is fine-tuned.
    """
    task, options = ALL_TASKS[run.task], head_options(run)
    dropout = config.hidden_dropout_prob + config.attention_probs_dropout_prob
    task.check_training(tables.train, options, tokenizer, dropout)
    for table in filter(None, (tables.train, tables.held_out)):
        task.check_target(table, options)


def _read_tables(run: FinetuneRun) -> Tables:
    task = ALL_TASKS[run.task]
    if task.is_published:
        settings = {"skip_bad": run.skip_bad, "any_size": run.any_size}
        train, dev = (
            read_split(run.task, run.train, split, **settings)
            for split in ("train", "dev")
        )
        return Tables(train, dev, task.labels.of_table(train))
    task.check_columns(run.columns, run.columns)
    options = run.columns, True, run.skip_bad
    with naming_columns("--columns.{}"):
        train = task.read(run.train, *options)
        if run.train.suffix.lower() == ".txt":
            train = _without_blank_lines(train)
        names = task.labels.of_table(train)
        if run.validation is None:
            return Tables(train, None, names)
        if not task.can_measure(run.columns):
            return _not_measured(run, train, names)
        if run.validation != OWN_VALIDATION:
            held_out = task.read(run.validation, *options, names)
            return Tables(train, held_out, names)
    label = LABEL if task.has_classes else None
    parts = hold_out(train, list(task.inputs(run.columns)), label)
    if parts:
        return Tables(*parts, names, split=True)
    if given := measuring(run):
        raise AlbertError(
            f"`{given[0]}` needs held-out examples, and {run.train} has too "
            f"few rows to hold any out ({len(train)}). Give other "
            "examples with --validation."
        )
    return Tables(train, None, names)


def _without_blank_lines(table: Table) -> Table:
    """A table of a .txt file without the empty texts, which teach nothing."""
    texts = table.values["text"]
    kept = [index for index, text in enumerate(texts) if text]
    if not kept:
        raise AlbertError(f"{table.path}: all lines are blank. Add texts.")
    return table.take(kept)


def _not_measured(run: FinetuneRun, train: Table, names) -> Tables:
    """The tables of texts alone, for which there is no score."""
    given = measuring(run)
    if run.validation != OWN_VALIDATION:
        given.append("validation")
    if given:
        raise AlbertError(
            f"`{given[0]}` needs pairs of texts, and each text stands alone. "
            "Name the column of the partners with --columns.pair, or leave "
            f"--{given[0].replace('_', '-')} out."
        )
    return Tables(train, None, names)


def sample(table: Table) -> Table:
    """Up to MEASURED_ROWS rows, spread evenly over a table."""
    return table.take(evenly_spaced(len(table), MEASURED_ROWS))


def held_out_line(run: FinetuneRun, tables: Tables) -> str | None:
    """A note on the rows that are held out, or on why none are, if any."""
    if tables.split:
        held_out = len(tables.held_out)
        count = len(tables.train) + held_out
        return (
            f"{held_out:,} of the {count:,} rows of {run.train} are held out "
            "to measure on (--validation FILE gives others; --validation none "
            "learns from all)"
        )
    if not ALL_TASKS[run.task].can_measure(run.columns):
        return (
            "nothing is held out: each text stands alone. Measure on pairs "
            "afterwards: `keras-albert evaluate`"
        )
    if tables.held_out is None and run.validation is not None:
        count = len(tables.train)
        why = "too few different texts"
        if ALL_TASKS[run.task].has_classes:
            why = f"no label with {FEWEST_OF_A_LABEL} different texts"
        if count < FEWEST_ROWS:
            why = f"{count:,} rows, fewer than {FEWEST_ROWS}"
        return (
            f"nothing is held out: {run.train} has {why}. Give rows to measure "
            "on with --validation"
        )
    return None


def longest_row(run: FinetuneRun, config: AlbertConfig) -> int:
    """The most tokens of a row; AlbertError if the model cannot read them."""
    length = run.sequence_length or config.max_position_embeddings
    task = ALL_TASKS[run.task]
    if task.reads_contexts and run.sequence_length is None:
        length = min(length, WindowConfig.sequence_length)
    if length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {length}. Lower --sequence-length."
        )
    pairs = task.reads_pairs(run.columns)
    shortest = SHORTEST_PAIR if pairs else SHORTEST_SINGLE
    if length < shortest:
        raise AlbertError(
            f"`sequence_length` must be at least {shortest} for "
            f"{'pairs' if pairs else 'single texts'}. Received: {length}. "
            "Raise --sequence-length."
        )
    if pairs and config.type_vocab_size < 2:
        raise AlbertError(
            "Pairs have two segments: the model's `type_vocab_size` must be 2 "
            f"or more. Received: {config.type_vocab_size}."
        )
    return length


def reading_of(run: FinetuneRun, length: int, names) -> ReadingConfig | None:
    """How contexts are read; None for a task without contexts.

    A model that was trained on questions without an answer has a threshold.
    """
    if not ALL_TASKS[run.task].reads_contexts:
        return None
    reading = ReadingConfig(run.windows.of(length), run.answers)
    return reading if names else dataclasses.replace(reading, threshold=None)


def work_of_steps(
    run: FinetuneRun,
    examples: Features,
    config: AlbertConfig,
    static_lengths: tuple[int, ...],
    replicas: int,
) -> Callable[[int], Work]:
    """Maps the number of a step, from 1, to its work in the encoder."""
    rows = run.batch_size * (examples.choices or 1)
    peak = matrix_product_peak(keras.DTypePolicy(run.precision).compute_dtype)
    peak *= replicas

    @functools.lru_cache(maxsize=1)
    def lengths(epoch: int) -> list[int]:
        static = np.array(static_lengths)
        plan = epoch_plan(
            examples.lengths, static, run.batch_size, run.seed, epoch
        )
        return [length for _, length in plan]

    steps_per_epoch = len(lengths(0))

    def work_of(step: int) -> Work:
        epoch, place = divmod(step - 1, steps_per_epoch)
        length = lengths(epoch)[place]
        flops = rows * encoder_flops(config, length)
        return Work(rows * length, flops, peak)

    return work_of
