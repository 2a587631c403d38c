"""Text files to documents: one sentence a line, blank line between documents.

The layout of the reference's `create_pretraining_data.py` input. A line may
also be a paragraph; the end of a file ends its document.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_albert.config import AlbertError
from keras_albert.text.files import check_files, read_lines


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
