"""Text files that a user names: found, opened and decoded with clear errors."""

import contextlib
import glob
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keras_albert.errors import AlbertError, optional_import

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
GZIP_SUFFIX = ".gz"
PARQUET_BUFFER = 2**20  # bytes read at a time, instead of a whole row group


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that match any of the patterns, each once, checked.

    `*`, `?` and `[...]` match within a name, `**` folders of any depth; the
    matches of a pattern are sorted. A path that exists is taken as it is.

    Raises:
        AlbertError: no file matches a pattern; see `check_files`.
    """
    patterns = [patterns] if isinstance(patterns, str | Path) else patterns
    found = {}
    for pattern in patterns:
        for path in _matches(str(pattern)):
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
    """The paths, after a check that each is a file that can be opened."""
    paths = [paths] if isinstance(paths, str | Path) else paths
    paths = [Path(path) for path in paths]
    if not paths:
        raise AlbertError("no text file given. Give one or more.")
    for path in paths:
        if path.is_dir():
            raise AlbertError(
                f"{path}: expected a text file, found a folder. Give the files "
                f"in it, for example {path / '*.txt'}."
            )
        if not path.exists():
            raise AlbertError(f"{path}: no such file.")
        try:
            path.open("rb").close()
        except OSError as error:
            raise AlbertError(
                f"{path}: cannot be read ({error.strerror})."
            ) from None
    return paths


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines without their ends; streamed.

    A byte order mark at the start is dropped, "\\r\\n" ends a line like "\\n".

    Raises:
        AlbertError: a line is not UTF-8; the message has file and line.
    """
    for number, line in read_lines_or_faults(path):
        if isinstance(line, AlbertError):
            raise AlbertError(f"{path}:{number}: {line}")
        yield number, line


def read_lines_or_faults(
    path: Path,
) -> Iterator[tuple[int, str | AlbertError]]:
    """As `read_lines`, with an error in place of a line that is not UTF-8."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, decode_line(line, is_first=number == 1)
            except AlbertError as error:
                yield number, error


@contextlib.contextmanager
def open_parquet(path: str | Path, opener: Callable | None = None) -> Iterator:
    """An open pyarrow.parquet.ParquetFile.

    Args:
        path: the file.
        opener: path -> binary file; of this machine when not given.

    Raises:
        AlbertError: pyarrow is missing, or the file is damaged.
    """
    parquet = optional_import("pyarrow.parquet", "parquet", "reading Parquet")
    arrow = optional_import("pyarrow", "parquet", "reading Parquet")
    try:
        with opener(path) if opener else open(path, "rb") as file:
            yield parquet.ParquetFile(file, buffer_size=PARQUET_BUFFER)
    except (OSError, arrow.ArrowException) as error:
        raise AlbertError(
            f"{path}: damaged, or not a Parquet file ({error}). Copy it again, "
            "or leave it out."
        ) from None


def decode_line(line: bytes, is_first: bool) -> str:
    """The text of a line; AlbertError, without the place, if not UTF-8."""
    if is_first:
        line = line.removeprefix(BYTE_ORDER_MARK)
        if line.startswith(UTF_16_MARKS):
            raise AlbertError(
                "UTF-16 text. Convert the file with `iconv -f UTF-16 -t UTF-8`."
            )
        if line.startswith(b"\x1f\x8b"):
            raise AlbertError(
                "compressed text. Expected a gzip file to end in "
                f"{GZIP_SUFFIX}; rename it."
            )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AlbertError(
            f"not UTF-8 text ({error.reason}, byte {line[error.start]:#04x}). "
            "Convert the file, for example with `iconv -f LATIN1 -t UTF-8`, "
            "or remove the line."
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
