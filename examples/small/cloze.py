"""Makes questions about articles, in the format of SQuAD 1.1.

    python examples/small/cloze.py --input articles/train.txt --output cloze

A question is a part of a sentence whose answer was taken out: some of its words
are dropped, the others change places with their neighbours, and a question word
is added (Lewis et al. 2019, "Unsupervised Question Answering by Cloze
Translation"). A model that finds the answers has learned to look for the words
of a question in a text, for which a few thousand real questions are too few.

The input has a paragraph a line and a blank line between articles, whose first
line is their title (see articles.py). `train-v1.1.json` has 49 of 50 articles,
`dev-v1.1.json` the others.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

CONTEXT = 110  # most words of a context; SQuAD's have 120 on average
QUESTIONS = 3  # most questions about a context, about different sentences
SHORTEST = 8  # fewest words of a sentence that is asked about
SIDE = (3, 10)  # fewest and most words that are read on a side of the answer
DROPPED = (0.1, 0.25, 0.4)  # shares of them that are left out; one is drawn
LONGEST_ANSWER = 4  # words
MOVED = 3  # places that a word moves at most
EVERY = 50  # of the articles, one is held out

WORD = re.compile(r"\w+(?:['.,-]\w+)*")
SENTENCE_END = re.compile(r'(?<=[.!?]) (?=[A-Z"])')
MONTH = (
    "January|February|March|April|May|June|July|August|September|October|"
    "November|December"
)
UNIT = (
    "percent|pct|million|billion|mln|bln|dlrs|dollars|pounds|euros|people|"
    "years|months|weeks|days|hours|minutes|miles|km|points|shares|tonnes"
)
DIGIT_OR_MONTH = re.compile(rf"\d|(?:{MONTH})$")
DIGIT_MONTH_OR_UNIT = re.compile(rf"\d|(?:{MONTH}|{UNIT})$")
# A month, or a year from 1500 to 2099.
DATE = re.compile(rf"{MONTH}|\b(?:1[5-9]|20)\d\d\b")
BEFORE_PHRASES = frozenset(
    ("a", "an", "the", "its", "his", "her", "their", "of", "for", "by", "with")
)
BEFORE_PLACES = frozenset(("in", "at", "near", "from"))
QUESTION_WORDS = {
    "date": ("when", "when", "what year"),
    "number": ("how many", "how much", "what"),
    "place": ("where",),
    "name": ("who", "what", "which"),
    "phrase": ("what", "what", "which"),
}
# An answer is drawn among those of a sentence with these weights, roughly the
# shares of the kinds in SQuAD (Rajpurkar et al. 2016, table 2; its verbs and
# clauses, which are not found here, count as phrases). As few sentences have a
# date, and many a phrase, the questions have more phrases than SQuAD's.
WEIGHTS = {"date": 9, "number": 11, "place": 5, "name": 28, "phrase": 47}

Files = dict[str, list[dict]]  # the articles of `dev` and `train`


class Word(NamedTuple):
    """A word of a sentence, and where it begins and ends there."""

    text: str
    begin: int
    end: int


class Answer(NamedTuple):
    """A kind of answer, and its first word and the word after its last."""

    kind: str
    first: int
    stop: int


def main() -> None:
    """Reads the arguments, writes both files, prints how many questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    draw = random.Random(0)
    files: Files = {"dev": [], "train": []}
    for part, title, sentences in articles(arguments.input):
        paragraphs = [
            {"context": " ".join(context), "qas": questions}
            for context in contexts(sentences)
            if (questions := ask(context, draw))
        ]
        if paragraphs:
            files[part].append({"title": title, "paragraphs": paragraphs})
    write(files, arguments.input, arguments.output)


