"""Which rows of a training table are held out, where no file is given for it.

A pure function of the rows: the same table gives the same rows in every run,
whatever its seed, and when an interrupted run goes on.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Hashable, Sequence

from keras_albert.data.tables import Table

HELD_OUT_PART = 10  # one row of ten
FEWEST_ROWS = 50  # of fewer, a tenth measures next to nothing
FEWEST_OF_A_LABEL = 5  # a rarer label is only learned from


def hold_out(
    table: Table, inputs: Sequence[str], label: str | None
) -> tuple[Table, Table] | None:
    """A table as (rows to learn from, a tenth of them held out).

    Of each label a tenth is held out, so that both parts have the same shares.
    Rows with the same first input (questions on one context, pairs with one
    first text, a text that occurs twice) stay together: a model must not be
    measured on what it has learned by heart.

    Args:
        table: with labels.
        inputs: the fields that a prediction needs, the main one first.
        label: the field of the one label of each row; None where rows have
            no label or several.

    Returns:
        None where the table has too few rows.
    """
    if len(table) < FEWEST_ROWS:
        return None
    labels = table.values[label] if label else [None] * len(table)
    wanted = sum(_quota(labels).values())
    chosen: list[int] = []
    # All pairs may have the same first text: then they are told by both.
    for fields in (inputs[:1], inputs):
        columns = [table.values[name] for name in fields]
        keys = [json.dumps(row) for row in zip(*columns, strict=True)]
        chosen = held_out_rows(keys, labels)
        if 2 * len(chosen) >= wanted:
            break
    if not chosen:
        return None
    rest = sorted(set(range(len(table))) - set(chosen))
    # Rows that were left out are told once, as those of the first part.
    held_out = dataclasses.replace(table.take(chosen), skipped=[])
    return table.take(rest), held_out


def held_out_rows(keys: Sequence[str], labels: Sequence[Hashable]) -> list[int]:
    """The indices of the rows to hold out, ascending.

    Rows are taken in the order of the SHA-256 of their keys, which has nothing
    to do with their order in the file, as long as their label has room.

    Args:
        keys: rows with the same key stay together.
        labels: of each row.
    """
    rows_of = collections.defaultdict(list)
    for row, key in enumerate(keys):
        rows_of[key].append(row)
    room = _quota(labels)
    chosen = []
    for key in sorted(rows_of, key=_digest):
        counts = collections.Counter(labels[row] for row in rows_of[key])
        if all(room[label] >= count for label, count in counts.items()):
            room -= counts
            chosen += rows_of[key]
    return sorted(chosen)


def _quota(labels: Sequence[Hashable]) -> collections.Counter:
    """How many rows of each label are to be held out."""
    return collections.Counter(
        {
            label: round(count / HELD_OUT_PART + 1e-9)  # 0.5 becomes 1
            for label, count in collections.Counter(labels).items()
            if count >= FEWEST_OF_A_LABEL
        }
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
