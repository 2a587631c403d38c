"""Reads documents from text, JSONL and Parquet files, or parts of them.

A document consists of lines, each a sentence or paragraph. Documents are read
as a stream, a line at a time: the lines of a document, then "" for its end.

- Text: a blank line (or several in a row, see `read_part`) or the end of the
  file ends a document.
- JSONL (.jsonl or .json, one object per line) and Parquet (.parquet): each row
  is a document, whose text is in a column. Newlines in the text separate lines.

Text and JSONL may be compressed (.gz). AlbertErrors have the file and line.
"""

import contextlib
import dataclasses
import gzip
import importlib
import importlib.metadata
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from keras_albert.errors import AlbertError, optional_import
from keras_albert.storage import raise_disk_error
from keras_albert.text.files import (
    GZIP_SUFFIX,
    decode_line,
    find_files,
    json_object,
    open_parquet,
)
from keras_albert.text.normalization import to_text

JSONL_SUFFIXES = (".jsonl", ".json")
PARQUET_SUFFIX = ".parquet"

# Estimated compression of gzip files: English text shrinks to about a third.
GZIP_RATIO = 3
# In bytes. A longer line is hardly text, and must not fill the memory.
LONGEST_LINE = 2**26
DOCUMENTS_AT_ONCE = 100  # rows of a Parquet file read at a time

Opener = Callable[[str], BinaryIO]


def open_file(path: str) -> BinaryIO:
    """Opens a local file for reading."""
    return open(path, "rb")


@dataclasses.dataclass(frozen=True)
class InputFile:
    """An input file, with its size and date at the time of planning."""

    path: str
    size: int
    """size in bytes"""
    changed: int
    """time of the last change, in nanoseconds since 1970"""

    @classmethod
    def of(cls, path: str | Path) -> "InputFile":
        """The file as it is now; raises AlbertError if it is unreadable."""
        try:
            stat = Path(path).stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        return cls(str(path), stat.st_size, stat.st_mtime_ns)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some documents of a file.

    They begin in the bytes start:end of text and JSONL, or are in the row
    groups start:end of Parquet; of gzip, they are all of the file.
    """

    file: InputFile
    start: int
    end: int
    size: int
    """approximate bytes of text"""


def parts_of(
    file: InputFile, largest: int, column: str, opener: Opener = open_file
) -> list[Part]:
    """Cuts a file into parts of at most `largest` bytes.

    Each document belongs to exactly one part. A gzip file, and a row group of a
    Parquet file, are not cut. Raises AlbertError for bad Parquet.
    """
    if _ends(file.path, PARQUET_SUFFIX):
        with _parquet_file(file.path, column, opener) as parquet:
            return [
                Part(file, group, group + 1, size)
                for group, size in enumerate(_group_sizes(parquet, column))
            ]
    if _ends(file.path, GZIP_SUFFIX):
        return [Part(file, 0, file.size, file.size * GZIP_RATIO)]
    count = -(-file.size // largest)
    edges = [file.size * i // count for i in range(count + 1)] if count else []
    return [
        Part(file, start, end, end - start)
        for start, end in itertools.pairwise(edges)
    ]


def _ends(path: str, suffix: str) -> bool:
    return path.lower().endswith(suffix)


def read_part(
    part: Part, column: str, opener: Opener = open_file, blank_lines: int = 1
) -> Iterator[str]:
    """Yields the lines of the documents of a part, and "" after each document.

    White space around lines is removed, and empty documents are skipped. In a
    text file `blank_lines` in a row end a document, and fewer are passed over.

    Raises AlbertError if the file is damaged, a line is not UTF-8, or a row has
    no text. The message has the file and the line or row.
    """
    path = part.file.path
    if _ends(path, PARQUET_SUFFIX):
        lines = _parquet_lines(part, column, opener)
    elif path.lower().removesuffix(GZIP_SUFFIX).endswith(JSONL_SUFFIXES):
        lines = _jsonl_lines(part, column, opener)
    else:
        lines = _text_lines(part, opener, blank_lines)
    inside = False
    for line in itertools.chain(lines, [""]):
        line = line.strip()
        if line or inside:
            yield line
        inside = bool(line)


def read_files(patterns: Iterable[str | Path], column: str) -> Iterator[str]:
    """Reads all files that match the patterns, in order; see `read_part`."""
    for path in find_files(patterns):
        file = InputFile.of(path)
        for part in parts_of(file, max(file.size, 1), column):
            yield from read_part(part, column)


def split_sentences(lines: Iterable[str], language: str) -> Iterator[str]:
    """Splits lines of paragraphs into lines of one sentence; "" is kept.

    `language` is the result of `splitting_language`.
    """
    segment = _import("sentencex").segment
    for line in lines:
        if not line:
            yield line
        for sentence in segment(language, line):
            if sentence := sentence.strip():
                yield sentence


def sentence_splitter() -> str:
    """Name and version of the library that splits sentences."""
    _import("sentencex")
    return f"sentencex {importlib.metadata.version('sentencex')}"


def splitting_language(code: str) -> str:
    """Converts a language code to that of sentencex: "de-AT" to "de".

    sentencex silently treats unknown codes, and misspelt ones, as English.
    Codes are therefore checked with the registry of language tags.
    """
    _import("sentencex")
    langcodes = _import("langcodes")

    def found(tag: str):
        is_valid = langcodes.tag_is_valid(tag)
        return langcodes.Language.get(tag) if is_valid else None

    language = found(code)
    if language is None or language.language is None:
        territory = found(f"und-{code}")  # "jp", whose main language is "ja"
        meant = None if territory is None else territory.maximize().language
        hint = f"Did you mean `{meant}`?" if meant else "English is `en`."
        raise AlbertError(
            "`split_sentences` must be a language code (ISO 639). Received: "
            f"split_sentences={code!r}. {hint}"
        )
    return language.language


def _import(library: str):
    return optional_import(library, "sentences", "splitting sentences")


def _text_lines(part: Part, opener: Opener, blank_lines: int) -> Iterator[str]:
    lines = _parsed_lines(
        part, opener, lambda line: not line.strip(), str, blank_lines
    )
    blank = 0
    for line in lines:
        blank = 0 if line.strip() else blank + 1
        if blank in (0, blank_lines):
            yield line


def _jsonl_lines(part: Part, column: str, opener: Opener) -> Iterator[str]:
    def parse(line: str) -> list[str]:
        return _row_lines(_value_of(line, column), column)

    for lines in _parsed_lines(part, opener, lambda line: True, parse):
        yield from lines
        yield ""


def _value_of(line: str, column: str):
    if not line.strip():
        return None
    row = json_object(line)
    if column not in row:
        raise AlbertError(_no_column(column, row))
    return row[column]


def _row_lines(text: str | None, column: str) -> list[str]:
    """The lines of a row's text; none for a row without text."""
    if text is None:
        return []
    if not isinstance(text, str):
        raise AlbertError(
            f"expected text in `{column}`. Received: {text!r:.60}. Correct "
            "the row, or name another column with --column."
        )
    text = to_text(text)
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
    in_a_row: int = 1,
) -> Iterator:
    """Parses the lines of a part; adds file and line to an AlbertError."""
    path = part.file.path
    with _reading(path, opener) as file:
        for offset, line in _lines_of(part, file, may_begin, in_a_row):
            try:
                parsed = parse(decode_line(line, is_first=offset == 0))
            except AlbertError as error:
                number = _line_number(path, opener, offset)
                raise AlbertError(f"{path}:{number}: {error}") from None
            yield parsed


