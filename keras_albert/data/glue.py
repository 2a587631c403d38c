"""GLUE (Wang et al. 2019): its tasks, from the benchmark's files to tables.

The folder is the benchmark's own: `CoLA/train.tsv`, `MNLI/dev_matched.tsv`,
`diagnostic/diagnostic.tsv` (published as AX.tsv) and so on. Columns, labels
and their order are those of the reference's classifier_utils.py.

The train and dev files of CoLA, SST-2, MRPC, STS-B and RTE were read as they
are published. The layout of QQP, MNLI, QNLI, WNLI, AX and of all test files is
that of the reference and of public readers (jiant, datasets): none was at hand.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from keras_albert.data.bad_rows import SKIP_REMEDY, BadRows, check_published
from keras_albert.data.config import TableColumns
from keras_albert.data.table_files import named, tab_records
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError, check_choice
from keras_albert.storage import replacing
from keras_albert.text.files import (
    check_files,
    read_lines,
    read_lines_or_faults,
)

HIGHEST_SIMILARITY = 5.0  # of STS-B, whose lowest is 0
# A benchmark wants a prediction for each row of a split without labels.
_NEEDED_REMEDY = "Get the file again: each of its rows needs a prediction."

_SENTENCE = TableColumns(text="sentence")
_SENTENCES = TableColumns(text="sentence1", pair="sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_BINARY = ("0", "1")


@dataclasses.dataclass(frozen=True)
class GlueSplit:
    """A file of a task."""

    path: str  # path of the file in the folder of the benchmark
    # number of rows; several numbers if there are several editions
    sizes: tuple[int, ...]
    # names of the columns, for a file without a header
    header: tuple[str, ...] | None = None
    # name of the file of predictions, for a split without labels
    submission: str | None = None


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of the benchmark."""

    columns: TableColumns  # columns of the texts and the label
    # labels in the reference's order; None for a similarity from 0 to 5
    labels: tuple[str, ...] | None
    # train, dev and test; for MNLI dev_matched, dev_mismatched and so on
    splits: dict[str, GlueSplit]
    # names of the scores that the benchmark reports, see `tasks.metrics`
    metrics: tuple[str, ...] = ("accuracy",)
    index: str = "index"  # column that numbers the rows of a test file

    @property
    def test_splits(self) -> tuple[str, ...]:
        """The splits without labels."""
        return tuple(name for name in self.splits if self.submission_of(name))

    def submission_of(self, split: str) -> str | None:
        """The name of a split's file of predictions."""
        return self.splits[split].submission


def _splits(
    name: str,
    train: int | tuple[int, ...],
    dev: int,
    test: int,
    header: tuple[str, ...] | None = None,
) -> dict[str, GlueSplit]:
    trains = train if isinstance(train, tuple) else (train,)
    return {
        "train": GlueSplit(f"{name}/train.tsv", trains, header),
        "dev": GlueSplit(f"{name}/dev.tsv", (dev,), header),
        "test": GlueSplit(
            f"{name}/test.tsv", (test,), submission=f"{name}.tsv"
        ),
    }


def _mnli_splits() -> dict[str, GlueSplit]:
    sizes = {"matched": (9_815, 9_796), "mismatched": (9_832, 9_847)}
    splits = {"train": GlueSplit("MNLI/train.tsv", (392_702,))}
    for kind, (dev, _) in sizes.items():
        splits[f"dev_{kind}"] = GlueSplit(f"MNLI/dev_{kind}.tsv", (dev,))
    for kind, (_, test) in sizes.items():
        splits[f"test_{kind}"] = GlueSplit(
            f"MNLI/test_{kind}.tsv",
            (test,),
            submission=f"MNLI-{'m' if kind == 'matched' else 'mm'}.tsv",
        )
    return splits


