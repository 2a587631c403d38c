"""Questions about texts: SQuAD 1.1 and 2.0, and rows of own files.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": false,
         "answers": [{"text": ..., "answer_start": 12}]}]}]}]}

`answer_start` counts characters of the context from 0. `is_impossible` is of
2.0 and may be missing; `title` is not used. A row of an own file, such as

    {"context": ..., "question": ..., "answers": ["once in the context"]}

has one question; answers are objects as above, or texts.

Source: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822).
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from keras_albert.data.bad_rows import BadRows, check_published
from keras_albert.data.frames import Frame
from keras_albert.data.tables import Field, Table, read_parts
from keras_albert.errors import AlbertError, check_choice
from keras_albert.text.files import check_files, decode_line
from keras_albert.text.normalization import to_text

SQUAD_EXTENSION = ".json"
# Published files, with their questions (TFDS's catalog, which counts them).
SQUAD = {
    "SQuAD-1.1": {
        "train": ("train-v1.1.json", 87_599),
        "dev": ("dev-v1.1.json", 10_570),
    },
    "SQuAD-2.0": {
        "train": ("train-v2.0.json", 130_319),
        "dev": ("dev-v2.0.json", 11_873),
    },
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: what annotators took from the context."""

    text: str
    start: int  # its first character in the context


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context."""

    id: str
    text: str
    context: str
    # what is accepted; the first one is what a model learns
    answers: tuple[Answer, ...]
    is_impossible: bool  # whether the context has no answer (2.0)


def read_squad(
    path: str | Path, need_answers: bool = True, bad: BadRows | None = None
) -> list[Question]:
    """The questions of a SQuAD file, in its order.

    Without `need_answers`, answers may be missing and are ignored. `bad` gets
    the errors of bad questions and paragraphs; by default the first is raised.
    """
    (path,) = check_files([path])
    bad = bad or BadRows(skip=False, remedy="")
    questions: dict[str, Question] = {}
    for place, item, context in _items(path, bad):
        try:
            question = _question(item, context, need_answers)
            if question.id in questions:
                raise AlbertError(
                    f"the id {question.id!r} is there twice. Answers are told "
                    "apart by it: give each question its own."
                )
        except AlbertError as error:
            bad.add(f"{path}: {place}", error)
        else:
            questions[question.id] = question
    if not questions:
        raise AlbertError(
            f"{path}: no questions. Expected one or more that can be used."
        )
    return list(questions.values())


def _items(path: Path, bad: BadRows) -> Iterator[tuple[str, dict, str]]:
    """Yields each question's place in the file, its JSON object and context."""
    articles = _read(path)
    for a, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if _is_dict(article) else None
        if not isinstance(paragraphs, list):
            error = AlbertError(
                "expected an object with a list `paragraphs`. Is this a SQuAD "
                "file?"
            )
            bad.add(f"{path}: data[{a}]", error)
            continue
        for p, paragraph in enumerate(paragraphs):
            place = f"data[{a}].paragraphs[{p}]"
            try:
                context, items = _paragraph(paragraph)
            except AlbertError as error:
                bad.add(f"{path}: {place}", error)
                continue
            for q, item in enumerate(items):
                name = item.get("id") if _is_dict(item) else None
                at = f"question {name}" if name else f"{place}.qas[{q}]"
                yield at, item, context


def _read(path: Path) -> list:
    try:
        content = json.loads(decode_line(path.read_bytes(), is_first=True))
    except AlbertError as error:
        raise AlbertError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise AlbertError(
            f"{path}: not a JSON file ({error}). Expected a SQuAD file: one "
            'object {"data": [...]}.'
        ) from None
    articles = content.get("data") if _is_dict(content) else None
    if not isinstance(articles, list):
        found = ", ".join(content) if _is_dict(content) else repr(content)
        raise AlbertError(
            f'{path}: not a SQuAD file. Expected {{"data": [{{"paragraphs": '
            f"[...]}}]}}. Received: {found:.60}."
        )
    return articles


def _paragraph(paragraph: object) -> tuple[str, list]:
    context = _field(paragraph, "context", str)
    if not context.strip():
        raise AlbertError("the context is empty. Fill it in or remove it.")
    return context, _field(paragraph, "qas", list)


