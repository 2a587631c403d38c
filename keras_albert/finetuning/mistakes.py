"""The mistakes of a fine-tuned model, the most confident ones first."""

import csv
import dataclasses
import json
import textwrap
from pathlib import Path

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.predictor import Predictor
from keras_albert.storage import replacing
from keras_albert.tasks.task import LABEL, Outputs

# Columns of the file of mistakes, beside those of the table and of `predict`.
LINE, GROUP, EXPECTED = "line", "group", "expected"
WIDTH = 100  # characters of a printed text


def check_can_rank(predictor: Predictor) -> None:
    """Raises AlbertError for a task whose mistakes have no order."""
    if predictor.definition.wrongness is None:
        raise AlbertError(
            "`errors` is for tasks with a label, labels, a number or a choice "
            f"an example. Received: task={predictor.task!r}. Leave --errors "
            "and --errors-file out."
        )


@dataclasses.dataclass(frozen=True)
class Mistake:
    """An example with a wrong prediction."""

    line: int  # of the file
    group: str | None  # that of the table, such as "mismatched" of MNLI
    texts: tuple[str, ...]
    expected: object
    predicted: dict[str, object]  # what `predict` writes
    row: dict[str, object]  # all columns of the file


def mistakes(
    predictor: Predictor, table: Table, features: Features, outputs: Outputs
) -> list[Mistake]:
    """The examples with a wrong prediction, the most confident one first.

    Numbers are in the order of their difference.
    """
    task = predictor.definition
    names = task.inputs(predictor.columns)
    wrong = task.wrongness(outputs, features)
    decoded = predictor.decode(outputs, features)
    return [
        Mistake(
            table.lines[place],
            table.groups and table.groups[place],
            tuple(str(table.values[name][place]) for name in names),
            table.values[LABEL][place],
            decoded[place],
            table.rows[place],
        )
        for place in map(int, np.argsort(-wrong, kind="stable"))
        if wrong[place] > 0
    ]


def mistakes_lines(found: list[Mistake], count: int, most: int) -> list[str]:
    """The lines that a user reads; `count` examples were predicted."""
    lines = [f"{len(found):,} of {count:,} examples have a wrong prediction"]
    are_numbers = bool(found) and isinstance(found[0].expected, float)
    first = "farthest off" if are_numbers else "of which the model is surest"
    if most < len(found):
        lines[0] += f"; the {most} {first}:"
    for each in found[:most]:
        score = each.predicted.get("score")
        odds = f" ({score:.3f})" if isinstance(score, float) else ""
        texts = textwrap.shorten(" | ".join(each.texts), WIDTH)
        prediction, expected = each.predicted["prediction"], each.expected
        if are_numbers:
            prediction, expected = f"{prediction:.4g}", f"{expected:.4g}"
        where = [f"line {each.line}", each.group, each.row.get("id")]
        where = ", ".join(str(part) for part in where if part not in (None, ""))
        line = f"{where}: {prediction}{odds}, expected {expected}"
        lines.append(_printable(f"{line}: {texts}"))
    return lines


def write_mistakes(found: list[Mistake], table: Table, path: Path) -> None:
    """Writes a CSV file with the columns of the table, a row a mistake.

    A column of the table that has the name of an added one is renamed.
    """
    predicted = found[0].predicted if found else ("prediction",)
    places = [LINE, GROUP] if table.groups else [LINE]
    added = {*places, EXPECTED, *predicted}
    own = dict.fromkeys(name for row in table.rows for name in row)
    renamed = {}
    for name in own:
        new = name
        while new in added:
            new += " (table)"
        renamed[name] = new
        added.add(new)
    columns = [*places, *renamed.values(), EXPECTED, *predicted]
    with (
        replacing(path) as unfinished,
        open(unfinished, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for each in found:
            row = {renamed[name]: value for name, value in each.row.items()}
            row |= {LINE: each.line, EXPECTED: each.expected, **each.predicted}
            if table.groups:
                row[GROUP] = each.group
            writer.writerow({k: _cell(value) for k, value in row.items()})


def _cell(value: object) -> object:
    """A value as tables have it: several labels are separated by "|"."""
    if isinstance(value, list):
        return _printable("|".join(map(str, value)))
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return _printable(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    """Half a character (a lone surrogate) as an escape, which UTF-8 has."""
    return text.encode("utf-8", "backslashreplace").decode()
