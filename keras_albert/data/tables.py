"""Reads tables of examples: TSV, CSV, JSONL, Parquet and text files."""

import collections
import csv
import dataclasses
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_albert.data.bad_rows import BadRows
from keras_albert.errors import AlbertError, is_number
from keras_albert.text.files import (
    check_files,
    open_parquet,
    read_lines_or_faults,
)

ROWS_AT_ONCE = 1_000  # rows of a Parquet file read at a time

# The line of the file on which a row ends; and the row, or the error if it
# cannot be read.
_Row = tuple[int, dict[str, object] | AlbertError]


@dataclasses.dataclass(frozen=True)
class Field:
    """A value that a task reads from each row."""

    column: str
    """name of the column in the file"""
    read: Callable[[object], object]
    """function from the value in the file to that of the example; it raises
    AlbertError, without file and line, for an invalid value"""


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, in the order of the file."""

    path: Path
    values: dict[str, list]
    """the values of each field, by the name of the field"""
    rows: list[dict[str, object]]
    """all columns of each row, as they are in the file"""
    lines: list[int]
    """the line of the file on which each row ends"""
    skipped: list[str] = dataclasses.field(default_factory=list)
    """messages on the rows that were skipped, with file and line"""
    groups: list[str] | None = None
    """the group of each row, such as the part of a published split; or None"""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Iterable[int]) -> "Table":
        """A table of the rows with the given indices, in that order."""
        places = list(places)

        def chosen(column: list) -> list:
            return [column[place] for place in places]

        return dataclasses.replace(
            self,
            values={name: chosen(each) for name, each in self.values.items()},
            rows=chosen(self.rows),
            lines=chosen(self.lines),
            skipped=list(self.skipped),
            groups=self.groups and chosen(self.groups),
        )

    def first(self, count: int) -> "Table":
        """A table of at most `count` rows, from the first one on."""
        return self.take(range(min(count, len(self))))

    @property
    def checksum(self) -> str:
        """SHA-256 of the values, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()


def read_parts(
    path: str | Path | Mapping[str, Sequence],
    fields: Mapping[str, Field],
    skip_bad: bool = False,
    rows_at_once: int | None = None,
    complete: Callable[[dict, dict], dict] = lambda row, values: values,
) -> Iterator[Table]:
    """Streams a file as tables of some rows each, whatever its length.

    The extension determines the format. A .tsv file has a header and no
    quoting; a .csv file has a header and RFC 4180 quoting, with commas,
    semicolons or tabs as delimiter; .jsonl has an object per line; .parquet has
    an example per row; .txt has a text per line and no other column. Text files
    are UTF-8, with or without a byte order mark.

    Blank lines are skipped, except in .txt files, where a blank line is an
    empty text, so that line n of the predictions belongs to line n of the
    file. Blank lines at the end of a .txt file are skipped.

    Args:
        path: the file; or a dict of columns of equal length.
        fields: the values to read, by the names used in messages and in
            `Table.values`.
        skip_bad: whether to skip rows that cannot be read.
        rows_at_once: rows of each table, including skipped ones, so that a
            table may be empty; None for a single table.
        complete: function from a row and the values of its fields to the values
            of the example. It raises AlbertError for an invalid row.

    Yields:
        `Table`s.

    Raises:
        AlbertError: the file is missing or empty, its extension is unknown, or
            a column is missing. Without `skip_bad` also: a row has another
            number of fields than the header, a line is malformed or not UTF-8,
            or a value is invalid.
    """
    if isinstance(path, Mapping):
        rows = _rows_of(path)
        yield _table(Path("columns"), rows, fields, skip_bad, complete)
        return
    (path,) = check_files([path])
    extension = path.suffix.lower()
    if extension not in _READERS:
        raise AlbertError(
            f"{path}: expected a file that ends in {', '.join(_READERS)}. "
            f"Received: {path.suffix or 'no extension'}. Convert or rename it."
        )
    if extension == ".txt" and fields.keys() != {"text"}:
        others = ", ".join(name for name in fields if name != "text")
        raise AlbertError(
            f"{path}: a .txt file has one text a line, and no {others}. Give "
            "a .tsv, .csv, .jsonl or .parquet file."
        )
    records = _READERS[extension](path, fields)
    if extension == ".txt":
        read = _or_blank(fields["text"].read)
        fields = {"text": dataclasses.replace(fields["text"], read=read)}
    good, bad = 0, 0
    while part := list(itertools.islice(records, rows_at_once)):
        table = _table(path, part, fields, skip_bad, complete)
        good += len(table)
        bad += len(table.skipped)
        yield table
    if not good:
        raise AlbertError(
            f"{path}: no rows. Expected one or more examples."
            + (f" {bad} bad ones were left out." if bad else "")
        )


