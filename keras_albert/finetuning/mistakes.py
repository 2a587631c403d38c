"""The mistakes of a fine-tuned model, the most confident ones first."""

import csv
import textwrap
from pathlib import Path

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.predictor import Predictor
from keras_albert.storage import replacing
from keras_albert.tasks.task import LABEL, Outputs

EXPECTED = "expected"
WIDTH = 100  # characters of a printed text


def check_can_rank(predictor: Predictor) -> None:
    """Raises AlbertError for a task whose mistakes have no order."""
    if predictor.definition.wrongness is None:
        raise AlbertError(
            "`errors` is for tasks with a label, labels, a number or a choice "
            f"an example. Received: task={predictor.task!r}. Leave --errors "
            "and --errors-file out."
        )


def mistakes(
    predictor: Predictor, table: Table, features: Features, outputs: Outputs
) -> list[dict[str, object]]:
    """The examples with a wrong prediction, the most confident one first.

    Each has the line of the file, the texts, the `expected` label, and what
    `predict` writes. Numbers are in the order of their difference.
    """
    task = predictor.definition
    names = task.inputs(predictor.columns)
    wrong = task.wrongness(outputs, features)
    order = np.argsort(-wrong, kind="stable")
    chosen = [int(row) for row in order if wrong[row] > 0]
    decoded = predictor.decode(outputs, features)
    return [
        {
            "line": table.lines[row],
            **{name: table.values[name][row] for name in names},
            EXPECTED: table.values[LABEL][row],
            **decoded[row],
        }
        for row in chosen
    ]


def mistakes_lines(
    found: list[dict[str, object]], count: int, most: int
) -> list[str]:
    """The lines that a user reads; `count` examples were predicted."""
    lines = [f"{len(found):,} of {count:,} examples have a wrong prediction"]
    if most < len(found):
        lines[0] += f"; the {most} of which the model is surest:"
    for each in found[:most]:
        score = each.get("score")
        odds = f" ({score:.3f})" if isinstance(score, float) else ""
        skipped = ("line", EXPECTED, "prediction", "score")
        texts = " | ".join(
            str(value) for name, value in each.items() if name not in skipped
        )
        lines.append(
            f"line {each['line']}: {each['prediction']}{odds}, expected "
            f"{each[EXPECTED]}: {textwrap.shorten(texts, WIDTH)}"
        )
    return lines


def write_mistakes(found: list[dict[str, object]], path: Path) -> None:
    """Writes a CSV file with a row for each mistake."""
    names = dict.fromkeys(name for each in found for name in each)
    with (
        replacing(path) as unfinished,
        open(unfinished, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(names))
        writer.writeheader()
        writer.writerows(found)
