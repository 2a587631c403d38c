"""What happens to rows that cannot be read, in every format of examples."""

from keras_albert.errors import AlbertError

SKIP_REMEDY = "Correct it, or leave such rows out with --skip-bad."


class BadRows:
    """Collects the errors of bad rows, or raises the first one.

    Args:
        skip: whether bad rows are left out.
        remedy: the sentence that ends the message of a raised error.
    """

    def __init__(self, skip: bool, remedy: str = SKIP_REMEDY):
        self.skip = skip
        self.remedy = remedy
        self.messages: list[str] = []
        """messages on the rows that were left out, with file and place"""

    def add(self, place: str, error: AlbertError) -> None:
        """Records a bad row, or raises its error, with place and remedy.

        Args:
            place: the file and the place in it, such as "train.tsv:3".
            error: what is wrong with the row.
        """
        if self.skip:
            self.messages.append(f"{place}: {error}")
            return
        # The error keeps its class and attributes.
        error.args = (f"{place}: {error} {self.remedy}".rstrip(),)
        raise error from None