# Sizes: the dataset card of nyu-mll/glue, which counts the published files.
GLUE = {
    "CoLA": GlueTask(
        _SENTENCE,
        _BINARY,
        _splits(
            "CoLA", 8_551, 1_043, 1_063, ("source", "label", "mark", "sentence")
        ),
        metrics=("matthews",),
    ),
    "SST-2": GlueTask(_SENTENCE, _BINARY, _splits("SST-2", 67_349, 872, 1_821)),
    "MRPC": GlueTask(
        TableColumns("#1 String", "#2 String", label="Quality"),
        _BINARY,
        _splits("MRPC", 3_668, 408, 1_725),
        metrics=("accuracy", "f1"),
    ),
    "STS-B": GlueTask(
        dataclasses.replace(_SENTENCES, label="score"),
        None,
        _splits("STS-B", 5_749, 1_500, 1_379),
        metrics=("pearson", "spearman"),
    ),
    # The first edition, of 2018, has about 20 more lines, which are broken off,
    # and two rows without a second question (datasets, issue 277). The second
    # one, of 2021, lacks three rows (TFDS, pull request 3031).
    "QQP": GlueTask(
        TableColumns("question1", "question2", label="is_duplicate"),
        _BINARY,
        _splits("QQP", (363_849, 363_846), 40_430, 390_965),
        metrics=("accuracy", "f1"),
        index="id",
    ),
    "MNLI": GlueTask(
        dataclasses.replace(_SENTENCES, label="gold_label"),
        _INFERENCE,
        _mnli_splits(),
    ),
    # The second edition. That of 2018, with 108,436 rows, was withdrawn.
    "QNLI": GlueTask(
        TableColumns("question", "sentence"),
        _ENTAILMENT,
        _splits("QNLI", 104_743, 5_463, 5_463),
    ),
    "RTE": GlueTask(_SENTENCES, _ENTAILMENT, _splits("RTE", 2_490, 277, 3_000)),
    "WNLI": GlueTask(_SENTENCES, _BINARY, _splits("WNLI", 635, 71, 146)),
    # It has no examples to learn from: a model of MNLI answers it.
    "AX": GlueTask(
        _SENTENCES,
        _INFERENCE,
        {
            "test": GlueSplit(
                "diagnostic/diagnostic.tsv", (1_104,), submission="AX.tsv"
            )
        },
        metrics=("matthews",),
    ),
}


def glue_task(name: str) -> GlueTask:
    """A task by its name; AlbertError if there is none."""
    check_choice("task", name, tuple(GLUE))
    return GLUE[name]


def read_glue(
    folder: str | Path,
    task: str,
    split: str,
    *,
    skip_bad: bool = False,
    any_size: bool = False,
) -> Table:
    """A split of a task as a table.

    Each line of the file is a row; quotes have no special meaning. `Table.rows`
    only has the columns of the index, the texts and the label. Labels of test
    splits are ignored, and their bad rows are always errors: each needs a
    prediction. `any_size` accepts another number of rows than published.
    """
    settings = glue_task(task)
    check_choice("split", split, tuple(settings.splits))
    file = settings.splits[split]
    path = _file(folder, file)
    labelled = file.submission is None
    header = file.header or _header(path, settings, labelled)
    examples, broken = [], 0
    remedy = SKIP_REMEDY if labelled else _NEEDED_REMEDY
    bad = BadRows(skip_bad and labelled, remedy)
    records = tab_records(read_lines_or_faults(path))
    if not file.header:
        next(records)
    for line, record in named(records, header, remedy=""):
        try:
            if isinstance(record, AlbertError):
                broken += 1
                raise record
            examples.append((line, *_example(record, settings, labelled)))
        except AlbertError as error:
            bad.add(f"{path}:{line}", error)
    if not any_size:
        # A broken line may be a part of a row.
        complete = len(examples) + len(bad.messages) - broken
        check_published(path, complete, file.sizes, "rows", broken)
    if not examples:
        raise AlbertError(f"{path}: no rows. Expected one or more examples.")
    lines, rows, values = map(list, zip(*examples, strict=True))
    columns = {name: [each[name] for each in values] for name in values[0]}
    return Table(path, columns, rows, lines, bad.messages)


