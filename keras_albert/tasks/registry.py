"""All tasks by their names, and where published ones are read from.

A model that was fine-tuned on a published task reads the folder of its
benchmark, and tables of a user's own with the columns text, pair, question,
choices, label.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.tasks.benchmarks.glue import GLUE, read_glue, write_submission
from keras_albert.tasks.benchmarks.race import RACE_SIZES, read_race
from keras_albert.tasks.classification import (
    Classification,
    MultiLabel,
    Regression,
)
from keras_albert.tasks.embedding import Embedding
from keras_albert.tasks.fill_mask import FillMask
from keras_albert.tasks.multiple_choice import MultipleChoice
from keras_albert.tasks.names import EMBEDDING, FILL_MASK
from keras_albert.tasks.question_answering.squad import SQUAD, read_squad_split
from keras_albert.tasks.question_answering.task import QuestionAnswering
from keras_albert.tasks.task import Task
from keras_albert.tasks.token_classification import TokenClassification

# What answers MNLI's questions answers those of AX, too.
_ALSO_SUBMITTED = {"MNLI": (("AX", "test"),)}


Reader = Callable[[Path, str, bool, bool], Table]
"""folder, split (train, dev or test), whether bad rows are left out, whether
any number of rows will do -> examples with labels"""


def _glue_task(name: str) -> Task:
    settings = GLUE[name]
    is_pair = settings.columns.pair is not None
    if settings.labels is None:
        return Regression(name, is_pair)
    return Classification(name, is_pair, settings.labels, settings.metrics)


def _glue_reader(name: str) -> Reader:
    def read(folder: Path, split: str, skip_bad: bool, any_size: bool) -> Table:
        parts = {
            part: read_glue(
                folder, name, part, skip_bad=skip_bad, any_size=any_size
            )
            for part in GLUE[name].splits
            if part.split("_")[0] == split
        }
        if split in parts:
            return parts[split]
        return _joined(folder, parts)

    return read


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


def _read_race(
    folder: Path, split: str, skip_bad: bool, any_size: bool
) -> Table:
    table = read_race(folder, split, skip_bad=skip_bad)
    count = len(table) + len(table.skipped)
    if count != RACE_SIZES[split] and not any_size:
        raise AlbertError(
            f"{folder}: expected {RACE_SIZES[split]:,} questions in "
            f"{split}, as published. Received: {count:,}. Get the archive "
            "again, or take it as it is with --any-size."
        )
    return table


def _squad_reader(name: str) -> Reader:
    def read(folder: Path, split: str, skip_bad: bool, any_size: bool) -> Table:
        return read_squad_split(
            folder,
            name,
            split,
            fields=ALL_TASKS[name].fields(TableColumns(), labelled=True),
            skip_bad=skip_bad,
            any_size=any_size,
        )

    return read


_GLUE_TASKS = [name for name in GLUE if "train" in GLUE[name].splits]

ALL_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Classification("classification"),
        Classification("pairs", is_pair=True),
        Regression("regression"),
        MultiLabel("multilabel"),
        TokenClassification("tokens"),
        MultipleChoice("choice"),
        QuestionAnswering("qa"),
        *map(_glue_task, _GLUE_TASKS),
        MultipleChoice("RACE", has_question=True),
        *(
            QuestionAnswering(name, may_refuse=name == "SQuAD-2.0")
            for name in SQUAD
        ),
        Embedding(EMBEDDING),
        FillMask(FILL_MASK),
    )
}
"""What a model is fine-tuned or used for. Of the tasks that fit a head, the
first one is the task of a model that says no more."""

BENCHMARKS: dict[str, Reader] = {
    **{name: _glue_reader(name) for name in _GLUE_TASKS},
    "RACE": _read_race,
    **{name: _squad_reader(name) for name in SQUAD},
}
"""How the published tasks are read."""


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
    return BENCHMARKS[task](Path(folder), split, skip_bad, any_size)


def submissions(
    task: str, folder: Path, any_size: bool = False
) -> list[tuple[str, str, Table]]:
    """The test splits that a model of a task answers: (task, split, table).

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
