"""Makes pairs of sentences with labels that say how many words they share.

    python examples/small/overlap.py --input articles/train.txt --output overlap

A model that was pretrained on single texts does not compare two of them word by
word, and the few thousand pairs of MRPC are too few to learn it. Here it learns
it from 64,000 pairs whose labels are computed: whether more than 40, 50, ...
90 % of the words of each sentence are in the other, how many pairs of
neighbouring words are, and whether both have the same numbers (Sellam et al.
2020, "BLEURT: Learning Robust Metrics for Text Generation", teach such measures
before a task, too).

Half of the pairs are two sentences that share at least a fifth of their words,
of one article or of two. The others are such a sentence and itself, in both of
which words were left out, moved, or replaced by words of the other sentence.
(The last word hardly ever changes. README.md has the numbers of such pairs.)

The input has a paragraph a line and a blank line between articles, whose first
line is their title (see articles.py). `train.jsonl` and `dev.jsonl` have a pair
a line, in random order.
"""

import argparse
import collections
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from cloze import WORD, articles

LENGTHS = (8, 32)  # fewest and most words of a sentence
RARE = 100  # most sentences with a word that counts as rare
RAREST = 6  # words of a sentence that are looked for elsewhere, two at once
LEAST = 0.2  # share of the words that two sentences have in common
PAIRS = {"train": 64_000, "dev": 400}
# The largest share of the words of a sentence that is changed.
MOST_CHANGED = 0.5
LONGEST_CHANGE = 5  # words
SHARES_OF_WORDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHARES_OF_NEIGHBOURS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


def main() -> None:
    """Reads the arguments, writes both files, prints how many pairs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    sentences = sentences_of(arguments.input)
    draw = random.Random(0)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for part, wanted in PAIRS.items():
        pairs = pairs_of(sentences[part], wanted, draw)
        if len(pairs) < wanted:
            sys.exit(
                f"error: {arguments.input} gives {len(pairs)} pairs of "
                f"sentences for {part}.jsonl, fewer than {wanted}. Give the "
                "text of more articles, as articles.py writes it."
            )
        path = arguments.output / f"{part}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for text, pair in pairs:
                row = {"text": text, "pair": pair, "label": labels(text, pair)}
                file.write(json.dumps(row) + "\n")
        print(f"{path}: {len(pairs)} pairs")


def pairs_of(
    sentences: list[str], wanted: int, draw: random.Random
) -> list[tuple[str, str]]:
    """Draws that many pairs; fewer if there are too few sentences."""
    found = [*dict.fromkeys(neighbours(sentences))]
    pairs = draw.sample(found, min(len(found), wanted // 2))
    for text, other in draw.choices(found, k=len(pairs)):
        new = changed(text, other, draw), changed(text, other, draw)
        pairs.append(new)
    draw.shuffle(pairs)
    return pairs


def sentences_of(path: Path) -> dict[str, list[str]]:
    """The sentences of each part, of which one article in 50 is held out."""
    found: dict[str, dict[str, None]] = {part: {} for part in PAIRS}
    for part, _, sentences in articles(path):
        for sentence in sentences:
            if LENGTHS[0] <= len(WORD.findall(sentence)) <= LENGTHS[1]:
                found[part][sentence] = None
    return {part: [*each] for part, each in found.items()}


def words_of(sentence: str) -> list[str]:
    """The words in lower case, without punctuation."""
    return WORD.findall(sentence.lower())


def neighbours(sentences: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of sentences with two rare words, and others, in common."""
    words = [set(words_of(sentence)) for sentence in sentences]
    count = collections.Counter(itertools.chain.from_iterable(words))
    found: dict[tuple[str, str], int] = {}
    for number, each in enumerate(words):
        rare = sorted(
            (word for word in each if 2 <= count[word] <= RARE),
            key=lambda word: (count[word], word),
        )
        for two in itertools.combinations(sorted(rare[:RAREST]), 2):
            other = found.get(two)
            found[two] = number
            if other is None:
                continue
            shared = 2 * len(words[other] & each)
            if shared >= LEAST * (len(words[other]) + len(each)):
                yield sentences[other], sentences[number]


def changed(sentence: str, other: str, draw: random.Random) -> str:
    """A sentence of which some words are left out, replaced or moved."""
    words, new = sentence.split(), other.split()
    left = int(draw.uniform(0, MOST_CHANGED) * len(words))
    while left > 0:
        size = min(left, draw.randint(1, LONGEST_CHANGE))
        left -= size
        begin = draw.randrange(max(1, len(words) - size))
        end = begin + size
        kind = draw.choice(("left out", "replaced", "moved"))
        taken = words[begin:end]
        if kind == "replaced":
            first = draw.randrange(max(1, len(new) - size))
            words[begin:end] = new[first : first + size]
        else:
            del words[begin:end]
        if kind == "moved":
            place = draw.randrange(len(words) + 1)
            words[place:place] = taken
    return " ".join(words)


def labels(text: str, pair: str) -> list[str]:
    """What is true of the words of two sentences."""
    first, second = words_of(text), words_of(pair)
    one, two = set(first), set(second)
    both = one & two
    true = [
        f"{name} {share}"
        for name, words in (("first", one), ("second", two))
        for share in SHARES_OF_WORDS
        if len(both) > share * len(words)
    ]
    one_by_one = set(itertools.pairwise(first)), set(itertools.pairwise(second))
    shared = 2 * len(one_by_one[0] & one_by_one[1])
    true += [
        f"neighbours {share}"
        for share in SHARES_OF_NEIGHBOURS
        if shared > share * sum(map(len, one_by_one))
    ]
    if numbers(one) == numbers(two):
        true.append("numbers")
    return true


def numbers(words: set[str]) -> set[str]:
    """Those of the words that have a digit."""
    return {word for word in words if any(map(str.isdigit, word))}


if __name__ == "__main__":
    main()
