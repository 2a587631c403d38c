"""Own labelled texts: TSV, CSV, JSONL or plain text files -> batches.

Shapes: B examples in a batch, S tokens a row.
"""

import csv
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_albert.config import (
    PAD_ID,
    AlbertError,
    TableColumns,
    check_positive,
    check_seed,
)
from keras_albert.data.batching import batch_dataset, import_tensorflow
from keras_albert.text.files import check_files, read_lines
from keras_albert.text.tokenizer import Tokenizer, check_batch

# Lengths that batches are padded to. Few, as XLA compiles the model once for
# each; a doubling wastes less than half of a batch on padding.
BUCKETS = (32, 64, 128, 256, 512)

LINES_AT_ONCE = 2_000  # tokenized together: long enough to be fast

_SHUFFLE = 3  # keeps this random stream apart from those of pretraining

# A row and the line of the file where it ends.
_Row = tuple[int, dict[str, object]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, in its order."""

    texts: list[str]
    pairs: list[str] | None
    """second texts, where `columns.pair` names their column"""
    labels: list[str] | None
    """None where no labels were asked for"""
    rows: list[dict[str, object]]
    """all columns as they are in the file"""
    lines: list[int]
    """the line of the file on which each row ends"""


def read_table(
    path: str | Path, columns: TableColumns, need_label: bool = True
) -> Table:
    """Reads a file by its extension.

    .tsv has a header and no quoting; .csv a header and RFC 4180 quoting;
    .jsonl an object a line; .txt a text a line, without labels. UTF-8, with or
    without a byte order mark. Blank lines are skipped, but in .txt only at
    the end: there each line is an example.

    In JSONL a text is a string; a label may also be a number or a boolean and
    then reads as it is written there.

    Args:
        path: the file.
        columns: the columns to use.
        need_label: whether `columns.label` must be there. Without it `labels`
            is None.

    Raises:
        AlbertError: a missing or empty file, an unknown extension, a missing
            column, a row with another number of fields than the header, a
            malformed line, a line that is not UTF-8, an empty text or label.
    """
    (path,) = check_files([path])
    extension = path.suffix.lower()
    if extension not in _READERS:
        raise AlbertError(
            f"{path}: expected a file that ends in {', '.join(_READERS)}. "
            f"Received: {path.suffix or 'no extension'}. Convert or rename it."
        )
    if extension == ".txt" and (need_label or columns.pair):
        raise AlbertError(
            f"{path}: a .txt file has one text a line, and no "
            f"{'labels' if need_label else 'pairs'}. Give a .tsv, .csv or "
            ".jsonl file."
        )
    texts, pairs, labels, rows, lines = [], [], [], [], []
    for line, row in _READERS[extension](path, columns):
        place = f"{path}:{line}"
        texts.append(_text(row, columns.text, "text", place))
        if columns.pair:
            pairs.append(_text(row, columns.pair, "pair", place))
        if need_label:
            labels.append(_label(row, columns.label, place))
        rows.append(row)
        lines.append(line)
    if not rows:
        raise AlbertError(f"{path}: no rows. Expected one or more examples.")
    return Table(
        texts,
        pairs if columns.pair else None,
        labels if need_label else None,
        rows,
        lines,
    )


def label_index(
    labels: Sequence[str],
    names: Sequence[str],
    path: str | Path,
    lines: Sequence[int] | None = None,
) -> np.ndarray:
    """The index of each label in `names`, int32 [len(labels)].

    `label_index(["b", "a", "b"], ["a", "b"], path)` is [1, 0, 1].

    Args:
        labels: as in `Table.labels`.
        names: the known labels.
        path: the file, for the message.
        lines: `Table.lines`, for the message.

    Raises:
        AlbertError: a label that is not in `names`.
    """
    index = {name: number for number, name in enumerate(names)}
    for number, label in enumerate(labels):
        if label not in index:
            place = f"row {number + 1}" if lines is None else lines[number]
            known = ", ".join(map(repr, names[:20]))
            raise AlbertError(
                f"{path}:{place}: unknown label {label!r}. Expected one of "
                f"{known}{', ...' if len(names) > 20 else ''}. Correct the "
                "label or remove the row."
            )
    return np.array([index[label] for label in labels], "int32")


def classification_dataset(
    tokenizer: Tokenizer,
    table: Table,
    label_ids: np.ndarray,
    *,
    sequence_length: int,
    batch_size: int,
    seed: int | None = None,
    epochs: int = 1,
):
    """tf.data.Dataset of batches (x, y, sample_weight), each row once an epoch.

    x: int32 `token_ids`, `segment_ids`, `padding_mask` [B, S]; y: int32 [B],
    `label_ids`; sample_weight: float32 [B]. B is `batch_size` in every batch:
    the last one is filled up with copies of its last row that weigh 0. S is
    the smallest of BUCKETS that holds the longest row of the batch, but not
    above `sequence_length`.

    Args:
        label_ids: int [len(table.texts)], from `label_index`.
        sequence_length: longest row, in tokens; the rest is cut off.
        batch_size: B.
        seed: of the order, 0 or more; None keeps the order of the table. The
            k-th epoch has the order of (seed, k).
        epochs: how many follow one another. Whoever reads the dataset again
            gets the same ones.

    Raises:
        AlbertError: a number out of range, or no TensorFlow.
    """
    check_positive("batch_size", batch_size)
    if seed is not None:
        check_seed(seed)
    tf = import_tensorflow()
    rows = pack_rows(tokenizer, table.texts, table.pairs, sequence_length)
    label_ids = np.asarray(label_ids, "int32")
    count = len(rows)
    check_positive("epochs", epochs)

    def batches() -> Iterator[tuple]:
        for epoch in range(epochs):
            order = np.arange(count)
            if seed is not None:
                rng = np.random.default_rng((seed, _SHUFFLE, epoch))
                order = rng.permutation(count)
            for start in range(0, count, batch_size):
                chosen = order[start : start + batch_size]
                yield pad_batch(
                    [rows[i] for i in chosen],
                    label_ids[chosen],
                    batch_size,
                    sequence_length,
                )

    tokens = tf.TensorSpec((batch_size, None), tf.int32)
    names = ("token_ids", "segment_ids", "padding_mask")
    signature = (
        dict.fromkeys(names, tokens),
        tf.TensorSpec((batch_size,), tf.int32),
        tf.TensorSpec((batch_size,), tf.float32),
    )
    steps = epochs * -(-count // batch_size)
    return batch_dataset(batches, signature, steps)


def pad_batch(
    rows: Sequence[tuple[np.ndarray, int]],
    label_ids: np.ndarray,
    batch_size: int,
    sequence_length: int,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """One batch of `classification_dataset`.

    Args:
        rows: R times (token_ids int [T], length of segment 0), 1 <= R <= B.
        label_ids: int32 [R].
        batch_size: B.
        sequence_length: the longest S.
    """
    longest = max(len(tokens) for tokens, _ in rows)
    length = min(
        next((size for size in BUCKETS if size >= longest), sequence_length),
        sequence_length,
    )
    missing = batch_size - len(rows)
    token_ids = np.full((batch_size, length), PAD_ID, "int32")
    segment_ids, padding_mask = np.zeros((2, batch_size, length), "int32")
    for row, (tokens, first) in enumerate([*rows, *[rows[-1]] * missing]):
        token_ids[row, : len(tokens)] = tokens
        segment_ids[row, first : len(tokens)] = 1
        padding_mask[row, : len(tokens)] = 1
    return (
        {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
        },
        np.pad(label_ids, (0, missing), "edge"),
        np.pad(np.ones(len(rows), "float32"), (0, missing)),
    )


def pack_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    sequence_length: int,
) -> list[tuple[np.ndarray, int]]:
    """Token ids of each example, and the length of its segment 0."""
    check_batch("texts", texts)
    if pairs is not None:
        check_batch("pairs", pairs)
        if len(texts) != len(pairs):
            raise AlbertError(
                "`texts` and `pairs` must be equally many. Received: "
                f"{len(texts)} texts, {len(pairs)} pairs."
            )
    rows = []
    for start in range(0, len(texts), LINES_AT_ONCE):
        part = slice(start, start + LINES_AT_ONCE)
        firsts = tokenizer.encode_batch(texts[part])
        seconds = [None] * len(firsts)
        if pairs is not None:
            seconds = tokenizer.encode_batch(pairs[part])
        for first, second in zip(firsts, seconds, strict=True):
            tokens, segments = tokenizer.pack(first, second, sequence_length)
            rows.append((np.array(tokens, "int32"), segments.count(0)))
    return rows


def _text(row: dict[str, object], column: str, kind: str, place: str) -> str:
    value = _value(row, column, kind, place)
    if not isinstance(value, str):
        raise AlbertError(
            f"{place}: `{column}` must be a text. Received: {value!r:.60}."
        )
    if not value.strip():
        raise AlbertError(
            f"{place}: the {kind} in column `{column}` is empty. Fill it in or "
            "remove the row."
        )
    return value


def _label(row: dict[str, object], column: str, place: str) -> str:
    value = _value(row, column, "label", place)
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise AlbertError(
            f"{place}: the label in `{column}` must be a text, a number or a "
            f"boolean. Received: {value!r:.60}."
        )
    value = value.strip()
    if not value.isascii() and value != value.encode(errors="ignore").decode():
        raise AlbertError(
            f"{place}: the label {value!r} has half a character (a lone "
            "surrogate). Correct it."
        )
    if not value:
        raise AlbertError(
            f"{place}: the label in column `{column}` is empty. Fill it in or "
            "remove the row."
        )
    return value


def _value(
    row: dict[str, object], column: str, kind: str, place: str
) -> object:
    if column not in row:
        raise AlbertError(
            f"{place}: no column `{column}` for the {kind}. The columns are "
            f"{', '.join(f'`{name}`' for name in row) or 'none'}. Name the "
            f"right one with `finetune --columns.{kind}`, rename it in the "
            "file, or add the header line if it is missing."
        )
    return row[column]


def _read_tsv(path: Path, columns: TableColumns) -> Iterator[_Row]:
    records = (
        (number, line.split("\t"))
        for number, line in read_lines(path)
        if line.strip()
    )
    return _with_header(path, columns, records, "Remove tabs inside a text")


def _read_csv(path: Path, columns: TableColumns) -> Iterator[_Row]:
    def records():
        csv.field_size_limit(sys.maxsize)  # texts may be long
        reader = csv.reader(
            (f"{line}\n" for _, line in read_lines(path)), strict=True
        )
        try:
            for record in reader:
                if record:
                    yield reader.line_num, record
        except csv.Error as error:
            raise AlbertError(
                f"{path}:{reader.line_num}: malformed CSV ({error}). Check the "
                "quotes of this row and the ones before."
            ) from None

    return _with_header(
        path, columns, records(), "Put a text with commas in double quotes"
    )


def _with_header(
    path: Path,
    columns: TableColumns,
    records: Iterable[tuple[int, list[str]]],
    remedy: str,
) -> Iterator[_Row]:
    records = iter(records)
    _, header = next(records, (0, []))
    header = [name.strip() for name in header]
    if len(header) == 1 and (found := re.search(r"[;,\t|]", header[0])):
        separator = "tabs" if path.suffix.lower() == ".tsv" else "commas"
        raise AlbertError(
            f"{path}: expected columns separated by {separator}, as the "
            f"extension says. Received a header with {found[0]!r}: "
            f"{header[0]:.60}. Rename or convert the file."
        )
    if len(set(header)) < len(header):
        raise AlbertError(
            f"{path}: the header names a column twice: {', '.join(header)}. "
            "Rename one."
        )
    for number, record in records:
        if len(record) != len(header):
            raise AlbertError(
                f"{path}:{number}: expected {len(header)} fields, as in the "
                f"header. Received: {len(record)}. {remedy}, and check that "
                "the first line of the file names the columns."
            )
        yield number, dict(zip(header, record, strict=True))


def _read_jsonl(path: Path, columns: TableColumns) -> Iterator[_Row]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise AlbertError(
                f"{path}:{number}: not JSON ({error}). Expected one object "
                "a line."
            ) from None
        if not isinstance(row, dict):
            raise AlbertError(
                f'{path}:{number}: expected an object such as {{"text": "..."}}'
                f". Received: {line.strip():.60}."
            )
        yield number, row


def _read_txt(path: Path, columns: TableColumns) -> Iterator[_Row]:
    blank = None
    for number, line in read_lines(path):
        if blank and line.strip():
            raise AlbertError(
                f"{path}:{blank}: a blank line. Each line is an example: "
                "remove it."
            )
        if line.strip():
            yield number, {columns.text: line}
        else:
            blank = blank or number  # fine at the end of the file


_READERS = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
}
