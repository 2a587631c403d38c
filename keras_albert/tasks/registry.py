"""Published tasks: their files, labels and scores, as rows of TASKS.

A model that was fine-tuned on one of them reads its benchmark's folder, and
tables of a user's own with the columns text, pair, question, choices, label.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.tasks.benchmarks.glue import GLUE, read_glue, write_submission
from keras_albert.tasks.benchmarks.race import RACE_SIZES, read_race
from keras_albert.tasks.question_answering.squad import SQUAD, read_squad_split
from keras_albert.tasks.question_answering.task import NAMES, QUESTION
from keras_albert.tasks.task import (
    CHOICE,
    CLASSIFICATION,
    PAIRS,
    QUESTIONS,
    REGRESSION,
    TASKS,
    Task,
    class_scores,
)

# What answers MNLI's questions answers those of AX, too.
_ALSO_SUBMITTED = {"MNLI": (("AX", "test"),)}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What a published task is, and where its examples are."""

    task: Task
    read: Callable[[Path, str, bool, bool], Table]
    """folder, split (train, dev or test), whether bad rows are left out,
    whether any number of rows will do -> examples with labels"""


def _glue(name: str) -> Benchmark:
    settings = GLUE[name]
    pairs = settings.columns.pair is not None
    if settings.labels is None:
        task = dataclasses.replace(
            REGRESSION,
            inputs=PAIRS.inputs if pairs else REGRESSION.inputs,
        )
    else:
        task = dataclasses.replace(
            PAIRS if pairs else CLASSIFICATION,
            names=lambda table: settings.labels,
            scores=class_scores(settings.metrics),
        )
        if settings.metrics[0] == "matthews":  # 0 of any constant answer
            task = dataclasses.replace(task, guess=lambda features: 0.0)

    def read(folder: Path, split: str, skip_bad: bool, any_size: bool) -> Table:
        parts = {
            part: read_glue(
                folder, name, part, skip_bad=skip_bad, any_size=any_size
            )
            for part in settings.splits
            if part.split("_")[0] == split
        }
        if split in parts:
            return parts[split]
        return _joined(folder, parts)

    return Benchmark(dataclasses.replace(task, best=settings.metrics[0]), read)


def _joined(folder: Path, parts: dict[str, Table]) -> Table:
    """MNLI's two dev splits as one, with "matched" and "mismatched" groups."""
    tables = list(parts.values())
    groups = [
        part.split("_")[1] for part, table in parts.items() for _ in table.rows
    ]
    return Table(
        path=folder,
        values={
            name: [x for table in tables for x in table.values[name]]
            for name in tables[0].values
        },
        rows=[row for table in tables for row in table.rows],
        lines=[line for table in tables for line in table.lines],
        skipped=[fault for table in tables for fault in table.skipped],
        groups=groups,
    )


def _race() -> Benchmark:
    def inputs(columns: TableColumns):
        question = columns.question or QUESTION
        return CHOICE.inputs(dataclasses.replace(columns, question=question))

    def read(folder: Path, split: str, skip_bad: bool, any_size: bool) -> Table:
        table = read_race(folder, split, skip_bad=skip_bad)
        count = len(table) + len(table.skipped)
        if count != RACE_SIZES[split] and not any_size:
            raise AlbertError(
                f"{folder}: expected {RACE_SIZES[split]:,} questions in "
                f"{split}, as published. Received: {count:,}. Get the archive "
                "again, or take it as it is with --any-size."
            )
        return table

    return Benchmark(dataclasses.replace(CHOICE, inputs=inputs), read)


def _squad(name: str) -> Benchmark:
    names = NAMES if name == "SQuAD-2.0" else None

    def read(folder: Path, split: str, skip_bad: bool, any_size: bool) -> Table:
        return read_squad_split(
            folder,
            name,
            split,
            fields=QUESTIONS.fields(TableColumns(), labelled=True),
            skip_bad=skip_bad,
            any_size=any_size,
        )

    task = dataclasses.replace(QUESTIONS, names=lambda table: names)
    return Benchmark(task, read)


BENCHMARKS = {
    **{name: _glue(name) for name in GLUE if "train" in GLUE[name].splits},
    "RACE": _race(),
    **{name: _squad(name) for name in SQUAD},
}

ALL_TASKS = TASKS | {name: each.task for name, each in BENCHMARKS.items()}
"""what `finetune --task` takes"""


def read_split(
    task: str,
    folder: Path,
    split: str,
    *,
    skip_bad: bool = False,
    any_size: bool = False,
) -> Table:
    """A labelled split of a published task.

    Args:
        task: a name of BENCHMARKS.
        folder: of the benchmark, as published.
        split: "train", "dev", or "test".
        skip_bad: leave out rows that cannot be read.
        any_size: take files of another number of rows than published.

    Raises:
        AlbertError: as `read_glue` and `read_race`; no folder; a split that
            is published without its labels.
    """
    if not Path(folder).is_dir():
        raise AlbertError(
            f"{folder}: not a folder. {task} is read from the folder of its "
            "benchmark, as published."
        )
    if split == "test" and task in GLUE:
        raise AlbertError(
            f"the labels of {task}'s test split are not published. Measure on "
            "its dev split, or write the files to submit with `keras-albert "
            "predict`."
        )
    if split == "test" and task in SQUAD:
        raise AlbertError(
            f"{task}'s test split is not published. Measure on its dev split."
        )
    return BENCHMARKS[task].read(Path(folder), split, skip_bad, any_size)


def submissions(
    task: str, folder: Path, any_size: bool = False
) -> list[tuple[str, str, Table]]:
    """What GLUE wants answered by a model of a task: (task, split, table).

    Of MNLI its two test splits and AX.
    """
    wanted = [(task, split) for split in GLUE[task].test_splits]
    wanted += _ALSO_SUBMITTED.get(task, ())
    return [
        (name, split, read_glue(folder, name, split, any_size=any_size))
        for name, split in wanted
    ]


def submit(
    folder: Path, task: str, split: str, table: Table, outputs: list
) -> Path:
    """Writes the file for a test split; returns its path.

    Args:
        outputs: logits of each row, [C], or the similarity, [1].
    """
    logits = np.stack(outputs)
    answers = (
        logits.argmax(-1) if GLUE[task].labels is not None else logits[:, 0]
    )
    return write_submission(folder, task, split, table, answers)