def write_submission(
    folder: str | Path,
    task: str,
    split: str,
    table: Table,
    predictions: Sequence,
) -> Path:
    """Writes the predictions for a test split as the benchmark takes them.

    The file has the index and the prediction of each row: the name of a class,
    or for STS-B a number with three digits, clipped to [0, 5]. `predictions`
    has a class index, or a number for STS-B, for each row of the `table` that
    `read_glue` returned. Returns the path of the file, such as `MNLI-m.tsv`.
    """
    settings = glue_task(task)
    check_choice("split", split, settings.test_splits)
    if len(predictions) != len(table.rows):
        raise AlbertError(
            f"`predictions` must have one for each of the {len(table.rows)} "
            f"rows of {task}. Received: {len(predictions)}."
        )
    indices = [row[settings.index] for row in table.rows]
    if len(set(indices)) < len(indices):
        raise AlbertError(
            f"the {split} split of {task} has a number twice in its column "
            f"`{settings.index}`. Get the file again."
        )
    lines = ["index\tprediction"]
    for index, prediction in zip(indices, predictions, strict=True):
        lines.append(f"{index}\t{_submitted(settings.labels, prediction)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / settings.submission_of(split)
    with replacing(path) as unfinished:
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _submitted(labels: tuple[str, ...] | None, prediction) -> str:
    value = float(prediction)
    if labels is None and math.isfinite(value):
        return f"{min(max(value, 0.0), HIGHEST_SIMILARITY):.3f}"
    if labels is not None and value in range(len(labels)):
        return labels[int(value)]
    expected = "finite numbers"
    if labels:
        expected = f"class indices from 0 to {len(labels) - 1}"
    raise AlbertError(f"`predictions` must be {expected}. Received: {value!r}.")


def _file(folder: str | Path, split: GlueSplit) -> Path:
    path = Path(folder) / split.path
    if not path.exists():
        raise AlbertError(
            f"{path}: no such file. Expected the folder of the GLUE benchmark, "
            f"with {split.path} in it as gluebenchmark.com publishes it."
        )
    return check_files([path])[0]


def _header(path: Path, task: GlueTask, labelled: bool) -> list[str]:
    """The columns that the first line names; AlbertError if one is missing."""
    _, line = next(read_lines(path), (1, ""))
    header = line.split("\t")
    columns = task.columns
    needed = [columns.text, columns.label if labelled else task.index]
    needed += [columns.pair] if columns.pair else []
    if missing := [name for name in needed if name not in header]:
        raise AlbertError(
            f"{path}: no column {', '.join(f'`{name}`' for name in missing)}. "
            f"The first line names {', '.join(header)!r:.200}. Expected the "
            "file as the benchmark publishes it."
        )
    return header


def _example(
    record: dict[str, str], task: GlueTask, labelled: bool
) -> tuple[dict[str, str], dict[str, str | float]]:
    """The columns that `Table.rows` keeps, and the values of the fields."""
    columns = task.columns
    fields = {"text": columns.text}
    if columns.pair:
        fields["pair"] = columns.pair
    for name in fields.values():
        if not record[name].strip():
            raise AlbertError(f"the text in column `{name}` is empty.")
    values = {field: record[name] for field, name in fields.items()}
    if labelled:
        fields["label"] = columns.label
        values["label"] = _label(record[columns.label].strip(), task.labels)
    kept = (task.index, *fields.values())
    return {name: record[name] for name in kept if name in record}, values


def _label(label: str, labels: tuple[str, ...] | None) -> str | float:
    if labels is not None:
        if label not in labels:
            known = ", ".join(map(repr, labels))
            raise AlbertError(
                f"unknown label {label!r}. Expected one of {known}."
            )
        return label
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not 0 <= number <= HIGHEST_SIMILARITY:
        raise AlbertError(
            f"unknown label {label!r}. Expected a number from 0 to "
            f"{HIGHEST_SIMILARITY:g}."
        )
    return number
