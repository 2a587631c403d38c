"""What happens to rows that cannot be read, in every format of examples."""

from collections.abc import Sequence
from pathlib import Path

from keras_albert.errors import AlbertError

SKIP_REMEDY = "Correct it, or leave such rows out with --skip-bad."
# In place of a file, for rows that were given as Python objects.
IN_MEMORY = Path("the table")


def place_of(path: str | Path, line: int) -> str:
    """Names a row in messages: by file and line, or by its index in memory."""
    return f"row {line - 1}" if path == IN_MEMORY else f"{path}:{line}"


class BadRows:
    """Collects the errors of bad rows (`skip`), or raises the first one.

    `remedy` is the sentence that ends the message of a raised error.
    """

    def __init__(self, skip: bool, remedy: str = SKIP_REMEDY):
        self.skip = skip
        self.remedy = remedy
        # messages on the rows that were left out, with file and place
        self.messages: list[str] = []

    def add(self, place: str, error: AlbertError) -> None:
        """Records the error of a row, or raises it with place and remedy.

        The `place` is the file and the place in it, such as "train.tsv:3".
        """
        if self.skip:
            self.messages.append(f"{place}: {error}")
            return
        # The error keeps its class and attributes.
        error.args = (f"{place}: {error} {self.remedy}".rstrip(),)
        raise error from None


def check_published(
    place: str | Path,
    count: int,
    sizes: Sequence[int],
    rows: str,
    broken: int = 0,
) -> None:
    """Raises AlbertError unless a file has a published number of rows.

    `count` is the number of good and bad rows, `sizes` has the numbers of all
    editions, `rows` names the rows, and `broken` lines may be parts of rows.
    """
    if not any(count <= size <= count + broken for size in sizes):
        published = " or ".join(f"{size:,}" for size in sizes)
        raise AlbertError(
            f"{place}: expected {published} {rows}, as published. Received: "
            f"{count:,}. Get the files again, or read a part of them or "
            "another edition with --any-size."
        )
