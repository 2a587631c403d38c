"""Files to documents: text, JSONL or Parquet, whole or in parts.

A document is a run of lines, each a sentence or paragraph. Here it is a
stream: its lines, then "" where it ends, so that memory holds a line of it
and not the whole.

- Text: a blank line, or the end of the file, ends a document.
- JSONL (.jsonl or .json, an object a line) and Parquet (.parquet): a row is a
  document, a column of it holds the text, newlines in it separate lines.

Text and JSONL may be gzip files (.gz). Bad input is an `AlbertError` with
file and line or row.
"""

import contextlib
import dataclasses
import gzip
import importlib
import importlib.metadata
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from keras_albert.errors import AlbertError, optional_import
from keras_albert.text.files import (
    GZIP_SUFFIX,
    decode_line,
    find_files,
    open_parquet,
)

JSONL_SUFFIXES = (".jsonl", ".json")
PARQUET_SUFFIX = ".parquet"

# English text shrinks to about a third; it only has to be of the right order.
GZIP_RATIO = 3
LONGEST_LINE = 2**26  # bytes; more is no text, and would have to fit in memory
ROWS_AT_ONCE = 100  # of a Parquet file

Opener = Callable[[str], BinaryIO]


def open_file(path: str) -> BinaryIO:
    """Opens a local file for reading."""
    return open(path, "rb")


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file as it was when a plan was made."""

    path: str
    size: int
    """bytes"""
    changed: int
    """nanoseconds since 1970"""

    @classmethod
    def of(cls, path: str | Path) -> "InputFile":
        """The file as it is now; AlbertError if it is gone."""
        try:
            stat = Path(path).stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        return cls(str(path), stat.st_size, stat.st_mtime_ns)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some documents of a file.

    Of plain text and JSONL those that begin in the bytes start:end, of
    Parquet those in the row groups start:end, of gzip files all.
    """

    file: InputFile
    start: int
    end: int
    size: int
    """bytes of text, about"""