def _lines_of(
    part: Part,
    file: BinaryIO,
    may_begin: Callable[[bytes], bool],
    in_a_row: int,
) -> Iterator[tuple[int, bytes]]:
    """Yields the byte offset and the bytes of each line of a part.

    The nominal edges of a part may be in the middle of a line or a document.
    The part really extends from the first line at or after its start at which
    it may begin, to the first such line at or after its end. Two neighbouring
    parts therefore never overlap and leave no line out. A part may begin at a
    line if `may_begin` is true for it and the lines after it, `in_a_row` in
    all. (Lines before it would not do: a part does not read those before its
    start, so that two parts might see different numbers of them.)
    """
    end = float("inf") if _ends(part.file.path, GZIP_SUFFIX) else part.end
    inside = not part.start
    copies = itertools.tee(_lines_from(part, file, end), in_a_row)
    lines, *later = (itertools.islice(c, i, None) for i, c in enumerate(copies))
    for (offset, line), *after in itertools.zip_longest(
        lines, *later, fillvalue=(0, b"")
    ):
        begins = may_begin(line) and all(may_begin(each) for _, each in after)
        # The part ends here; or no line at which it may begin was found.
        if offset >= end and (begins or not inside):
            return
        inside = inside or begins
        if inside:
            yield offset, line


def _lines_from(
    part: Part, file: BinaryIO, end: float
) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin at or after the start of a part."""
    offset = 0
    if part.start:
        file.seek(part.start - 1)
        offset = part.start - 1
        # Skips the rest of the line that the start is in.
        while rest := file.readline(LONGEST_LINE):
            offset += len(rest)
            if rest.endswith(b"\n") or offset >= end:
                break
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise AlbertError(
                f"{part.file.path}: a line of more than {LONGEST_LINE} bytes. "
                "Expected text with a sentence or paragraph a line."
            )
        yield offset, line
        offset += len(line)


@contextlib.contextmanager
def _reading(path: str, opener: Opener) -> Iterator[BinaryIO]:
    """Opens and decompresses a file; converts errors to AlbertError."""
    try:
        with opener(path) as file:
            if _ends(path, GZIP_SUFFIX):
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
    raise_disk_error(error, path)
    return AlbertError(f"{path}: cannot be read ({error.strerror or error}).")


def _line_number(path: str, opener: Opener, offset: int) -> int:
    """The number, from 1, of the line that begins at a byte offset."""
    newlines = 0
    with _reading(path, opener) as file:
        while chunk := file.read(min(offset, 2**20)):
            newlines += chunk.count(b"\n")
            offset -= len(chunk)
    return newlines + 1


@contextlib.contextmanager
def _parquet_file(path: str, column: str, opener: Opener) -> Iterator:
    """Opens a Parquet file and checks that it has the column."""
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
    """The number of bytes of text in each row group."""
    metadata = parquet.metadata
    columns = map(metadata.schema.column, range(metadata.num_columns))
    index = [each.path for each in columns].index(column)
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
            DOCUMENTS_AT_ONCE,
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
