"""What a model is fine-tuned for: a row a task.

A task says which columns it reads, what of them the model learns, the head and
the loss, what the outputs mean to a user, and how good they are.

Letters: N examples, C labels or choices, S tokens a row, T tokens of a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from scipy import special

from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import (
    Field,
    Table,
    check_labels,
    label_index,
    read_choice,
    read_choices,
    read_label,
    read_labels,
    read_number,
    read_parts,
    read_text,
    read_words,
)
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.tasks.metrics import (
    Scores,
    collapsed,
    entity_f1,
    is_constant,
    measure,
    multilabel_scores,
)
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.question_answering.squad import (
    read_answers,
    read_question_parts,
)
from keras_albert.tasks.question_answering.task import (
    ANSWERS,
    decode_questions,
    names_of_questions,
    question_features,
    question_fields,
    question_head,
    question_loss,
    question_scores,
    refuse_all,
)
from keras_albert.text.model_inputs import choice_rows, text_rows, word_rows
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.losses import WeightedMean

LABEL = "label"  # the field of what is to be learned
PAIR = "pair"  # the field of second texts, and their column if none is named
MANY_LABELS = 20  # fewer are believed in a table of any size
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of choices

Outputs = list
"""logits of each example, in order: [C], or [T, C] of tokens; or a dict of
several outputs"""


@dataclasses.dataclass(frozen=True)
class Task:
    """A row of TASKS."""

    inputs: Callable[[TableColumns], dict[str, Field]]
    """the fields that a prediction needs, too"""
    label: Callable[[object], object]
    """reads the column of the label"""
    names: Callable[[Table], tuple[str, ...] | None]
    """the labels of a table, in the order of the logits; None: no names"""
    features: Callable[..., Features]
    """tokenizer, table, names, and the longest row, or how contexts are read
    -> examples with their target, where the table has labels"""
    head: Callable[..., keras.Model]
    """backbone, names, dropout -> model"""
    loss: Callable[
        [tuple[str, ...] | None],
        keras.losses.Loss | dict[str, keras.losses.Loss],
    ]
    """names -> the loss, or that of each output, half of whose sum counts"""
    decode: Callable[
        [Outputs, Features, tuple[str, ...] | None], list[dict[str, object]]
    ]
    """the columns that a prediction adds, of each example"""
    scores: Callable[[Outputs, Features, tuple[str, ...] | None], Scores]
    """how good the outputs are"""
    best: str
    """the score that tells which of several models is best"""
    guess: Callable[[Features], float | None]
    """that score of the best constant answer; None: it has none"""
    has_classes: bool = False
    """whether an example has one of the names: classes are then reported"""
    adds: frozenset[str] = frozenset({"prediction", "score"})
    """the names of what `decode` gives"""
    constant: str = "the most frequent label"
    """the best constant answer, in words"""
    target: str = LABEL
    """the field of what is to be learned; TableColumns has its column"""
    parts: Callable[..., Iterator[Table]] = read_parts
    """reads a file, with the arguments of `read_parts`"""

    def fields(
        self,
        columns: TableColumns,
        labelled: bool,
        names: tuple[str, ...] | None = None,
    ) -> dict[str, Field]:
        """What is read of a file.

        Args:
            columns: where it stands.
            labelled: whether the target is read, too.
            names: what the labels may be; None: anything.
        """
        if not labelled:
            return self.inputs(columns)
        read = self.label
        if names and self.target == LABEL:
            read = _known(read, names)
        column = getattr(columns, self.target)
        return self.inputs(columns) | {self.target: Field(column, read)}

    def read(
        self,
        path: str | Path,
        columns: TableColumns,
        labelled: bool,
        skip_bad: bool = False,
        names: tuple[str, ...] | None = None,
    ) -> Table:
        """A whole file; see `fields`."""
        fields = self.fields(columns, labelled, names)
        (table,) = self.parts(path, fields, skip_bad)
        return table

    def examples(
        self,
        tokenizer: Tokenizer,
        table: Table,
        names: tuple[str, ...] | None,
        length: int,
        reading: ReadingConfig | None = None,
    ) -> Features:
        """The features of a table, each in the group of its row.

        Args:
            tokenizer: of the model.
            table: the examples.
            names: labels in the order of the logits.
            length: of the longest row, in tokens.
            reading: how contexts are read, in windows of that length, where
                the task has any.
        """
        found = self.features(tokenizer, table, names, reading or length)
        return dataclasses.replace(found, groups=table.groups)

    def held_out_loss(
        self,
        outputs: Outputs,
        features: Features,
        names: tuple[str, ...] | None,
    ) -> dict[str, float]:
        """{"loss": of all examples}; nothing where the outputs are answers."""
        if self.target == ANSWERS:
            return {}
        logits, target = flat(outputs, features)
        loss = self.loss(names)(target, logits)
        return {"loss": float(keras.ops.convert_to_numpy(loss))}

    def measure(
        self,
        outputs: Outputs,
        features: Features,
        names: tuple[str, ...] | None,
    ) -> Scores:
        """Scores of all examples, then the `best` one of each group's own."""
        found = self.scores(outputs, features, names)
        groups = np.array(features.groups or [])
        values = dict(found.values)
        for group in dict.fromkeys(features.groups or []):
            chosen = np.flatnonzero(groups == group)
            part = self.scores(
                [outputs[i] for i in chosen], features.take(chosen), names
            )
            values[f"{group}_{self.best}"] = part.values[self.best]
        return dataclasses.replace(found, values=values)


