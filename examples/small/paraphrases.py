"""Makes questions in the words of another sentence than that of the answer.

    python examples/small/paraphrases.py --input articles/train.txt \\
        --cloze cloze --output news

An article tells many things twice: its title, its first sentences and a later
passage name the same people and numbers, in other words. A name, number, date
or phrase of one sentence is asked for with the words of this sentence, and the
answer is taken from another sentence of the article that has it, too, and
several of these words; a few sentences are the same, word for word (Dhingra et
al. 2018, "Simple and Effective Semi-Supervised Question Answering", ask with
first sentences about the rest).

The output has the format of SQuAD 1.1. As many questions of `cloze.py` are
added, drawn by articles, so that a model which has learned them goes on with
both kinds. The input is that of `cloze.py`, and `--cloze` its output.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cloze import (
    QUESTIONS,
    Answer,
    Files,
    Word,
    answers,
    articles,
    contexts,
    question_of,
    questions_of,
    words_of,
    write,
)
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

ASKING = (5, 60)  # fewest and most words of a sentence that asks
SIDE = 10  # its words on each side of the answer that are looked for elsewhere
STEM = 6  # letters by which words are compared: "developed" and "developing"
# Of these words, the fewest that the sentence of the answer has, too; of
# numbers more, as the same number often means something else.
SHARED, SHARED_OF_NUMBERS = 3, 4
SHARE = 0.35  # and the least share of them
LEFT_OUT = 0.5  # share of the phrases that are not asked for
DROPPED, MOVED = (0, 0.1, 0.25), 2  # of question_of; fewer than in cloze.py


class Sentence(NamedTuple):
    """A sentence of a context."""

    text: str
    begin: int  # its first character in the context
    stems: set[str]


class Place(NamedTuple):
    """Where the answer to a question is."""

    shared: int  # words beside the asked one that its sentence has, too
    context: int  # index of the context
    start: int  # of the answer in the context, in characters


def main() -> None:
    """Reads the arguments, writes both files, prints how many questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--cloze", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    draw = random.Random(1)
    files: Files = {"train": [], "dev": []}
    for part, title, sentences in articles(arguments.input):
        if paragraphs := ask_elsewhere(title, sentences, draw):
            files[part].append({"title": title, "paragraphs": paragraphs})
    others = random.Random(0)
    for part, data in files.items():
        path = arguments.cloze / f"{part}-v1.1.json"
        if not path.exists():
            sys.exit(f"error: there is no {path}. Give the output of cloze.py.")
        data += as_many(data, json.loads(path.read_text("utf-8")), others)
    write(files, arguments.input, arguments.output)


def as_many(
    data: list[dict], file: dict, draw: random.Random
) -> Iterator[dict]:
    """Articles of another file with as many questions as `data` has."""
    missing = sum(len(questions_of(article)) for article in data)
    found = file["data"]
    draw.shuffle(found)
    for article in found:
        if missing <= 0:
            return
        missing -= len(questions_of(article))
        yield article


def ask_elsewhere(
    title: str, sentences: list[str], draw: random.Random
) -> list[dict]:
    """The contexts of an article with the questions about them."""
    texts = [*contexts(sentences)]
    known = [*map(_sentences, texts)]
    asked: list[list[dict]] = [[] for _ in texts]
    for asking in (title, *sentences):
        words = words_of(asking)
        if not ASKING[0] <= len(words) <= ASKING[1]:
            continue
        own = next((n for n, text in enumerate(texts) if asking in text), None)
        others = {n: each for n, each in enumerate(known) if n != own}
        for answer in answers(words, asking):
            if answer.kind == "phrase" and draw.random() < LEFT_OUT:
                continue
            begin = words[answer.first].begin
            text = asking[begin : words[answer.stop - 1].end]
            place = find(text, words, answer, others)
            if place is None:
                continue
            question = question_of(words, answer, draw, DROPPED, MOVED)
            if question:
                found = {"text": text, "answer_start": place.start}
                asked[place.context].append(
                    {"question": question, "answers": [found]}
                )
    return [
        {"context": " ".join(text), "qas": draw.sample(questions, count)}
        for text, questions in zip(texts, asked, strict=True)
        if (count := min(QUESTIONS, len(questions)))
    ]


def _sentences(context: list[str]) -> list[Sentence]:
    begin, found = 0, []
    for text in context:
        stems = {word.text.lower()[:STEM] for word in words_of(text)}
        found.append(Sentence(text, begin, stems))
        begin += len(text) + 1
    return found


def find(
    text: str,
    words: list[Word],
    answer: Answer,
    contexts: dict[int, list[Sentence]],
) -> Place | None:
    """The place of an answer whose sentence has the most words in common.

    `words` are those of the sentence that asks, and `contexts` the texts in
    which the answer is looked for. None if no sentence has it and enough words.
    """
    first = max(0, answer.first - SIDE)
    sides = words[first : answer.first] + words[answer.stop :][:SIDE]
    stems = {
        word.text.lower()[:STEM]
        for word in sides
        if len(word.text) > 2 and word.text.lower() not in ENGLISH_STOP_WORDS
    }
    fewest = SHARED_OF_NUMBERS if answer.kind == "number" else SHARED
    fewest = max(fewest, SHARE * len(stems))
    if len(text) < 2 or len(stems) < SHARED:
        return None
    pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    best = None
    for number, sentences in contexts.items():
        for sentence in sentences:
            shared = len(stems & sentence.stems)
            if shared < fewest or (best and shared <= best.shared):
                continue
            if match := pattern.search(sentence.text):
                start = sentence.begin + match.start()
                best = Place(shared, number, start)
    return best


if __name__ == "__main__":
    main()