def _question(item: object, context: str, need_answers: bool) -> Question:
    name = _field(item, "id", str)
    text = _field(item, "question", str)
    for key, value in (("id", name), ("question", text)):
        if not value.strip():
            raise AlbertError(
                f"`{key}` is empty. Fill it in or remove the question."
            )
    is_impossible = False
    if "is_impossible" in item:
        is_impossible = _field(item, "is_impossible", bool)
    answers = ()
    if need_answers:
        answers = tuple(
            _located(
                _field(answer, "text", str),
                _field(answer, "answer_start", int),
                context,
            )
            for answer in _field(item, "answers", list)
        )
        _check_impossible(is_impossible, answers)
    return Question(name, text, context, answers, is_impossible)


def _check_impossible(is_impossible: bool, answers: Sequence[Answer]) -> None:
    if is_impossible == bool(answers):
        raise AlbertError(
            f"{len(answers)} answers, but `is_impossible` is "
            f"{json.dumps(is_impossible)}. Correct one of the two, or "
            "remove the question."
        )


def _located(text: str, start: int, context: str) -> Answer:
    """Makes an answer that begins at `start`, an index of `context`.

    Raises AlbertError if `text` is not there.
    """
    if not text.strip():
        raise AlbertError(
            "an answer is empty. Fill it in, or remove it and set "
            "`is_impossible`."
        )
    if start < 0 or not context.startswith(text, start):
        nearest = min(
            _occurrences(text, context),
            key=lambda place: abs(place - start),
            default=None,
        )
        remedy = (
            "It is nowhere in the context: correct it or remove the question"
            if nearest is None
            else f"The nearest place is {nearest}: correct `answer_start`"
        )
        found = context[max(start, 0) :][: len(text)]
        raise AlbertError(
            f"the answer {text!r:.60} is not at character {start} of the "
            f"context, of {len(context)} characters. Found there: "
            f"{found!r:.60}. {remedy}."
        )
    return Answer(text, start)


def _found(text: str, context: str) -> Answer:
    """Makes an answer from its text alone, whose start is searched.

    Raises AlbertError unless `text` occurs in the context exactly once.
    """
    places = list(itertools.islice(_occurrences(text, context), 2))
    if not places:
        raise AlbertError(
            f"the answer {text!r:.60} is nowhere in the context. Correct it or "
            "remove the question."
        )
    if len(places) == 2 and text.strip():
        raise AlbertError(
            f"the answer {text!r:.60} is more than once in the context. Give "
            'it as {"text": ..., "answer_start": its first character}.'
        )
    return _located(text, places[0], context)


def _occurrences(text: str, context: str) -> Iterator[int]:
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)


def _field(item: object, key: str, kind: type):
    """item[key]; AlbertError unless its type is exactly `kind`."""
    if not _is_dict(item):
        raise AlbertError(f"expected an object. Received: {item!r:.60}.")
    if key not in item:
        raise AlbertError(
            f"no key `{key}`. Received: {', '.join(item) or 'no keys'}. Add "
            "it, or remove this entry."
        )
    if type(item[key]) is not kind:
        raise AlbertError(
            f"`{key}` must be {_NAMES[kind]}. Received: {item[key]!r:.60}."
        )
    return item[key]


_NAMES = {
    str: "a string",
    int: "an integer",
    list: "an array",
    bool: "true or false",
}


def _is_dict(item: object) -> bool:
    return isinstance(item, dict)


# Tables of questions, a row each.

_WRITTEN = {"true": True, "false": False, "": None}


