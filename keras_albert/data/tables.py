"""Reads tables of examples: TSV, CSV, JSONL, Parquet and text files."""

import contextlib
import dataclasses
import decimal
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_albert.data.bad_rows import (
    IN_MEMORY,
    SKIP_REMEDY,
    BadRows,
    place_of,
)
from keras_albert.data.frames import Frame, columns_of
from keras_albert.data.saved_dataset import is_saved_dataset, read_saved_dataset
from keras_albert.data.table_files import READERS, NumberedRow
from keras_albert.errors import AlbertError, is_number
from keras_albert.storage import local_path
from keras_albert.text.files import COMPRESSED_SUFFIXES, check_files

CHARACTERS_AT_ONCE = 20_000_000  # in a part of a table that is read in parts
# The largest absolute value of a label that is a number: the loss adds up
# squares of such numbers in float32.
LARGEST = 1e18


@dataclasses.dataclass(frozen=True)
class Field:
    """A value that a task reads from each row."""

    column: str  # name of the column in the file
    # function from the value in the file to that of the example; it raises
    # AlbertError, without file and line, for an invalid value
    read: Callable[[object], object]


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, in the order of the file."""

    path: Path
    # the values of each field, by the name of the field
    values: dict[str, list]
    # all columns of each row, as they are in the file
    rows: list[dict[str, object]]
    lines: list[int]  # the line of the file on which each row ends
    # messages on the rows that were skipped, with file and line
    skipped: list[str] = dataclasses.field(default_factory=list)
    # the group of each row, such as the part of a published split; or None
    groups: list[str] | None = None

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


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Up to `most` indices below `count`, evenly spaced."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def check_table(path: str | Path) -> Path:
    """The path of a table; AlbertError if there is no file or saved dataset."""
    path = local_path(path)
    if not is_saved_dataset(path):
        check_files([path])
    return path


def reader_of(path: Path) -> Callable[..., Iterator[NumberedRow]] | None:
    """The function that reads the rows of a table; None if there is none."""
    if is_saved_dataset(path):
        return read_saved_dataset
    return READERS.get(path.suffix.lower())


def read_parts(
    path: str | Path | Frame,
    fields: Mapping[str, Field],
    skip_bad: bool = False,
    rows_per_part: int | None = None,
    complete: Callable[[dict, dict], dict] = lambda row, values: values,
) -> Iterator[Table]:
    """Streams a file as tables of some rows each, whatever its length.

    The extension determines the format. A .tsv file has a header and no
    quoting; a .csv file has a header and RFC 4180 quoting, with commas,
    semicolons or tabs as delimiter; .jsonl has an object per line; .parquet has
    an example per row; .txt has a text per line and no other column. Text files
    are UTF-8, with or without a byte order mark. A folder is one that
    `save_to_disk` of a Hugging Face dataset wrote.

    Blank lines are skipped, except in .txt files, where a blank line is an
    empty text, so that line n of the predictions belongs to line n of the
    file. Blank lines at the end of a .txt file are skipped.

    Args:
        path: the file or folder; or a table in memory, see `columns_of`.
        fields: the values to read, by their names in `Table.values`.
        skip_bad: whether to skip rows that cannot be read.
        rows_per_part: most rows of each table, including skipped ones, so that
            a table may be empty; None for a single table.
        complete: function from a row and the values of its fields to the values
            of the example. It raises AlbertError for an invalid row.
    """
    if not isinstance(path, str | os.PathLike):
        rows = _rows_of(columns_of(path))
        table = _table(IN_MEMORY, rows, fields, skip_bad, complete)
        _check_not_empty(table.path, len(table), len(table.skipped))
        yield table
        return
    path = check_table(path)
    extension = path.suffix.lower()
    reader = reader_of(path)
    if reader is None and extension in COMPRESSED_SUFFIXES:
        raise AlbertError(
            f"{path}: compressed, and tables are read as they are. Decompress "
            "the file (gunzip, bunzip2, unxz, unzip or unzstd), and give the "
            "result."
        )
    if reader is None:
        raise AlbertError(
            f"{path}: expected a file that ends in {', '.join(READERS)}. "
            f"Received: {path.suffix or 'no extension'}. Convert or rename it."
        )
    text_column = fields["text"].column if "text" in fields else None
    others = [n for n, each in fields.items() if each.column != text_column]
    if extension == ".txt" and others:
        raise AlbertError(
            f"{path}: a .txt file has one text a line, and no "
            f"{', '.join(others)}. Give a .tsv, .csv, .jsonl or .parquet file."
        )
    columns = {each.column for each in fields.values()}
    records = reader(path, columns)
    if extension == ".txt":
        fields = {
            name: dataclasses.replace(each, read=_or_blank(each.read))
            for name, each in fields.items()
        }
    good, bad = 0, 0
    for part in _parts(records, rows_per_part):
        table = _table(path, part, fields, skip_bad, complete, good > 0)
        good += len(table)
        bad += len(table.skipped)
        yield table
    _check_not_empty(path, good, bad)


def _check_not_empty(path: Path, good: int, bad: int) -> None:
    """Raises AlbertError unless some rows of a table are good."""
    if not good:
        raise AlbertError(
            f"{path}: no rows. Expected one or more examples."
            + (f" {bad} bad ones were left out." if bad else "")
        )


def _parts(
    records: Iterator[NumberedRow], rows_per_part: int | None
) -> Iterator[list[NumberedRow]]:
    """Divides rows into parts of `rows_per_part` rows; None for a single part.

    A part ends earlier if its texts are very long, to limit the memory.
    """
    part, size = [], 0
    for line, row in records:
        part.append((line, row))
        if isinstance(row, dict):  # not an error in place of a row
            size += sum(len(x) for x in row.values() if isinstance(x, str))
        if rows_per_part is not None and (
            len(part) == rows_per_part or size >= CHARACTERS_AT_ONCE
        ):
            yield part
            part, size = [], 0
    if part:
        yield part


def _rows_of(columns: dict[str, list]) -> list[NumberedRow]:
    rows = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in rows]
    return list(enumerate(rows, 1))


def _table(
    path: Path,
    records: list[NumberedRow],
    fields: Mapping[str, Field],
    skip_bad: bool,
    complete: Callable[[dict, dict], dict],
    had_good: bool = False,
) -> Table:
    """Makes a table of some rows of a file.

    `had_good` says whether an earlier part of the file had a good row.
    """
    examples, rows, lines = [], [], []
    remedy = SKIP_REMEDY
    if path == IN_MEMORY:
        remedy = remedy.replace("--skip-bad", "skip_bad=True")
    bad, every = BadRows(skip_bad, remedy), BadRows(skip=False, remedy="")
    for line, row in records:
        try:
            if isinstance(row, AlbertError):
                raise row
            found = {
                name: _value(row, name, field) for name, field in fields.items()
            }
            examples.append(complete(row, found))
        except MissingColumn as error:
            # Only rows of JSONL differ in their columns, and if the first one
            # lacks a column, its name is probably wrong.
            rows_differ = path.suffix.lower() == ".jsonl"
            rows_differ &= skip_bad or had_good or bool(examples)
            (bad if rows_differ else every).add(place_of(path, line), error)
        except AlbertError as error:
            bad.add(place_of(path, line), error)
        else:
            rows.append(row)
            lines.append(line)
    values = {name: [each[name] for each in examples] for name in fields}
    return Table(path, values, rows, lines, bad.messages)


def check_has_columns(path: Path | Frame, option: str, column: str) -> None:
    """Raises AlbertError if an option names a column that no .txt file has.

    The only column of such a file is `text`.
    """
    is_file = isinstance(path, str | os.PathLike)
    is_text = is_file and Path(path).suffix.lower() == ".txt"
    if is_text and column != "text":
        raise AlbertError(
            f"{path}: a .txt file has one text a line, and no other columns. "
            f"Received: {option}={column!r}. Leave "
            f"--{option.replace('_', '-')} out, or give a .tsv, .csv, .jsonl "
            "or .parquet file."
        )


class MissingColumn(AlbertError):
    """A row lacks the column of a field."""

    def __init__(self, message: str, field: str):
        super().__init__(message)
        self.field = field


@contextlib.contextmanager
def naming_columns(option: str) -> Iterator[None]:
    """Adds an option to the message about a missing column, as its remedy.

    `option` may have braces, in whose place the name of the field is put. One
    of several columns, such as "negative 2", is named without its number.
    """
    try:
        yield
    except MissingColumn as error:
        raise AlbertError(
            f"{error} Or name another column with "
            f"{option.format(error.field.partition(' ')[0])}."
        ) from None


def _value(row: dict[str, object], name: str, field: Field) -> object:
    if field.column not in row:
        raise MissingColumn(
            f"no column `{field.column}`"
            + (f" for the {name}" if name != field.column else "")
            + ". The columns are "
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
        remedy = ""
        if isinstance(value, list):
            remedy = " Of a batched tf.data.Dataset give data.unbatch()."
        raise AlbertError(f"must be a text. Received: {value!r:.60}.{remedy}")
    if not value.strip():
        raise AlbertError("is empty.")
    return value


def read_label(value: object) -> str:
    """Reads a label; numbers and booleans become text as in JSON.

    A whole number is the same label as an integer and as a float, as which
    frames have integers beside missing values.
    """
    if isinstance(value, float):
        if not is_number(value):
            raise AlbertError(f"is missing. Received: {value!r}.")
        value = int(value) if value.is_integer() else value
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
        raise AlbertError("is empty.")
    return value


def read_number(value: object) -> float:
    """Reads a finite number."""
    try:
        is_flag = isinstance(value, bool)
        if isinstance(value, str) and "_" in value:  # Python reads 1_5 as 15
            raise ValueError
        converted = isinstance(value, str | decimal.Decimal | int)
        number = float(value) if converted and not is_flag else value
    except OverflowError:  # Python may refuse to show such an int
        number, value = None, "an integer of more than 300 digits"
    except ValueError:
        number = None
    if not is_number(number) or abs(number) > LARGEST:
        remedy = ""
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
            # No comma is a decimal point: "1,234" may also be above a thousand.
            remedy = (
                " Write decimals with a point, "
                f"{value.strip().replace(',', '.')}: replace the commas, or "
                "save the table with numbers in the English format."
            )
        elif is_number(number):
            remedy = (
                f" It is beyond {LARGEST:g}: divide all numbers of the column "
                "by a constant."
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
    for position, word in enumerate(words, 1):
        if isinstance(word, str) and not word.strip():
            raise AlbertError(
                f"has an empty word or label, at position {position} of "
                f"{len(words)}. Remove it."
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


def read_text_or_texts(value: object) -> str | list[str]:
    """Reads a text, or a list of one or more texts."""
    if not isinstance(value, list):
        return read_text(value)
    if not value:
        raise AlbertError("is an empty list.")
    return [read_text(text) for text in value]


def label_index(
    labels: Sequence[str],
    names: Sequence[str],
    path: str | Path,
    lines: Sequence[int],
) -> np.ndarray:
    """The index of each label in `names`, int32 [len(labels)].

    `path` and `lines` (see `Table.lines`) are for errors of unknown labels.
    """
    index = {name: number for number, name in enumerate(names)}
    for label, line in zip(labels, lines, strict=True):
        if label in index:
            continue
        try:
            check_labels([label], names)
        except AlbertError as error:
            place = place_of(path, line)
            raise AlbertError(
                f"{place}: the label {error} Correct it."
            ) from None
    return np.array([index[label] for label in labels], "int32")


def check_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Raises AlbertError if a label is not among the names."""
    for label in labels:
        if label not in names:
            known = ", ".join(map(repr, names[:20]))
            raise AlbertError(
                f"is the unknown label {label!r}. Expected one of {known}"
                f"{', ...' if len(names) > 20 else ''}."
            )


def _or_blank(read: Callable[[object], object]) -> Callable:
    """A reader for lines of a .txt file that also accepts blank lines."""

    def read_line(line: str) -> object:
        if line.strip():
            return read(line)
        return [] if read is read_words else ""

    return read_line


_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