def articles(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """The part that each article belongs to, its title and its sentences."""
    texts = path.read_text(encoding="utf-8").split("\n\n")
    for number, article in enumerate(texts):
        title, *lines = article.strip().split("\n")
        sentences = [s for line in lines for s in SENTENCE_END.split(line)]
        yield "train" if number % EVERY else "dev", title, sentences


def questions_of(article: dict) -> list[dict]:
    """All questions about an article."""
    return [q for paragraph in article["paragraphs"] for q in paragraph["qas"]]


def write(files: Files, source: Path, output: Path) -> None:
    """Numbers the questions, writes a file for each part, prints how many.

    The error names `source`, the text that they were made of.
    """
    for name, data in files.items():
        if not data:
            sys.exit(
                f"error: {source} gives no questions for {name}. Give a text "
                "of articles with blank lines between them, as articles.py "
                "writes it."
            )
    output.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        questions = [q for article in data for q in questions_of(article)]
        for number, question in enumerate(questions):
            question["id"] = f"{name}-{number}"
        path = output / f"{name}-v1.1.json"
        path.write_text(json.dumps({"version": "1.1", "data": data}), "utf-8")
        print(f"{path}: {len(questions)} questions about {len(data)} articles")


def contexts(sentences: list[str]) -> Iterator[list[str]]:
    """Texts of at most CONTEXT words, without the sentences that are longer."""
    context: list[str] = []
    size = 0
    for sentence in sentences:
        words = len(WORD.findall(sentence))
        if size + words > CONTEXT and context:
            yield context
            context, size = [], 0
        if words <= CONTEXT:
            context.append(sentence)
            size += words
    if context:
        yield context


def ask(context: list[str], draw: random.Random) -> list[dict]:
    """Questions about some sentences of a context."""
    questions: list[dict] = []
    begins = [0]
    for sentence in context:
        begins.append(begins[-1] + len(sentence) + 1)
    for index in draw.sample(range(len(context)), len(context)):
        sentence = context[index]
        words = words_of(sentence)
        found = answers(words, sentence)
        if len(questions) == QUESTIONS or len(words) < SHORTEST or not found:
            continue
        weights = [WEIGHTS[answer.kind] for answer in found]
        answer = draw.choices(found, weights)[0]
        begin, end = words[answer.first].begin, words[answer.stop - 1].end
        if question := question_of(words, answer, draw):
            text = {
                "text": sentence[begin:end],
                "answer_start": begins[index] + begin,
            }
            questions.append({"question": question, "answers": [text]})
    return questions


def words_of(sentence: str) -> list[Word]:
    """The words of a sentence."""
    return [Word(m[0], *m.span()) for m in WORD.finditer(sentence)]


def answers(words: list[Word], sentence: str) -> list[Answer]:
    """Dates, numbers, places, names and phrases of a sentence."""
    found = []
    first = 0
    while first < len(words):
        kind, inside = _answer_from(words, first)
        stop = _end_of_run(words, first, inside)
        if kind == "number":
            text = sentence[words[first].begin : words[stop - 1].end]
            kind = "date" if DATE.search(text) else "number"
        if kind:
            found.append(Answer(kind, first, stop))
        first = stop
    return found


def _answer_from(
    words: list[Word], first: int
) -> tuple[str, Callable[[str], bool]]:
    """The kind of answer that begins with a word, "" if none does.

    A date is a number here. Also returns a test of the words that may follow.
    """
    text = words[first].text
    before = words[first - 1].text.lower() if first else ""
    if DIGIT_OR_MONTH.match(text):
        return "number", lambda word: bool(DIGIT_MONTH_OR_UNIT.match(word))
    if before and text.lower() not in ENGLISH_STOP_WORDS:
        if text[0].isupper():
            kind = "place" if before in BEFORE_PLACES else "name"
            return kind, lambda word: word[0].isupper()
        if before in BEFORE_PHRASES:
            return "phrase", lambda word: word not in ENGLISH_STOP_WORDS
    return "", lambda word: False


def _end_of_run(
    words: list[Word], first: int, inside: Callable[[str], bool]
) -> int:
    """The index after the last word, with one character between two words."""
    stop = first + 1
    while (
        stop < min(len(words), first + LONGEST_ANSWER)
        and words[stop].begin == words[stop - 1].end + 1
        and inside(words[stop].text)
    ):
        stop += 1
    return stop


def question_of(
    words: list[Word],
    answer: Answer,
    draw: random.Random,
    shares: tuple[float, ...] = DROPPED,
    moves: int = MOVED,
) -> str | None:
    """The question, or None if too few words remain.

    A share of the words is dropped, one of `shares`, and the others move by at
    most so many places.
    """
    first = max(0, answer.first - draw.randint(*SIDE))
    rest = [*words[first : answer.first]]
    rest += words[answer.stop : answer.stop + draw.randint(*SIDE)]
    dropped = draw.choice(shares)
    kept = [word.text for word in rest if draw.random() > dropped]
    if len(kept) < 3:
        return None
    places = [place + draw.uniform(0, moves) for place in range(len(kept))]
    moved = [text for _, text in sorted(zip(places, kept, strict=True))]
    question_word = draw.choice(QUESTION_WORDS[answer.kind])
    return " ".join([question_word, *moved]) + "?"


if __name__ == "__main__":
    main()