def _rows_of(columns: Mapping[str, Sequence]) -> list[_Row]:
    """Converts columns to numbered rows, and NumPy values to Python's."""
    values = {
        name: value.tolist() if hasattr(value, "tolist") else list(value)
        for name, value in columns.items()
    }
    if len(set(map(len, values.values()))) > 1:
        counts = ", ".join(f"{len(v)} {name}" for name, v in values.items())
        raise AlbertError(
            f"the columns must be equally long. Received: {counts}."
        )
    rows = zip(*values.values(), strict=True)
    return [
        (number, dict(zip(values, row, strict=True)))
        for number, row in enumerate(rows, 1)
    ]


def _table(
    path: Path,
    records: list[_Row],
    fields: Mapping[str, Field],
    skip_bad: bool,
    complete: Callable[[dict, dict], dict],
) -> Table:
    examples, rows, lines = [], [], []
    bad, every = BadRows(skip_bad), BadRows(skip=False, remedy="")
    for line, row in records:
        try:
            if isinstance(row, AlbertError):
                raise row
            found = {
                name: _value(row, name, field) for name, field in fields.items()
            }
            examples.append(complete(row, found))
        except MissingColumn as error:
            # Except in JSONL, a missing column is missing in every row.
            rows_differ = path.suffix.lower() == ".jsonl"
            (bad if rows_differ else every).add(f"{path}:{line}", error)
        except AlbertError as error:
            bad.add(f"{path}:{line}", error)
        else:
            rows.append(row)
            lines.append(line)
    values = {name: [each[name] for each in examples] for name in fields}
    return Table(path, values, rows, lines, bad.messages)


class MissingColumn(AlbertError):
    """A row lacks the column of a field."""

    def __init__(self, message: str, field: str):
        super().__init__(message)
        self.field = field


def _value(row: dict[str, object], name: str, field: Field) -> object:
    if field.column not in row:
        raise MissingColumn(
            f"no column `{field.column}` for the {name}. The columns are "
            f"{', '.join(f'`{each}`' for each in row) or 'none'}. Rename the "
            "right one, or add it (of a TSV or CSV file, in its first line).",
            name,
        )
    try:
        return field.read(row[field.column])
    except AlbertError as error:
        raise AlbertError(
            f"the {name} in column `{field.column}` {error}"
        ) from None


# Functions that read the value of a column.


def read_text(value: object) -> str:
    """Reads a text; raises AlbertError if it is blank."""
    if not isinstance(value, str):
        raise AlbertError(f"must be a text. Received: {value!r:.60}.")
    if not value.strip():
        raise AlbertError("is empty. Fill it in or remove the row.")
    return value


def read_label(value: object) -> str:
    """Reads a label; numbers and booleans become text as in JSON."""
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise AlbertError(
            f"must be a text, a number or a boolean. Received: {value!r:.60}."
        )
    value = value.strip()
    if not value.isascii() and value != value.encode(errors="ignore").decode():
        raise AlbertError(
            f"({value!r}) has half a character (a lone surrogate). Correct it."
        )
    if not value:
        raise AlbertError("is empty. Fill it in or remove the row.")
    return value


