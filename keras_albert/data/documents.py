"""Text files to documents: one sentence a line, blank line between documents.

The layout of the reference's `create_pretraining_data.py` input. A line may
also be a paragraph; the end of a file ends its document.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_albert.config import AlbertError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_documents(paths: Iterable[str | Path]) -> Iterator[list[str]]:
    r"""Documents of the files, in order, each a list of non-empty lines.

    "a\nb\n\n\nc" gives ["a", "b"] and ["c"]. Files are streamed: memory holds
    one document at a time. Blanks around a line are stripped.

    Raises:
        AlbertError: at the call, no file given, a missing file or a folder;
            while reading, a line that is not UTF-8, or no document in all the
            files together.
    """
    return _documents(check_files(paths))


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
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise AlbertError(
                    f"{path}:{number}: not UTF-8 text ({error.reason}, byte "
                    f"{line[error.start]:#04x}). Convert the file, for example "
                    "with `iconv -f LATIN1 -t UTF-8`, or remove the line."
                ) from None
            yield number, text.removesuffix("\n").removesuffix("\r")


def _documents(paths: list[Path]) -> Iterator[list[str]]:
    found = False
    for path in paths:
        document = []
        for _, line in read_lines(path):
            line = line.strip()
            if line:
                document.append(line)
            elif document:
                found = True
                yield document
                document = []
        if document:
            found = True
            yield document
    if not found:
        names = ", ".join(str(path) for path in paths[:3])
        raise AlbertError(
            f"{names}{', ...' if len(paths) > 3 else ''}: no text, only blank "
            "lines. Expected one sentence or paragraph a line."
        )