def _known(read: Callable, names: tuple[str, ...]) -> Callable:
    def read_known(value: object) -> object:
        found = read(value)
        check_labels([found] if isinstance(found, str) else found, names)
        return found

    return read_known


def flat(outputs: Outputs, features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Logits and target of all examples, or of all words that are labelled."""
    if features.token_target is None:
        return np.stack(outputs), features.target
    return tuple(map(np.concatenate, _labelled(outputs, features)))


# One label, a number, or several labels for a text or a pair.


def _text_fields(columns: TableColumns) -> dict[str, Field]:
    fields = {"text": Field(columns.text, read_text)}
    if columns.pair:
        fields[PAIR] = Field(columns.pair, read_text)
    return fields


def _text_features(target: Callable) -> Callable:
    def features(tokenizer, table, names, length) -> Features:
        values = table.values
        rows = text_rows(tokenizer, values["text"], values.get(PAIR), length)
        return Features(rows, target(table, names) if LABEL in values else None)

    return features


def _classifier(problem: str) -> Callable:
    def head(backbone: AlbertBackbone, names, dropout: float):
        return AlbertForSequenceClassification(
            backbone,
            num_labels=len(names) if names else 1,
            labels=names,
            problem=problem,
            dropout=dropout,
        )

    return head


def _names_of_classes(table: Table) -> tuple[str, ...]:
    names = sorted(set(table.values[LABEL]))
    return _checked_names(table, names, len(table), "rows")


def _checked_names(
    table: Table, names: list[str], count: int, what: str, least: int = 2
) -> tuple[str, ...]:
    """The names, unless they are too few or too many to be labels."""
    if len(names) < least:
        raise AlbertError(
            f"{table.path}: expected {('one', 'two')[least - 1]} or more "
            f"different labels. Received: {names}. Name the column of the "
            "labels with --columns.label."
        )
    if len(names) > max(MANY_LABELS, count // 2):
        raise AlbertError(
            f"{table.path}: {len(names)} different labels in {count} {what} "
            f"({names[0]!r:.40}, {names[1]!r:.40}, ...). Name the column of "
            "the labels with --columns.label, or learn a number with --task "
            "regression."
        )
    return tuple(names)


def _class_indices(table: Table, names) -> np.ndarray:
    return label_index(table.values[LABEL], names, table.path, table.lines)


def _decode_class(outputs, features, names) -> list[dict[str, object]]:
    odds = special.softmax(np.stack(outputs), axis=-1)
    return [
        {"prediction": names[row.argmax()], "score": round(float(row.max()), 6)}
        for row in odds
    ]


def _class_scores(outputs, features, names) -> Scores:
    metrics = ["accuracy", "matthews"]
    if len(names) == 2:
        metrics.insert(1, "f1")
    return class_scores(metrics)(outputs, features, names)


def class_scores(metrics: Sequence[str]) -> Callable:
    """`Task.scores` with metrics of classes, see `measure`."""

    def scores(outputs, features, names) -> Scores:
        predicted = np.stack(outputs).argmax(-1)
        measured = measure(metrics, features.target, predicted, names)
        collapse = _collapse(features.target, predicted, names, "example")
        return dataclasses.replace(
            measured, remarks=(*measured.remarks, *collapse)
        )

    return scores


def _collapse(expected, predicted, names, what: str) -> tuple[str, ...]:
    """What to know where a model gives one answer to everything."""
    if len(set(predicted.tolist())) > 1 or len(set(expected.tolist())) == 1:
        return ()
    return (collapsed(f"{what} is taken for {names[predicted[0]]!r}"),)


def _most_frequent(features: Features) -> float:
    counts = np.bincount(features.target)
    return float(counts.max() / counts.sum())


CLASSIFICATION = Task(
    inputs=_text_fields,
    label=read_label,
    names=_names_of_classes,
    features=_text_features(_class_indices),
    head=_classifier("single_label"),
    loss=lambda names: WeightedMean(
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
    ),
    decode=_decode_class,
    scores=_class_scores,
    best="accuracy",
    guess=_most_frequent,
    has_classes=True,
)


def _pair_fields(columns: TableColumns) -> dict[str, Field]:
    pair = columns.pair or PAIR
    return _text_fields(dataclasses.replace(columns, pair=pair))


PAIRS = dataclasses.replace(CLASSIFICATION, inputs=_pair_fields)


def _numbers(table: Table, names) -> np.ndarray:
    return np.array(table.values[LABEL], "float32")[:, None]


def _decode_number(outputs, features, names) -> list[dict[str, object]]:
    return [{"prediction": round(float(row[0]), 6)} for row in outputs]


def number_scores(outputs, features, names) -> Scores:
    """`Task.scores` of numbers."""
    predicted, expected = np.stack(outputs)[:, 0], features.target[:, 0]
    scores = measure(["pearson", "spearman"], expected, predicted)
    error = float(np.sqrt(np.mean((expected - predicted) ** 2)))
    remarks = scores.remarks
    if is_constant(predicted) and not is_constant(expected):
        remarks += (collapsed(f"example is given {predicted[0]:.4g}"),)
    values = {**scores.values, "root_mean_squared_error": error}
    return Scores(values, remarks)


REGRESSION = dataclasses.replace(
    CLASSIFICATION,
    label=read_number,
    names=lambda table: None,
    features=_text_features(_numbers),
    head=_classifier("regression"),
    loss=lambda names: WeightedMean(
        keras.losses.MeanSquaredError(reduction="none")
    ),
    decode=_decode_number,
    scores=number_scores,
    best="pearson",
    guess=lambda features: None,
    adds=frozenset({"prediction"}),
    has_classes=False,
)


def _names_of_several(table: Table) -> tuple[str, ...]:
    names = sorted({label for row in table.values[LABEL] for label in row})
    return _checked_names(table, names, len(table), "rows", least=1)


def _indicators(table: Table, names) -> np.ndarray:
    target = np.zeros((len(table), len(names)), "float32")
    for row, labels in enumerate(table.values[LABEL]):
        lines = [table.lines[row]] * len(labels)
        target[row, label_index(labels, names, table.path, lines)] = 1
    return target


def _decode_several(outputs, features, names) -> list[dict[str, object]]:
    decoded = []
    for row in special.expit(np.stack(outputs)):
        chosen = np.flatnonzero(row > 0.5)
        decoded.append(
            {
                "prediction": [names[i] for i in chosen],
                "score": {
                    name: round(float(p), 6)
                    for name, p in zip(names, row, strict=True)
                },
            }
        )
    return decoded


def _several_scores(outputs, features, names) -> Scores:
    chosen = np.stack(outputs) > 0
    scores = multilabel_scores(features.target, chosen)
    different = [len(np.unique(x, axis=0)) for x in (chosen, features.target)]
    if different[0] > 1 or different[1] == 1:
        return scores
    labels = [names[i] for i in np.flatnonzero(chosen[0])]
    remark = collapsed(f"example is given the labels {labels}")
    return dataclasses.replace(scores, remarks=(*scores.remarks, remark))


MULTILABEL = dataclasses.replace(
    CLASSIFICATION,
    label=read_labels,
    names=_names_of_several,
    features=_text_features(_indicators),
    head=_classifier("multi_label"),
    loss=lambda names: WeightedMean(
        keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    ),
    decode=_decode_several,
    scores=_several_scores,
    best="micro_f1",
    guess=lambda features: None,
    has_classes=False,
)


# A label for each word.


def _word_features(tokenizer, table, names, length) -> Features:
    labels = table.values.get(LABEL)
    rows, targets, counts = [], [], []
    for i, words in enumerate(table.values["text"]):
        place = f"{table.path}:{table.lines[i]}"
        marks = np.zeros(len(words), "int32")
        if labels is not None:
            lines = [table.lines[i]] * len(words)
            marks = label_index(labels[i], names, table.path, lines)
        try:
            parts = word_rows(tokenizer, words, length)
        except AlbertError as error:
            raise AlbertError(f"{place}: {error}") from None
        done = 0
        for row, starts in parts:
            target = np.full(len(row.token_ids), -1, "int32")
            target[starts] = marks[done : done + len(starts)]
            done += len(starts)
            rows.append(row)
            targets.append(target)
        counts.append(len(parts))
    return Features(rows, token_target=targets, source=counts)


def _one_label_a_word(row: dict, values: dict) -> dict:
    words, labels = values["text"], values.get(LABEL)
    if labels is not None and len(labels) != len(words):
        raise AlbertError(
            f"{len(words)} words, but {len(labels)} labels. Give each word one."
        )
    return values


def _labelled(outputs, features) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of the words of each text: the logits [W, C], and the labels [W]."""
    logits, labels = [], []
    ends = np.cumsum(features.source)
    for end, count in zip(ends, features.source, strict=True):
        rows = slice(end - count, end)
        target = np.concatenate(features.token_target[rows])
        logits.append(np.concatenate(outputs[rows])[target >= 0])
        labels.append(target[target >= 0])
    return logits, labels


def _decode_words(outputs, features, names) -> list[dict[str, object]]:
    logits, _ = _labelled(outputs, features)
    return [
        {"prediction": [names[i] for i in row.argmax(-1)]} for row in logits
    ]


def _word_scores(outputs, features, names) -> Scores:
    logits, expected = _labelled(outputs, features)
    predicted = [row.argmax(-1) for row in logits]
    expected_words, words = map(np.concatenate, (expected, predicted))
    scores = measure(["accuracy"], expected_words, words)
    scores = dataclasses.replace(
        scores, remarks=_collapse(expected_words, words, names, "word")
    )
    found = entity_f1(
        [[names[i] for i in row] for row in expected],
        [[names[i] for i in row] for row in predicted],
    )
    if found is None:
        return scores
    return dataclasses.replace(
        scores, values={"entity_f1": found, **scores.values}
    )


def _names_of_words(table: Table) -> tuple[str, ...]:
    labels = [label for row in table.values[LABEL] for label in row]
    return _checked_names(table, sorted(set(labels)), len(labels), "words")


TOKENS = Task(
    inputs=lambda columns: {"text": Field(columns.text, read_words)},
    label=read_words,
    names=_names_of_words,
    features=_word_features,
    head=lambda backbone, names, dropout: AlbertForTokenClassification(
        backbone, num_labels=len(names), labels=names, dropout=dropout
    ),
    loss=CLASSIFICATION.loss,
    decode=_decode_words,
    scores=_word_scores,
    best="accuracy",
    guess=lambda features: _most_frequent(
        Features(
            features.rows[:1],
            np.concatenate([t[t >= 0] for t in features.token_target]),
        )
    ),
    adds=frozenset({"prediction"}),
    parts=functools.partial(read_parts, complete=_one_label_a_word),
)


# The right one of several choices.


def _choice_fields(columns: TableColumns) -> dict[str, Field]:
    fields = {
        "text": Field(columns.text, read_text),
        "choices": Field(columns.choices, read_choices),
    }
    if columns.question:
        fields["question"] = Field(columns.question, read_text)
    return fields


def _choice_features(tokenizer, table, names, length) -> Features:
    values = table.values
    count = len(values["choices"][0])
    for line, choices in zip(table.lines, values["choices"], strict=True):
        try:
            _check_number(choices, count)
        except AlbertError as error:
            raise AlbertError(f"{table.path}:{line}: {error}") from None
    rows = choice_rows(
        tokenizer,
        values["text"],
        values.get("question", [""] * len(table)),
        values["choices"],
        length,
    )
    target = None
    if LABEL in values:
        target = np.array(values[LABEL], "int32")
    return Features(rows, target, choices=count)


def _read_choice_parts(
    path: str | Path,
    fields: Mapping[str, Field],
    skip_bad: bool = False,
    rows_at_once: int | None = None,
) -> Iterator[Table]:
    """`read_parts`, where all rows have as many choices as the first."""
    count = None

    def complete(row: dict, values: dict) -> dict:
        nonlocal count
        if LABEL in values:
            index = choice_index(values[LABEL], values["choices"])
            values = values | {LABEL: index}
        count = count or len(values["choices"])
        _check_number(values["choices"], count)
        return values

    return read_parts(path, fields, skip_bad, rows_at_once, complete)


def _check_number(choices: Sequence[str], count: int) -> None:
    if len(choices) != count:
        raise AlbertError(
            f"{len(choices)} choices, where the first row has {count}. Each "
            "row needs as many."
        )


def choice_index(label: str | int, choices: Sequence[str]) -> int:
    """A letter from A, a number from 0, or the choice itself -> its index.

    Raises:
        AlbertError: it is none of them, or may be several: of the choices
            "3", "0" and "7" the text "0" is the first or the second.
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


def _decode_choice(outputs, features, names) -> list[dict[str, object]]:
    return [
        {"prediction": int(row.argmax()), "score": round(float(row.max()), 6)}
        for row in special.softmax(np.stack(outputs), axis=-1)
    ]


def _choice_scores(outputs, features, names) -> Scores:
    predicted = np.stack(outputs).argmax(-1)
    letters = [*LETTERS, *map(str, range(len(LETTERS), features.choices))]
    return dataclasses.replace(
        measure(["accuracy"], features.target, predicted),
        remarks=_collapse(features.target, predicted, letters, "question"),
    )


CHOICE = dataclasses.replace(
    CLASSIFICATION,
    inputs=_choice_fields,
    label=read_choice,
    names=lambda table: None,
    features=_choice_features,
    head=lambda backbone, names, dropout: AlbertForMultipleChoice(
        backbone, dropout=dropout
    ),
    decode=_decode_choice,
    scores=_choice_scores,
    parts=_read_choice_parts,
    has_classes=False,
)


# The part of a context that answers a question.


QUESTIONS = Task(
    inputs=question_fields,
    label=read_answers,
    names=names_of_questions,
    features=question_features,
    head=question_head,
    loss=question_loss,
    decode=decode_questions,
    scores=question_scores,
    best="f1",
    guess=refuse_all,
    constant='"no answer"',
    target=ANSWERS,
    adds=frozenset({"prediction", "score", "start", "end"}),
    parts=read_question_parts,
)


TASKS = {
    "classification": CLASSIFICATION,
    "pairs": PAIRS,
    "regression": REGRESSION,
    "multilabel": MULTILABEL,
    "tokens": TOKENS,
    "choice": CHOICE,
    "qa": QUESTIONS,
}