def read_number(value: object) -> float:
    """Reads a finite number."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not is_number(number):
        remedy = ""
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
            # A comma is not accepted as decimal point: "1,234" may also be a
            # number above a thousand.
            remedy = (
                " Write decimals with a point, "
                f"{value.strip().replace(',', '.')}: replace the commas, or "
                "save the table with numbers in the English format."
            )
        raise AlbertError(f"must be a number. Received: {value!r:.60}.{remedy}")
    return float(number)


def read_choice(value: object) -> str | int:
    """Reads the right choice: its index, if it is a number, or its text."""
    is_index = isinstance(value, int) and not isinstance(value, bool)
    return value if is_index else read_label(value)


def read_labels(value: object) -> list[str]:
    """Reads any number of labels: a list, or a text separated by "|"."""
    if isinstance(value, str):
        value = [part for part in value.split("|") if part.strip()]
    if not isinstance(value, list):
        raise AlbertError(
            'must be a list of labels, or a text such as "a|b". '
            f"Received: {value!r:.60}."
        )
    return [read_label(label) for label in value]


def read_words(value: object) -> list[str]:
    """Reads words, or their labels: a list, or a text separated by spaces."""
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        raise AlbertError(
            "must be a list of words, or a text with spaces between them. "
            f"Received: {value!r:.60}."
        )
    return [read_label(word) for word in words]


def read_choices(value: object) -> list[str]:
    """Reads two or more choices: a list, or a text separated by "|"."""
    choices = value
    if isinstance(value, str):
        choices = [choice.strip() for choice in value.split("|")]
    if not isinstance(choices, list) or len(choices) < 2:
        raise AlbertError(
            'must be a list of two or more texts, or a text such as "a|b". '
            f"Received: {value!r:.60}."
        )
    return [read_text(choice) for choice in choices]


def label_index(
    labels: Sequence[str],
    names: Sequence[str],
    path: str | Path,
    lines: Sequence[int] | None = None,
) -> np.ndarray:
    """The index of each label in `names`, int32 [len(labels)].

    Example: `label_index(["b", "a", "b"], ["a", "b"], path)` is [1, 0, 1].

    Args:
        labels: the labels of rows, or of the words of a row.
        names: the known labels.
        path: the file, for the message.
        lines: `Table.lines`, for the message.

    Raises:
        AlbertError: a label is not in `names`.
    """
    for number, label in enumerate(labels):
        try:
            check_labels([label], names)
        except AlbertError as error:
            place = f"row {number + 1}" if lines is None else lines[number]
            raise AlbertError(f"{path}:{place}: the label {error}") from None
    index = {name: number for number, name in enumerate(names)}
    return np.array([index[label] for label in labels], "int32")


def check_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Raises AlbertError if a label is not among the names."""
    for label in labels:
        if label not in names:
            known = ", ".join(map(repr, names[:20]))
            raise AlbertError(
                f"is the unknown label {label!r}. Expected one of {known}"
                f"{', ...' if len(names) > 20 else ''}. Correct the label or "
                "remove the row."
            )


def _or_blank(read: Callable[[object], object]) -> Callable:
    """A reader for lines of a .txt file that also accepts blank lines."""

    def read_line(line: str) -> object:
        if line.strip():
            return read(line)
        return [] if read is read_words else ""

    return read_line


_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_CHECK_HEADER = "check that the first line of the file names the columns."
_TABS = f"Remove tabs inside a text, and {_CHECK_HEADER}"
_QUOTE = "Put a text with {} in double quotes, and " + _CHECK_HEADER
# Possible delimiters of a .csv file, the usual one first. Where the comma is
# the decimal separator, as in much of Europe, spreadsheets write semicolons.
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


# Readers of the rows of a file, by its extension. They yield an AlbertError
# instead of a row that cannot be read.


def _read_tsv(path: Path, fields: Mapping[str, Field]) -> Iterator[_Row]:
    return _with_header(path, tab_records(path), _TABS)


def tab_records(path: Path) -> Iterator[tuple[int, list[str] | AlbertError]]:
    """Yields the numbers and fields of tab-separated lines.

    Blank lines are skipped, and quotes have no special meaning.
    """
    for number, line in read_lines_or_faults(path):
        if isinstance(line, AlbertError):
            yield number, line
        elif line.strip(" "):  # a line of tabs is a row of empty fields
            yield number, line.split("\t")


def _read_csv(path: Path, fields: Mapping[str, Field]) -> Iterator[_Row]:
    csv.field_size_limit(sys.maxsize)  # texts may be long
    delimiter = _delimiter_of(path, fields)
    remedy = _QUOTE.format(_DELIMITERS[delimiter])
    return _with_header(path, _csv_records(path, delimiter), remedy)


def _delimiter_of(path: Path, fields: Mapping[str, Field]) -> str:
    """The delimiter of a .csv file.

    It is the one with which the header has most of the wanted columns. If
    several are equal, it is the one that gives most columns, which a message
    can then list; or else the comma.
    """
    wanted = {field.column for field in fields.values()}
    _, line = next(read_lines_or_faults(path), (0, ""))
    if isinstance(line, AlbertError):
        return ","

    def rank(delimiter: str) -> tuple[int, int]:
        header = next(csv.reader([line], delimiter=delimiter), [])
        names = [name.strip() for name in header]
        return len(wanted.intersection(names)), len(names)

    return max(_DELIMITERS, key=rank)


