"""Settings: the names of the columns of a table."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The names of the columns of a TSV, CSV, JSONL or Parquet file."""

    text: str = "text"
    """column of the text"""
    pair: str | None = None
    """column of the second text, if the task has pairs"""
    negative: str | None = None
    """column of a text that does not match, to learn embeddings"""
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
