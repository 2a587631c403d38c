"""Finds, opens and decodes text files, with clear error messages."""

import contextlib
import glob
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_albert.errors import AlbertError, optional_import
from keras_albert.storage import local_path, raise_disk_error

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# How files of zstd, xz and bzip2 begin.
COMPRESSED = (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh91AY&SY")
GZIP_SUFFIX = ".gz"
COMPRESSED_SUFFIXES = {GZIP_SUFFIX, ".bz2", ".xz", ".zip", ".zst"}
PARQUET_BUFFER = 2**20  # bytes read at a time, instead of a whole row group


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """Finds the files that match any of the patterns, without duplicates.

    `*`, `?` and `[...]` match within a name, `**` matches folders of any depth.
    The matches of each pattern are sorted. A path that exists is not a pattern.
    """
    patterns = [patterns] if isinstance(patterns, str | Path) else patterns
    found = {}
    for pattern in patterns:
        for path in _matches(os.path.expanduser(pattern)):
            found.setdefault(Path(path).resolve(), path)
    return check_files(found.values())


def _matches(pattern: str) -> list[str]:
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [pattern]
    matches = sorted(
        path
        for path in glob.glob(pattern, recursive=True)
        if not Path(path).is_dir()
    )
    if not matches:
        raise AlbertError(
            f"{pattern}: no file matches. Check the pattern; * stays within a "
            "folder, ** goes into all below it."
        )
    return matches


def check_files(paths: Iterable[str | Path]) -> list[Path]:
    """Checks that each path is a file that can be opened; returns a list.

    Raises AlbertError without a path, or if one is no file that can be read.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    paths = [local_path(path) for path in paths]
    if not paths:
        raise AlbertError("no text file given. Give one or more.")
    for path in paths:
        if path.is_dir():
            raise AlbertError(
                f"{path}: expected a text file, found a folder. Give the files "
                f"in it, for example {path / '*.txt'}."
            )
        if not path.exists():
            raise AlbertError(f"{path}: no such file.{_if_remote(path)}")
        if not path.is_file():  # its size would be 0, and it is read once only
            raise AlbertError(
                f"{path}: a pipe or a device, expected a file. Write what it "
                "gives into a file, and give that."
            )
        try:
            path.open("rb").close()
        except OSError as error:
            raise_disk_error(error, path)
            raise AlbertError(
                f"{path}: cannot be read ({error.strerror})."
            ) from None
    return paths


def _if_remote(path: Path) -> str:
    """The part of an error that says what to do if a path is an address.

    A Path has a single "/" where the address had "://".
    """
    found = re.fullmatch(r"([a-z][a-z0-9]+):/+(?:datasets/)?(.*)", str(path))
    if not found:
        return ""
    scheme, rest = found.groups()
    if scheme != "hf":
        return (
            f" It is the address {scheme}://{rest}, and only files of this "
            "machine are read: download it, and give the file."
        )
    name = "/".join(rest.split("/")[:2])
    return (
        " Of the Hugging Face Hub only models are read: "
        f"datasets.load_dataset({name!r}, split='train').to_json('rows.jsonl') "
        "writes a table."
    )


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Streams the numbers (from 1) and texts of the lines of a file.

    Line ends and a byte order mark are removed. Errors name file and line.
    """
    for number, line in read_lines_or_faults(path):
        if isinstance(line, AlbertError):
            raise AlbertError(f"{path}:{number}: {line}")
        yield number, line


def read_lines_or_faults(
    path: Path, any_end: bool = False
) -> Iterator[tuple[int, str | AlbertError]]:
    """As `read_lines`, but yields an error for a line that is not UTF-8.

    With `any_end`, "\\r" alone ends a line, too.
    """
    with open(path, "rb") as file:
        lines = file
        if any_end:  # Latin-1 has a character for each byte
            text = io.TextIOWrapper(file, encoding="latin-1")
            lines = (line.encode("latin-1") for line in text)
        for number, line in enumerate(lines, start=1):
            try:
                yield number, decode_line(line, is_first=number == 1)
            except AlbertError as error:
                yield number, error


@contextlib.contextmanager
def open_parquet(path: str | Path, opener: Callable | None = None) -> Iterator:
    """Context manager that opens a pyarrow.parquet.ParquetFile.

    `opener` is a function from the path to an open binary file. Raises
    AlbertError if pyarrow is not installed, or the file is damaged.
    """
    parquet = optional_import("pyarrow.parquet", "parquet", "reading Parquet")
    arrow = optional_import("pyarrow", "parquet", "reading Parquet")
    try:
        with opener(path) if opener else open(path, "rb") as file:
            yield parquet.ParquetFile(file, buffer_size=PARQUET_BUFFER)
    except (OSError, arrow.ArrowException) as error:
        raise_disk_error(error, path)
        raise AlbertError(
            f"{path}: damaged, or not a Parquet file ({error}). Copy it again, "
            "or leave it out."
        ) from None


def decode_line(line: bytes, is_first: bool) -> str:
    """Decodes a line and removes its end.

    The first line of a file may have a byte order mark. Raises AlbertError,
    which does not name the file, if the line is not UTF-8.
    """
    if is_first:
        line = line.removeprefix(BYTE_ORDER_MARK)
        if line.startswith(UTF_16_MARKS):
            raise AlbertError(
                "UTF-16 text. Convert the file with `iconv -f UTF-16 -t UTF-8`."
            )
        if line.startswith(b"\x1f\x8b"):
            raise AlbertError(
                "compressed text. `vocab` and `prepare` read gzip if the name "
                f"ends in {GZIP_SUFFIX}. Elsewhere decompress the file: "
                "`gunzip -c FILE > PLAIN`."
            )
        if line.startswith(COMPRESSED):
            raise AlbertError(
                "compressed text (zstd, xz or bzip2). Decompress the file; "
                f"only `vocab` and `prepare` read gzip, as {GZIP_SUFFIX}."
            )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = _without_end(line.decode("utf-8", "replace"))
        raise UndecodableLine(
            f"not UTF-8 text ({error.reason}, byte {line[error.start]:#04x}). "
            "Convert the file, for example with `iconv -f LATIN1 -t UTF-8`, "
            "or remove the line.",
            text,
        ) from None
    return _without_end(text)


class UndecodableLine(AlbertError):
    """A line is not UTF-8; `text` has U+FFFD in place of the wrong bytes."""

    def __init__(self, message: str, text: str):
        super().__init__(message)
        self.text = text


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def json_object(line: str) -> dict[str, Any]:
    """The JSON object in a line; raises AlbertError if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AlbertError(
            f"not JSON ({error}). Expected one object a line."
        ) from None
    if not isinstance(found, dict):
        raise AlbertError(
            'expected a JSON object such as {"text": "..."}. Received: '
            f"{line.strip():.60}."
        )
    return found
