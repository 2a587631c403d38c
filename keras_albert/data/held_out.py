"""Holds out rows of a training table if no validation file is given.

The choice only depends on the rows: a table gives the same rows in every run,
with any seed, and when an interrupted run is resumed.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Hashable, Sequence

from keras_albert.data.tables import Table
from keras_albert.text.normalization import normalize

HELD_OUT_PART = 10  # one in ten rows is held out
FEWEST_ROWS = 50  # a tenth of fewer rows would be too few to measure
FEWEST_OF_A_LABEL = 5  # all rows of a rarer label are used for training


def hold_out(
    table: Table, inputs: Sequence[str], label: str | None
) -> tuple[Table, Table] | None:
    """Splits a table into rows for training and a tenth that is held out.

    A tenth of the rows of each label is held out, so that both parts have the
    same distribution of labels. Rows with the same first input are kept in the
    same part, such as questions on one context, and so are two rows with the
    same pair of texts in either order: otherwise a model could be measured on
    texts that it has memorized. Case, accents and white space make no
    difference, as most vocabularies drop them.

    `inputs` are the fields that a prediction needs, the main one first, and
    `label` is the field of the label; None if rows do not have exactly one.
    Returns None if the table has too few rows, or no group of rows can be held
    out.
    """
    if len(table) < FEWEST_ROWS:
        return None
    labels = table.values[label] if label else [None] * len(table)
    wanted = sum(_quota(labels).values())
    values = {name: list(map(_plain, table.values[name])) for name in inputs}
    chosen: list[int] = []
    # Rows are grouped by the first input. If all rows have the same one, no
    # group can be held out; rows are then grouped by all inputs.
    for fields in (inputs[:1], inputs):
        columns = [values[name] for name in fields]
        keys = [json.dumps(row) for row in zip(*columns, strict=True)]
        if "pair" in table.values:
            first, second = values[inputs[0]], table.values["pair"]
            keys = _with_swapped(keys, first, list(map(_plain, second)))
        chosen = held_out_rows(keys, labels)
        if 2 * len(chosen) >= wanted:
            break
    if not chosen:
        return None
    rest = sorted(set(range(len(table))) - set(chosen))
    # Skipped rows are in the first part alone, to be reported once.
    held_out = dataclasses.replace(table.take(chosen), skipped=[])
    return table.take(rest), held_out


def _plain(value: object) -> object:
    if isinstance(value, str):
        return normalize(value)
    return list(map(_plain, value)) if isinstance(value, list) else value


def _with_swapped(
    keys: Sequence[str], first: Sequence, second: Sequence
) -> list[str]:
    """The keys of rows; those of two rows with swapped texts become one."""
    replaced: dict[str, str] = {}
    key_of: dict[tuple, str] = {}  # of the rows so far, by their two texts

    def current(key: str) -> str:
        while key in replaced:
            parent = replaced[key]
            replaced[key] = replaced.get(parent, parent)  # a shorter path
            key = parent
        return key

    for key, one, other in zip(keys, first, second, strict=True):
        key_of.setdefault((one, other), key)
        if (other, one) in key_of:
            both = {current(key), current(key_of[other, one])}
            if len(both) == 2:
                replaced[max(both)] = min(both)
    return list(map(current, keys))


def held_out_rows(keys: Sequence[str], labels: Sequence[Hashable]) -> list[int]:
    """The indices of the rows to hold out, ascending.

    Groups of rows with the same key are considered in the order of the SHA-256
    of the keys, which is unrelated to their order in the file. A group is held
    out if it does not exceed the quota of any label.
    """
    rows_of = collections.defaultdict(list)
    for row, key in enumerate(keys):
        rows_of[key].append(row)
    room = _quota(labels)
    chosen = []
    digests = {
        key: hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        for key in rows_of
    }
    for key in sorted(rows_of, key=digests.get):
        counts = collections.Counter(labels[row] for row in rows_of[key])
        if all(room[label] >= count for label, count in counts.items()):
            room -= counts
            chosen += rows_of[key]
    return sorted(chosen)


def _quota(labels: Sequence[Hashable]) -> collections.Counter:
    """The number of rows to hold out for each label."""
    return collections.Counter(
        {
            label: round(count / HELD_OUT_PART + 1e-9)  # 0.5 becomes 1
            for label, count in collections.Counter(labels).items()
            if count >= FEWEST_OF_A_LABEL
        }
    )
