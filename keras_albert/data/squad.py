"""Questions about texts: files in the format of SQuAD 1.1 and 2.0.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": false,
         "answers": [{"text": ..., "answer_start": 12}]}]}]}]}

`answer_start` counts characters of the context from 0. `is_impossible` is of
2.0 and may be missing; `title` is not used.

Source: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822).
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from keras_albert.config import AlbertError
from keras_albert.text.files import check_files, decode_line


@dataclasses.dataclass(frozen=True)
class Answer:
    """What annotators took from the context."""

    text: str
    start: int
    """its first character in the context"""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    """what is accepted; the first one is what a model learns"""
    is_impossible: bool
    """whether the context has no answer (2.0)"""


def fail(message: str) -> NoReturn:
    """Refuses bad input: the default `reject` of the functions below."""
    raise AlbertError(message)


def read_squad(
    path: str | Path,
    need_answers: bool = True,
    reject: Callable[[str], None] = fail,
) -> list[Question]:
    """The questions of a SQuAD file, in its order.

    Args:
        path: the JSON file, UTF-8.
        need_answers: False reads a file to predict on: answers may be missing
            and are not looked at.
        reject: called with the message of each bad question or paragraph,
            which is then left out. The default raises it; `list.append`
            collects them.

    Raises:
        AlbertError: no such file, not UTF-8, not JSON, not in this format, or
            without a question. Unless `reject` is given also: a missing key,
            an id that is empty or there twice, an empty question or context,
            no answer, an answer that is not in the context.
    """
    (path,) = check_files([path])
    questions: dict[str, Question] = {}
    for place, item, context in _items(path, reject):
        try:
            question = _question(item, context, need_answers)
            if question.id in questions:
                raise AlbertError(
                    f"the id {question.id!r} is there twice. Answers are told "
                    "apart by it: give each question its own."
                )
        except AlbertError as error:
            reject(f"{path}: {place}: {error}")
        else:
            questions[question.id] = question
    if not questions:
        raise AlbertError(
            f"{path}: no questions. Expected one or more that can be used."
        )
    return list(questions.values())


def _items(
    path: Path, reject: Callable[[str], None]
) -> Iterator[tuple[str, dict, str]]:
    """The place in the file, the JSON object and the context of questions."""
    articles = _read(path)
    for a, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if _is_dict(article) else None
        if not isinstance(paragraphs, list):
            reject(
                f"{path}: data[{a}]: expected an object with a list "
                "`paragraphs`. Is this a SQuAD file?"
            )
            continue
        for p, paragraph in enumerate(paragraphs):
            place = f"data[{a}].paragraphs[{p}]"
            try:
                context, items = _paragraph(paragraph)
            except AlbertError as error:
                reject(f"{path}: {place}: {error}")
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
            _answer(answer, context) for answer in _field(item, "answers", list)
        )
        if is_impossible == bool(answers):
            raise AlbertError(
                f"{len(answers)} answers, but `is_impossible` is "
                f"{json.dumps(is_impossible)}. Correct one of the two, or "
                "remove the question."
            )
    return Question(name, text, context, answers, is_impossible)


def _answer(answer: object, context: str) -> Answer:
    text = _field(answer, "text", str)
    start = _field(answer, "answer_start", int)
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


def _occurrences(text: str, context: str) -> Iterator[int]:
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)


def _field(item: object, key: str, kind: type):
    """item[key], of exactly this type; AlbertError without the place."""
    if not _is_dict(item):
        raise AlbertError(f"expected an object. Received: {item!r:.60}.")
    if key not in item:
        raise AlbertError(
            f"no key `{key}`. Received: {', '.join(item) or 'no keys'}. Add "
            "it, or remove this entry."
        )
    if type(item[key]) is not kind:
        raise AlbertError(
            f"`{key}` must be of type {_NAMES[kind]}. "
            f"Received: {item[key]!r:.60}."
        )
    return item[key]


_NAMES = {str: "string", int: "integer", list: "array", bool: "true or false"}


def _is_dict(item: object) -> bool:
    return isinstance(item, dict)
