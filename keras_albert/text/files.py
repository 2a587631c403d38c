"""Text files that a user names, read line by line with clear errors."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_albert.config import AlbertError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


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
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
                if line.startswith(UTF_16_MARKS):
                    raise AlbertError(
                        f"{path}: UTF-16 text. Convert the file with `iconv -f "
                        "UTF-16 -t UTF-8`."
                    )
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise AlbertError(
                    f"{path}:{number}: not UTF-8 text ({error.reason}, byte "
                    f"{line[error.start]:#04x}). Convert the file, for example "
                    "with `iconv -f LATIN1 -t UTF-8`, or remove the line."
                ) from None
            yield number, text.removesuffix("\n").removesuffix("\r")