def parts_of(
    file: InputFile, largest: int, column: str, opener: Opener = open_file
) -> list[Part]:
    """Cuts a file into parts of at most `largest` bytes where it can be cut.

    All of them together hold every document once. A gzip file and a row group
    of Parquet stay whole.

    Raises:
        AlbertError: a Parquet file is damaged or lacks the column.
    """
    if file.path.endswith(PARQUET_SUFFIX):
        with _parquet_file(file.path, column, opener) as parquet:
            return [
                Part(file, group, group + 1, size)
                for group, size in enumerate(_group_sizes(parquet, column))
            ]
    if file.path.endswith(GZIP_SUFFIX):
        return [Part(file, 0, file.size, file.size * GZIP_RATIO)]
    count = -(-file.size // largest)
    edges = [file.size * i // count for i in range(count + 1)] if count else []
    return [
        Part(file, start, end, end - start)
        for start, end in itertools.pairwise(edges)
    ]


def read_part(
    part: Part, column: str, opener: Opener = open_file
) -> Iterator[str]:
    """The lines of the documents of a part; "" after each document.

    Blanks around a line are stripped; no document is empty.

    Raises:
        AlbertError: the file is damaged, a line is not UTF-8, or a row has no
            text; the message has file and line or row.
    """
    path = part.file.path
    if path.endswith(PARQUET_SUFFIX):
        lines = _parquet_lines(part, column, opener)
    elif _is_jsonl(path):
        lines = _jsonl_lines(part, column, opener)
    else:
        lines = _text_lines(part, opener)
    inside = False
    for line in itertools.chain(lines, [""]):
        line = line.strip()
        if line or inside:
            yield line
        inside = bool(line)


def read_files(patterns: Iterable[str | Path], column: str) -> Iterator[str]:
    """`read_part` of all files that match the patterns, in order."""
    for path in find_files(patterns):
        file = InputFile.of(path)
        for part in parts_of(file, max(file.size, 1), column):
            yield from read_part(part, column)


def split_sentences(lines: Iterable[str], language: str) -> Iterator[str]:
    """Lines of paragraphs to lines of a sentence each; "" stays.

    Args:
        lines: as from `read_part`.
        language: as from `splitting_language`.
    """
    segment = _import("sentencex").segment
    for line in lines:
        if not line:
            yield line
        for sentence in segment(language, line):
            if sentence := sentence.strip():
                yield sentence


def sentence_splitter() -> str:
    """Name and version of the library that splits; AlbertError without it."""
    _import("sentencex")
    return f"sentencex {importlib.metadata.version('sentencex')}"


def splitting_language(code: str) -> str:
    """The language of a code, as sentencex names it: "de" of "de-AT".

    sentencex splits what it does not know as English, mistakes included, and
    does not tell: codes are checked by the registry of language tags.

    Raises:
        AlbertError: it is the code of no language, or a library is missing.
    """
    _import("sentencex")
    language = _language_of(code)
    if language is None:
        meant = _language_of_territory(code)
        hint = f"Did you mean `{meant}`?" if meant else "English is `en`."
        raise AlbertError(
            "`split_sentences` must be a language code (ISO 639). Received: "
            f"split_sentences={code!r}. {hint}"
        )
    return language


def _language_of(code: str) -> str | None:
    langcodes = _import("langcodes")
    if not langcodes.tag_is_valid(code):
        return None
    return langcodes.Language.get(code).language


def _language_of_territory(code: str) -> str | None:
    """The language that most people write there: "ja" of "jp"."""
    langcodes = _import("langcodes")
    tag = f"und-{code}"
    if not langcodes.tag_is_valid(tag):
        return None
    return langcodes.Language.get(tag).maximize().language


def _import(library: str):
    return optional_import(library, "sentences", "splitting sentences")


def _is_jsonl(path: str) -> bool:
    return path.lower().removesuffix(GZIP_SUFFIX).endswith(JSONL_SUFFIXES)


def _text_lines(part: Part, opener: Opener) -> Iterator[str]:
    return _parsed_lines(part, opener, lambda line: not line.strip(), str)


def _jsonl_lines(part: Part, column: str, opener: Opener) -> Iterator[str]:
    def parse(line: str) -> list[str]:
        return _row_lines(_value_of(line, column), column)

    for lines in _parsed_lines(part, opener, lambda line: True, parse):
        yield from lines
        yield ""


def _value_of(line: str, column: str):
    """What an object of a JSONL file has in the column."""
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AlbertError(
            f"not a JSON object ({error}). Expected one a line, as in "
            f'{{"{column}": "..."}}.'
        ) from None
    if not isinstance(row, dict):
        raise AlbertError(
            f"expected a JSON object. Received: a {type(row).__name__}. Write "
            f'one a line, as in {{"{column}": "..."}}.'
        )
    if column not in row:
        raise AlbertError(_no_column(column, row))
    return row[column]


def _row_lines(text: str | None, column: str) -> list[str]:
    """The lines of a row's text; a row without text is an empty document."""
    if text is None:
        return []
    if not isinstance(text, str):
        raise AlbertError(
            f"expected text in `{column}`. Received: {text!r:.60}. Correct "
            "the row, or name another column with --column."
        )
    return [line for line in text.split("\n") if line.strip()]


def _no_column(column: str, columns: Iterable[str]) -> str:
    return (
        f"no column `{column}`. Received: {', '.join(columns)}. Name the one "
        "that holds the text: --column NAME."
    )


def _parsed_lines(
    part: Part,
    opener: Opener,
    may_begin: Callable[[bytes], bool],
    parse: Callable[[str], object],
) -> Iterator:
    """`parse` of the lines of a part; its AlbertError gets the place."""
    path = part.file.path
    with _reading(path, opener) as file:
        for offset, line in _lines_of(part, file, may_begin):
            try:
                parsed = parse(decode_line(line, is_first=offset == 0))
            except AlbertError as error:
                number = _line_number(path, opener, offset)
                raise AlbertError(f"{path}:{number}: {error}") from None
            yield parsed


def _lines_of(
    part: Part, file: BinaryIO, may_begin: Callable[[bytes], bool]
) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of the lines of a part of the file.

    The part reaches from the first line at or after its start that `may_begin`
    a part to the first such line at or after its end. So the parts start:middle
    and middle:end are together start:end, whatever the middle.
    """
    packed = part.file.path.endswith(GZIP_SUFFIX)
    end = float("inf") if packed else part.end
    offset = 0
    if part.start:
        file.seek(part.start - 1)
        offset = part.start - 1
        # The rest of a line, however long.
        while rest := file.readline(LONGEST_LINE):
            offset += len(rest)
            if rest.endswith(b"\n") or offset >= end:
                break
    inside = not part.start
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise AlbertError(
                f"{part.file.path}: a line of more than {LONGEST_LINE} bytes. "
                "Expected text with a sentence or paragraph a line."
            )
        begins = may_begin(line)
        # Before the first one begins there is nothing of this part.
        if offset >= end and (begins or not inside):
            return
        inside = inside or begins
        if inside:
            yield offset, line
        offset += len(line)


@contextlib.contextmanager
def _reading(path: str, opener: Opener) -> Iterator[BinaryIO]:
    """The file, decompressed; what goes wrong is an AlbertError."""
    try:
        with opener(path) as file:
            if path.endswith(GZIP_SUFFIX):
                with gzip.GzipFile(path, "rb", fileobj=file) as text:
                    yield text
            else:
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise AlbertError(
            f"{path}: a damaged gzip file ({error}). Copy it again, or leave "
            "it out."
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: OSError) -> AlbertError:
    return AlbertError(f"{path}: cannot be read ({error.strerror or error}).")


def _line_number(path: str, opener: Opener, offset: int) -> int:
    """The number, from 1, of the line that begins at a byte of the text."""
    newlines = 0
    with _reading(path, opener) as file:
        while chunk := file.read(min(offset, 2**20)):
            newlines += chunk.count(b"\n")
            offset -= len(chunk)
    return newlines + 1


@contextlib.contextmanager
def _parquet_file(path: str, column: str, opener: Opener) -> Iterator:
    """The open Parquet file, after a check of the column."""
    with open_parquet(path, opener) as parquet:
        schema = parquet.schema_arrow
        if column not in schema.names:
            raise AlbertError(f"{path}: {_no_column(column, schema.names)}")
        kind = str(schema.field(column).type)
        if kind not in ("string", "large_string"):
            raise AlbertError(
                f"{path}: expected text in `{column}`. Received: a column of "
                f"type {kind}. Name another with --column."
            )
        yield parquet


def _group_sizes(parquet, column: str) -> list[int]:
    """Bytes of text in each row group."""
    metadata = parquet.metadata
    names = [
        metadata.schema.column(i).path for i in range(metadata.num_columns)
    ]
    index = names.index(column)
    return [
        metadata.row_group(group).column(index).total_uncompressed_size
        for group in range(metadata.num_row_groups)
    ]


def _parquet_lines(part: Part, column: str, opener: Opener) -> Iterator[str]:
    path = part.file.path
    with _parquet_file(path, column, opener) as parquet:
        row = sum(
            parquet.metadata.row_group(group).num_rows
            for group in range(part.start)
        )
        for batch in parquet.iter_batches(
            ROWS_AT_ONCE,
            row_groups=list(range(part.start, part.end)),
            columns=[column],
            use_threads=False,
        ):
            for value in batch.column(0):
                row += 1
                try:
                    text = value.as_py()
                except UnicodeDecodeError as error:
                    raise AlbertError(
                        f"{path}: row {row}: not UTF-8 text ({error.reason})."
                    ) from None
                yield from _row_lines(text, column)
                yield ""