def _csv_records(
    path: Path, delimiter: str
) -> Iterator[tuple[int, list[str] | AlbertError]]:
    """Yields the fields of each record, and the number of its last line.

    A stray quote opens a quoted text that swallows the next rows. Such a record
    is recognized by its number of fields. It is reported as an error at its
    first line, and the lines after that are read again as records of their own.
    """
    fresh, again = read_lines_or_faults(path), collections.deque()
    taken = []  # numbers and lines of the record that is being read

    def lines():
        while numbered := again.popleft() if again else next(fresh, None):
            taken.append(numbered)
            _, line = numbered
            # The error of a line that is not UTF-8 replaces its record below.
            yield "\n" if isinstance(line, AlbertError) else f"{line}\n"

    def fresh_reader():
        return csv.reader(lines(), delimiter=delimiter, strict=True)

    reader, width = fresh_reader(), None
    while True:
        taken.clear()
        reason = None
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            record, reason = [], str(error)
        width = width or len(record)
        if len(taken) > 1 and len(record) != width:
            reason = reason or f"{len(record)} fields in {len(taken)} lines"
        if reason:
            first, _ = taken[0]
            again.extendleft(reversed(taken[1:]))
            reader = fresh_reader()
            yield (
                first,
                AlbertError(
                    f"malformed CSV ({reason}). Check the quotes of the row "
                    "that begins here; a quote within a text is doubled."
                ),
            )
            continue
        last, _ = taken[-1]
        for _, line in taken:
            if isinstance(line, AlbertError):
                record = line
        if record:
            yield last, record


def _with_header(
    path: Path,
    records: Iterable[tuple[int, list[str] | AlbertError]],
    remedy: str,
) -> Iterator[_Row]:
    records = iter(records)
    _, header = next(records, (0, []))
    if isinstance(header, AlbertError):
        raise AlbertError(f"{path}:1: {header}")
    header = [name.strip() for name in header]
    if len(header) == 1 and (found := re.search(r"[;,\t|]", header[0])):
        is_tsv = path.suffix.lower() == ".tsv"
        separator = "tabs" if is_tsv else "commas, semicolons or tabs"
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
    yield from named(records, header, remedy)


def named(
    records: Iterable[tuple[int, list[str] | AlbertError]],
    header: Sequence[str],
    remedy: str,
) -> Iterator[_Row]:
    """Converts records to rows, which are dicts by the names of the header."""
    for number, record in records:
        if isinstance(record, AlbertError):
            yield number, record
        elif len(record) == len(header):
            yield number, dict(zip(header, record, strict=True))
        else:
            yield (
                number,
                AlbertError(
                    f"expected {len(header)} fields ({', '.join(header)}). "
                    f"Received: {len(record)}. {remedy}".rstrip()
                ),
            )


def _read_jsonl(path: Path, fields: Mapping[str, Field]) -> Iterator[_Row]:
    for number, line in read_lines_or_faults(path):
        if isinstance(line, AlbertError):
            yield number, line
        elif line.strip():
            yield number, _json_object(line)


def _json_object(line: str) -> dict[str, object] | AlbertError:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return AlbertError(f"not JSON ({error}). Expected one object a line.")
    if isinstance(row, dict):
        return row
    return AlbertError(
        'expected an object such as {"text": "..."}. '
        f"Received: {line.strip():.60}."
    )


def _read_parquet(path: Path, fields: Mapping[str, Field]) -> Iterator[_Row]:
    with open_parquet(path) as file:
        number = 0
        for batch in file.iter_batches(ROWS_AT_ONCE):
            for row in _parquet_rows(batch):
                number += 1
                yield number, row


def _parquet_rows(batch) -> Iterator[dict[str, object] | AlbertError]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        # It was raised before the first row: convert the rows one by one.
        for i in range(batch.num_rows):
            try:
                yield from batch.slice(i, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield AlbertError(f"not UTF-8 ({error}). Convert the file.")


def _read_txt(path: Path, fields: Mapping[str, Field]) -> Iterator[_Row]:
    column = fields["text"].column
    # Blank lines are held back, to skip them at the end of the file.
    blanks = []
    for number, line in read_lines_or_faults(path):
        if not isinstance(line, AlbertError) and not line.strip():
            blanks.append((number, {column: ""}))
            continue
        yield from blanks
        blanks.clear()
        bad = isinstance(line, AlbertError)
        yield number, line if bad else {column: line}


_READERS = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".txt": _read_txt,
}
