"""Names of the columns of a table."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Which columns of a TSV, CSV, JSONL or Parquet file hold what."""

    text: str = "text"
    """column of the text"""
    pair: str | None = None
    """column of the second text of a pair, where there is one"""
    label: str = "label"
    """column of the label; of several labels, of a label for each word, of a
    number, or of the right choice"""
    question: str | None = None
    """column of the question about a text: where there are choices, or
    answers (question when not given)"""
    choices: str = "choices"
    """column of the choices"""
    context: str = "context"
    """column of the text that answers a question"""
    answers: str = "answers"
    """column of the answers to a question: a list of {text, answer_start}, or
    of texts that the context has once; empty where it has no answer"""
