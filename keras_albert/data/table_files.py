"""Reads the rows of TSV, CSV, JSONL, Parquet and text files.

The readers yield an AlbertError instead of a row that cannot be read.
"""

import collections
import csv
import itertools
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from keras_albert.data.frames import check_named_once
from keras_albert.errors import AlbertError, reason_of
from keras_albert.text.files import (
    UndecodableLine,
    json_object,
    open_parquet,
    read_lines_or_faults,
)

TABLE_ROWS_AT_ONCE = 1_000  # rows of a Parquet file read at a time
FIRST_BYTES = 2**16  # which show how the lines of a file end

_CHECK_HEADER = "check that the first line of the file names the columns."
_TABS = f"Remove tabs inside a text, and {_CHECK_HEADER}"
_QUOTE = "Put a text with {} in double quotes, and " + _CHECK_HEADER
# Possible delimiters of a .csv file, the usual one first. Where the comma is
# the decimal separator, as in much of Europe, spreadsheets write semicolons.
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}

# The first line of a file of Excel may only say what the delimiter is.
_DECLARATION = re.compile(r'"?sep=(.)"?', re.IGNORECASE)

# The number of a line of the file, and its text.
Line = tuple[int, str | AlbertError]
# The line of the file on which a row ends, and its fields.
Record = tuple[int, list[str] | AlbertError]
# The same line, and the fields by the names of their columns.
NumberedRow = tuple[int, dict[str, object] | AlbertError]


def _read_tsv(path: Path, columns: Collection[str]) -> Iterator[NumberedRow]:
    return _with_header(path, tab_records(_lines(path)), _TABS)


def tab_records(lines: Iterable[Line]) -> Iterator[Record]:
    """Yields the numbers and fields of tab-separated lines.

    Blank lines are skipped, and quotes have no special meaning.
    """
    for number, line in lines:
        if isinstance(line, AlbertError):
            yield number, line
        elif line.strip(" "):  # a line of tabs is a row of empty fields
            yield number, line.split("\t")


def _lines(path: Path) -> Iterator[Line]:
    """The lines of a table, whichever way they end.

    A file whose first line ends in "\\r" alone, such as "CSV (Macintosh)" of
    Excel, has no other ends, except within quotes.
    """
    with open(path, "rb") as file:
        unquoted = re.sub(rb'"[^"]*"', b"", file.read(FIRST_BYTES))
    end = re.search(rb"\n|\r\n|\r(?=.)", unquoted)
    return read_lines_or_faults(path, any_end=bool(end) and end[0] == b"\r")


def _read_csv(path: Path, columns: Collection[str]) -> Iterator[NumberedRow]:
    csv.field_size_limit(sys.maxsize)  # texts may be long
    lines = itertools.dropwhile(_is_blank, _lines(path))
    first = next(lines, (0, ""))
    if found := _DECLARATION.fullmatch(str(first[1])):
        delimiter = found[1]
        lines = itertools.dropwhile(_is_blank, lines)
    else:
        delimiter = _delimiter_of(first[1], columns)
        lines = itertools.chain([first], lines)
    remedy = _QUOTE.format(_DELIMITERS.get(delimiter, repr(delimiter)))
    return _with_header(path, _csv_records(lines, delimiter), remedy)


def _is_blank(numbered: Line) -> bool:
    """Whether a line before the header has no text in any column."""
    _, line = numbered
    return isinstance(line, str) and not line.strip(" ,;\t")


def _delimiter_of(line: str | AlbertError, columns: Collection[str]) -> str:
    """The delimiter of a .csv file, by its first line.

    It is the one with which the header has most of the wanted columns. If
    several are equal, it is the one that gives most columns, which a message
    can then list; or else the comma.
    """
    if isinstance(line, AlbertError):
        return ","

    def rank(delimiter: str) -> tuple[int, int]:
        try:
            header = next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:  # which reading the records will report
            return 0, 0
        names = [name.strip() for name in header]
        return len(set(columns).intersection(names)), len(names)

    return max(_DELIMITERS, key=rank)


def _csv_records(fresh: Iterator[Line], delimiter: str) -> Iterator[Record]:
    """Yields the fields of each record, and the number of its last line.

    A stray quote opens a quoted text that swallows the next rows. Such a record
    is recognized by its number of fields. It is reported as an error at its
    first line, and the lines after that are read again as records of their own.
    """
    again = collections.deque()  # lines that are read a second time
    taken = []  # numbers and lines of the record that is being read

    def lines():
        while numbered := again.popleft() if again else next(fresh, None):
            taken.append(numbered)
            _, line = numbered
            # The error of a line that is not UTF-8 replaces its record below,
            # which its quotes and delimiters bound.
            if isinstance(line, UndecodableLine):
                line = line.text
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
            error = AlbertError(
                f"malformed CSV ({reason}). Check the quotes of the row that "
                "begins here; a quote within a text is doubled."
            )
            yield first, error
            continue
        last, _ = taken[-1]
        for _, line in taken:
            if isinstance(line, AlbertError):
                record = line
        if any(isinstance(x, AlbertError) or x.strip(" ") for _, x in taken):
            yield last, record


def _with_header(
    path: Path, records: Iterable[Record], remedy: str
) -> Iterator[NumberedRow]:
    records = iter(records)
    number, header = next(records, (0, []))
    if isinstance(header, AlbertError):
        raise AlbertError(f"{path}:{number}: {header}")
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
    records: Iterable[Record], header: Sequence[str], remedy: str
) -> Iterator[NumberedRow]:
    """Converts records to rows, which are dicts by the names of the header."""
    for number, record in records:
        if isinstance(record, AlbertError):
            yield number, record
        elif len(record) == len(header):
            yield number, dict(zip(header, record, strict=True))
        else:
            error = AlbertError(
                f"expected {len(header)} fields ({', '.join(header)}). "
                f"Received: {len(record)}. {remedy}".rstrip()
            )
            yield number, error


def _read_jsonl(path: Path, columns: Collection[str]) -> Iterator[NumberedRow]:
    for number, line in read_lines_or_faults(path):
        if isinstance(line, AlbertError):
            yield number, line
        elif line.strip():
            try:
                yield number, json_object(line)
            except AlbertError as error:
                yield number, error


def _read_parquet(
    path: Path, columns: Collection[str]
) -> Iterator[NumberedRow]:
    with open_parquet(path) as file:
        check_named_once(file.schema_arrow.names, f"{path}: the file")
        number = 0
        for batch in file.iter_batches(TABLE_ROWS_AT_ONCE):
            for row in _parquet_rows(batch):
                number += 1
                yield number, row


def _parquet_rows(batch) -> Iterator[dict[str, object] | AlbertError]:
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        # A text is not UTF-8, or Python has no such date. It was raised before
        # the first row: convert the rows one by one.
        for i in range(batch.num_rows):
            try:
                yield from batch.slice(i, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield AlbertError(f"not UTF-8 ({error}). Convert the file.")
            except (ValueError, OverflowError) as error:
                yield AlbertError(
                    f"a value cannot be converted ({reason_of(error)}). "
                    "Correct it, or leave its column out."
                )


def _read_txt(path: Path, columns: Collection[str]) -> Iterator[NumberedRow]:
    (column,) = columns
    # Blank lines are held back, to skip them at the end of the file.
    blanks = []
    for number, line in read_lines_or_faults(path):
        is_bad = isinstance(line, AlbertError)
        if not is_bad and not line.strip():
            blanks.append((number, {column: ""}))
            continue
        yield from blanks
        blanks.clear()
        yield number, line if is_bad else {column: line}


READERS = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".txt": _read_txt,
}
