"""All tasks by their names, and the readers of published tasks.

A model that was fine-tuned on a published task reads the folder of its
benchmark, and own tables with the columns text, pair, question, choices, label.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.data.bad_rows import check_published
from keras_albert.data.config import TableColumns
from keras_albert.data.glue import GLUE, read_glue, write_submission
from keras_albert.data.race import RACE_SIZES, read_race
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.tasks.classification import (
    Classification,
    MultiLabel,
    Regression,
)
from keras_albert.tasks.embedding import Embedding, Similarity
from keras_albert.tasks.fill_mask import FillMask
from keras_albert.tasks.multiple_choice import MultipleChoice
from keras_albert.tasks.names import EMBEDDING, FILL_MASK, SIMILARITY
from keras_albert.tasks.question_answering.squad import SQUAD, read_squad_split
from keras_albert.tasks.question_answering.task import QuestionAnswering
from keras_albert.tasks.task import Task
from keras_albert.tasks.token_classification import TokenClassification

# A model for MNLI also predicts for AX.
_ALSO_SUBMITTED = {"MNLI": (("AX", "test"),)}

# takes a folder, a split (train, dev or test), `skip_bad` and `any_size`
Reader = Callable[..., Table]


def _glue_task(name: str) -> Task:
    settings = GLUE[name]
    is_pair = settings.columns.pair is not None
    if settings.labels is None:
        return Regression(name, is_pair)
    return Classification(name, is_pair, settings.labels, settings.metrics)


def _read_glue(name: str, folder: Path, split: str, **options: bool) -> Table:
    """A split; for MNLI its two dev splits as one, with groups."""
    parts = {
        part: read_glue(folder, name, part, **options)
        for part in GLUE[name].splits
        if part.split("_")[0] == split
    }
    if split in parts:
        return parts[split]
    tables = list(parts.values())
    return Table(
        path=folder,
        values={
            field: [x for table in tables for x in table.values[field]]
            for field in tables[0].values
        },
        rows=[row for table in tables for row in table.rows],
        lines=[line for table in tables for line in table.lines],
        skipped=[message for table in tables for message in table.skipped],
        groups=[  # "matched" or "mismatched"
            part.split("_")[1] for part in parts for _ in parts[part].rows
        ],
    )


def _read_race(
    folder: Path, split: str, skip_bad: bool, any_size: bool
) -> Table:
    table = read_race(folder, split, skip_bad=skip_bad)
    if not any_size:
        count, sizes = len(table) + len(table.skipped), (RACE_SIZES[split],)
        check_published(folder, count, sizes, f"questions in {split}")
    return table


def _read_squad(name: str, folder: Path, split: str, **options: bool) -> Table:
    fields = ALL_TASKS[name].fields(TableColumns(), labelled=True)
    return read_squad_split(folder, name, split, fields=fields, **options)


_GLUE_TASKS = [name for name in GLUE if "train" in GLUE[name].splits]

# The first task that fits a head is the default for it.
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
        Embedding(EMBEDDING),
        Similarity(SIMILARITY),
        *map(_glue_task, _GLUE_TASKS),
        MultipleChoice("RACE", has_question=True),
        *(
            QuestionAnswering(name, may_refuse=name == "SQuAD-2.0")
            for name in SQUAD
        ),
        FillMask(FILL_MASK),
    )
}

BENCHMARKS: dict[str, Reader] = {
    **{name: functools.partial(_read_glue, name) for name in _GLUE_TASKS},
    "RACE": _read_race,
    **{name: functools.partial(_read_squad, name) for name in SQUAD},
}  # the readers of the published tasks


def read_split(
    task: str,
    folder: Path,
    split: str,
    *,
    skip_bad: bool = False,
    any_size: bool = False,
) -> Table:
    """A labelled split ("train", "dev" or "test") of a published task.

    The folder is as published; `any_size` accepts another number of rows.
    """
    if not Path(folder).is_dir():
        raise AlbertError(
            f"{folder}: not a folder. {task} is read from the folder of its "
            "benchmark, as published. Give that folder; a file of your own "
            "needs a task such as `classification` or `qa`."
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
    return BENCHMARKS[task](
        Path(folder), split, skip_bad=skip_bad, any_size=any_size
    )


def submissions(
    task: str, folder: Path, any_size: bool = False
) -> list[tuple[str, str, Table]]:
    """The test splits for which a model predicts: (task, split, table)."""
    wanted = [(task, split) for split in GLUE[task].test_splits]
    wanted += _ALSO_SUBMITTED.get(task, ())
    return [
        (name, split, read_glue(folder, name, split, any_size=any_size))
        for name, split in wanted
    ]


def submit(
    folder: Path, task: str, split: str, table: Table, outputs: list
) -> Path:
    """Writes the predictions for a test split; returns the path of the file.

    `outputs` has, for each row, logits [C], or the predicted number [1].
    """
    logits = np.stack(outputs)
    has_labels = GLUE[task].labels is not None
    answers = logits.argmax(-1) if has_labels else logits[:, 0]
    return write_submission(folder, task, split, table, answers)