def read_answers(value: object) -> list[tuple[str, int | None]]:
    """Reads answers, with their positions if they are given.

    The value is a list of texts, or of objects with `text` and perhaps
    `answer_start`; an object with two such lists, as SQuAD has it on the
    Hugging Face Hub; a text; or None for a question without an answer.
    """
    if value is None or isinstance(value, str):
        value = [value] if value and value.strip() else []
    if _is_dict(value):
        texts = _field(value, "text", list)
        starts = _field(value, "answer_start", list)
        if len(texts) != len(starts):
            raise AlbertError(
                f"has {len(texts)} texts, but {len(starts)} places."
            )
        value = [
            {"text": text, "answer_start": start}
            for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(value, list):
        raise AlbertError(
            "must be a list of texts, or of objects such as "
            f'{{"text": "...", "answer_start": 12}}. Received: {value!r:.60}.'
        )
    answers = []
    for answer in value:
        if isinstance(answer, str):
            answers.append((answer, None))
        elif _is_dict(answer) and answer.get("answer_start") is None:
            answers.append((_field(answer, "text", str), None))
        else:
            start = _field(answer, "answer_start", int)
            answers.append((_field(answer, "text", str), start))
    return answers


def read_question_parts(
    path: str | Path | Frame,
    fields: Mapping[str, Field],
    skip_bad: bool = False,
    rows_per_part: int | None = None,
) -> Iterator[Table]:
    """Reads questions from SQuAD's JSON or a table, see `read_parts`.

    Answers become pairs (text, first character). SQuAD's JSON gives a single
    table, with the `id` of each question in `rows`.
    """
    is_file = isinstance(path, str | os.PathLike)
    if is_file and Path(path).suffix.lower() == SQUAD_EXTENSION:
        yield _squad_table(path, "answers" in fields, skip_bad)
    else:
        yield from read_parts(
            path, fields, skip_bad, rows_per_part, complete=_with_places
        )


def _squad_table(path: str | Path, need_answers: bool, skip_bad: bool) -> Table:
    bad = BadRows(skip_bad)
    questions = read_squad(path, need_answers, bad)
    values = {
        "context": [question.context for question in questions],
        "question": [question.text for question in questions],
    }
    if need_answers:
        values["answers"] = [
            [dataclasses.astuple(answer) for answer in question.answers]
            for question in questions
        ]
    rows = [{"id": question.id} for question in questions]
    numbers = list(range(1, len(questions) + 1))
    return Table(Path(path), values, rows, numbers, bad.messages)


def _with_places(row: dict, values: dict) -> dict:
    """Adds to the answers of a row where they begin in its context."""
    if "answers" not in values:
        return values
    answers = [
        _found(text, values["context"])
        if start is None
        else _located(text, start, values["context"])
        for text, start in values["answers"]
    ]
    written = row.get("is_impossible")
    if isinstance(written, str):  # in a file of text, such as CSV
        written = _WRITTEN.get(written.strip().lower(), written)
    if written is not None:
        flag = _field({"is_impossible": written}, "is_impossible", bool)
        _check_impossible(flag, answers)
    return values | {"answers": [dataclasses.astuple(a) for a in answers]}


def questions_of(table: Table) -> list[Question]:
    """The questions of a table; their ids are their numbers in it."""
    values = table.values
    answers = values.get("answers", [[]] * len(table))
    return [
        Question(
            str(number),
            _text(text),
            _text(context),
            tuple(Answer(*answer) for answer in own),
            not own,
        )
        for number, (text, context, own) in enumerate(
            zip(values["question"], values["context"], answers, strict=True)
        )
    ]


def _text(value: str | bytes) -> str:
    """Decodes bytes to text; a str is returned unchanged.

    It is not normalized, since answers are given by positions of characters.
    """
    return value if isinstance(value, str) else to_text(value)


def read_squad_split(
    folder: str | Path,
    name: str,
    split: str,
    *,
    fields: Mapping[str, Field],
    skip_bad: bool = False,
    any_size: bool = False,
) -> Table:
    """A published file with its answers, under its published name in `folder`.

    `any_size` accepts another number of questions than published.
    """
    check_choice("split", split, tuple(SQUAD[name]))
    file, size = SQUAD[name][split]
    path = Path(folder) / file
    if not path.is_file():
        raise AlbertError(
            f"{path}: no such file. Expected {file} in the folder, as SQuAD "
            "publishes it. For other files take --task qa."
        )
    (table,) = read_question_parts(path, fields, skip_bad)
    count = len(table) + len(table.skipped)
    if not any_size:
        check_published(path, count, (size,), "questions")
    return table
