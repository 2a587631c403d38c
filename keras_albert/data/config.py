"""Settings: the names of the columns of a table."""

import dataclasses

from keras_albert.errors import AlbertError


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The names of the columns of a TSV, CSV, JSONL or Parquet file."""

    text: str = "text"
    """column of the text"""
    pair: str | None = None
    """column of the second text, if the task has pairs"""
    negative: tuple[str, ...] = ()
    """columns of texts that do not match, to learn embeddings: a text in each
    row, or a list of texts, as many in every row"""
    label: str = "label"
    """column of the label: one label, several labels, a label for each word, a
    number, or the right choice"""
    question: str | None = None
    """column of the question, for multiple choice (optional) and question
    answering (question if not given)"""
    choices: str = "choices"
    """column of the choices"""
    context: str = "context"
    """column of the text that answers a question"""
    answers: str = "answers"
    """column of the answers to a question: a list of {text, answer_start}, or a
    list of texts that occur once in the context; empty for no answer"""

    def __post_init__(self):
        # JSON gives a list; folders of older versions hold one name or null.
        names = self.negative or ()
        names = (names,) if isinstance(names, str) else tuple(names)
        object.__setattr__(self, "negative", names)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            each = value if field.name == "negative" else (value,)
            is_absent = value is field.default is None
            if not is_absent and not all(isinstance(x, str) for x in each):
                raise AlbertError(
                    f"`columns.{field.name}` must be the name of a column. "
                    f"Received: {value!r:.60}."
                )


@dataclasses.dataclass(frozen=True)
class OtherColumns(TableColumns):
    """The names of the columns of a TSV, CSV, JSONL or Parquet file.

    A column that is not given has the name that it had in training.
    """

    text: str | None = None
    label: str | None = None
    choices: str | None = None
    context: str | None = None
    answers: str | None = None

    def instead_of(self, trained: TableColumns) -> TableColumns:
        """The columns in training, with the names that are given here."""
        given = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value not in (None, ())
        }
        return dataclasses.replace(trained, **given)
