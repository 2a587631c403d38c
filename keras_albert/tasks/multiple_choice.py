"""The right one of several choices, with or without a question.

Letters: C choices.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import special

from keras_albert.data.bad_rows import place_of
from keras_albert.data.batches import Features
from keras_albert.data.tables import (
    Field,
    Table,
    read_choice,
    read_choices,
    read_parts,
    read_text,
)
from keras_albert.errors import AlbertError, errors_about
from keras_albert.modeling.classification import AlbertForMultipleChoice
from keras_albert.tasks import bag_of_words, classes
from keras_albert.tasks.labels import LABEL
from keras_albert.tasks.metrics import Scores, measure
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import LearnedTask
from keras_albert.text.model_inputs import choice_rows
from keras_albert.text.normalization import to_text
from keras_albert.text.tokenizer import check_batch

CHOICE = "one of several choices"  # what the head predicts
QUESTION = "question"  # the field, and the column if none is named
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of choices


class _ChoiceServing(Serving):
    """The signature of an exported model that picks one of several choices.

    It returns `choice` int32 [B], the index, and `probabilities` float32
    [B, C].
    """

    def signatures(self, graph):
        from keras_albert.tasks.multiple_choice_graph import serve_choices

        serve = serve_choices(graph, QUESTION in graph.inputs)
        return {"serving_default": serve}

    def answer(self, outputs, given):
        return outputs["choice"], max(outputs["probabilities"])


class MultipleChoice(LearnedTask):
    """The right one of the choices of each example.

    There is a question if its column is named, or with `has_question`.
    """

    heads = {CHOICE: AlbertForMultipleChoice}
    serving = _ChoiceServing()
    best = "accuracy"

    def __init__(self, name: str, has_question: bool = False):
        super().__init__(name)
        self.has_question = has_question

    def inputs(self, columns):
        fields = {
            "text": Field(columns.text, read_text),
            "choices": Field(columns.choices, read_choices),
        }
        question = columns.question or (QUESTION if self.has_question else None)
        if question:
            fields[QUESTION] = Field(question, read_text)
        return fields

    def reads_pairs(self, columns):
        return True

    def label_reader(self, names):
        return read_choice

    def parts(
        self,
        path: str | Path,
        fields: Mapping[str, Field],
        skip_bad: bool = False,
        rows_per_part: int | None = None,
    ) -> Iterator[Table]:
        """Reads a file as `read_parts` does, and compares the choices of rows.

        Raises AlbertError for a row with another number of choices than the
        first one has.
        """
        count = None

        def complete(row: dict, values: dict) -> dict:
            nonlocal count
            if LABEL in values:
                index = choice_index(values[LABEL], values["choices"])
                values = values | {LABEL: index}
            count = count or len(values["choices"])
            _check_number(values["choices"], count)
            return values

        return read_parts(path, fields, skip_bad, rows_per_part, complete)

    def checked_input(self, name, values):
        if name == "choices":
            for choices in values:
                check_batch(f"each of {name}", choices)
            return [[*map(to_text, choices)] for choices in values]
        return [*map(to_text, values)]  # a context, or a question

    def features(self, tokenizer, table, names, length):
        values = table.values
        texts, choices = values["text"], values["choices"]
        count = len(choices[0])
        for line, each in zip(table.lines, choices, strict=True):
            with errors_about(place_of(table.path, line)):
                _check_number(each, count)
        questions = values.get(QUESTION, [""] * len(table))
        rows = choice_rows(tokenizer, texts, questions, choices, length)
        target = np.array(values[LABEL], "int32") if LABEL in values else None
        return Features(rows, target, choices=count)

    def linear_outputs(self, train, held_out, names):
        rows = zip(train.values["choices"], train.values[LABEL], strict=True)
        target = [
            int(number == right)
            for choices, right in rows
            for number in range(len(choices))
        ]
        outputs = bag_of_words.linear_outputs(
            lambda x, y: bag_of_words.fit_classes(x, y, 2),
            _pairs(train),
            np.array(target),
            _pairs(held_out),
        )
        if outputs is None:
            return None
        return outputs[:, 1].reshape(len(held_out), -1)

    def head(self, backbone, names, options):
        return AlbertForMultipleChoice(backbone, dropout=options.dropout)

    def loss(self, names):
        return classes.class_loss()

    def scores(self, outputs, features, names):
        predicted = np.stack(outputs).argmax(-1)
        found = measure(["accuracy"], features.target, predicted)
        letters = [*LETTERS, *map(str, range(len(LETTERS), features.choices))]
        return Scores(
            found.values,
            classes.collapse(features.target, predicted, letters, "question"),
        )

    def wrongness(self, outputs, features):
        logits = np.stack(outputs)
        return classes.probabilities_of_wrong(
            logits, features.target, logits.argmax(-1)
        )

    def baseline(self, features):
        return classes.share_of_most_frequent(features.target)

    def decode(self, outputs, features, names):
        return [
            {
                "prediction": int(row.argmax()),
                "score": round(float(row.max()), 6),
            }
            for row in special.softmax(np.stack(outputs), axis=-1)
        ]


def _pairs(table: Table) -> tuple[list[str], list[str]]:
    """Two lists of equal length: contexts with their question, and choices.

    A context is repeated for each of its choices.
    """
    texts, choices = table.values["text"], table.values["choices"]
    questions = table.values.get(QUESTION, [""] * len(table))
    contexts, flat = [], []
    for text, question, each in zip(texts, questions, choices, strict=True):
        contexts += [f"{text} {question}"] * len(each)
        flat += each
    return contexts, flat


def _check_number(choices: Sequence[str], count: int) -> None:
    if len(choices) != count:
        raise AlbertError(
            f"{len(choices)} choices, where the first row has {count}. Each "
            "row needs as many."
        )


def choice_index(label: str | int, choices: Sequence[str]) -> int:
    """The index of the choice that a label names.

    A label is a letter from A, a number from 0, or the text of the choice.
    Raises AlbertError if it names none, or more than one: of the choices "3",
    "0" and "7", the label "0" could be the first, by number, or the second, by
    text.
    """
    readings = set()
    if isinstance(label, str):
        letters = LETTERS[: len(choices)]
        readings = {i for i, letter in enumerate(letters) if letter == label}
        readings |= {i for i, x in enumerate(choices) if x.strip() == label}
    readings |= {i for i in range(len(choices)) if str(i) == str(label)}
    if not readings:
        raise AlbertError(
            "expected the right choice as a letter (A to "
            f"{LETTERS[: len(choices)][-1]}), a number from 0 to "
            f"{len(choices) - 1}, or its text. Received: {label!r:.60}."
        )
    if len(readings) > 1:
        several = " or ".join(map(str, sorted(readings)))
        raise AlbertError(
            f"the right choice {label!r:.60} may be number {several}, counted "
            "from 0. Give the number, in JSONL or Parquet as such, or a letter."
        )
    return readings.pop()
