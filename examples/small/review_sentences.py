"""Labels sentences of movie reviews, to learn SST-2 from more of them.

    python examples/small/review_sentences.py make --reviews aclImdb \\
        --without GLUE/SST-2/dev.tsv --output sentences.jsonl
    keras-albert predict --model TEACHER --data sentences.jsonl \\
        --columns.text sentence --output predicted.jsonl
    python examples/small/review_sentences.py choose \\
        --predicted predicted.jsonl --output chosen.jsonl
    python examples/small/review_sentences.py linear \\
        --chosen chosen.jsonl --sst GLUE/SST-2

`make` splits the 50,000 rated reviews (see reviews.py) into sentences of 4 to
35 words, and writes them much as SST-2 does: in lower case, with spaces around
punctuation (also within numbers). Each has the rating of its review, 1 for a
good one. TEACHER is a model that was fine-tuned on SST-2. Many sentences of a
good review are no praise, and the teacher errs, too: `choose` keeps the
sentences for which both agree, if the teacher gives its label a probability of
0.6 or more, and equally many of both labels. `linear` prints what a linear
model of words learns from SST-2, from these sentences, and from both.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from reviews import known_runs, new_reviews
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

SHORTEST, LONGEST = 4, 35  # words of a sentence
LEAST_SCORE = 0.6  # probability of a label, below which it is not kept
SENTENCE_END = re.compile(r'(?<=[.!?]) +(?=[A-Z"(])|\n')
CONTRACTION = re.compile(r"(n't|'s|'re|'ve|'ll|'d|'m)\b")
PUNCTUATION = re.compile(r'(\.\.\.|--|[.,!?;:()"])')


def main() -> None:
    """Reads the arguments, runs one of the three steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    made = steps.add_parser("make")
    made.add_argument("--reviews", type=Path, required=True)
    made.add_argument("--without", type=Path, required=True)
    made.add_argument("--output", type=Path, required=True)
    chosen = steps.add_parser("choose")
    chosen.add_argument("--predicted", type=Path, required=True)
    chosen.add_argument("--output", type=Path, required=True)
    linear = steps.add_parser("linear")
    linear.add_argument("--chosen", type=Path, required=True)
    linear.add_argument("--sst", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.step == "linear":
        print_linear_scores(arguments.chosen, arguments.sst)
        return
    if arguments.step == "make":
        rows = [*rated_sentences(arguments.reviews, arguments.without)]
    else:
        rows = chosen_rows(read(arguments.predicted))
    with arguments.output.open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(row), file=file)
    print(f"{arguments.output}: {len(rows)} sentences")


def read(path: Path) -> Iterator[dict]:
    """The rows of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def rated_sentences(reviews: Path, without: Path) -> Iterator[dict]:
    """The sentences of all rated reviews that `new_reviews` keeps."""
    known, seen = known_runs(without), set()
    for rating, folder in enumerate(("neg", "pos")):
        paths = sorted(reviews.glob(f"*/{folder}/*.txt"))
        if not paths:
            sys.exit(
                f"error: {reviews} has no */{folder}/*.txt. Unpack "
                "aclImdb_v1.tar.gz."
            )
        for review in new_reviews(paths, known, seen):
            for sentence in SENTENCE_END.split(review):
                text = as_in_sst(sentence)
                if SHORTEST <= len(re.findall(r"\w+", text)) <= LONGEST:
                    yield {"sentence": text, "rating": rating}


def as_in_sst(text: str) -> str:
    """A sentence in lower case, with spaces around punctuation.

    >>> as_in_sst("It's good (I didn't sleep).")
    "it 's good ( i did n't sleep ) ."
    """
    text = CONTRACTION.sub(r" \1", text.lower())
    return " ".join(PUNCTUATION.sub(r" \1 ", text).split())


def chosen_rows(predicted: Iterator[dict]) -> list[dict]:
    """The sentences whose label is the rating, in random order.

    There are equally many of both labels; those that are too many are drawn at
    random.
    """
    texts = [], []
    for row in predicted:
        agrees = row["prediction"] == str(row["rating"])
        if agrees and row["score"] >= LEAST_SCORE:
            texts[row["rating"]].append(row["sentence"])
    draw = random.Random(0)
    count = min(map(len, texts))
    rows = [
        {"sentence": text, "label": str(label)}
        for label in range(2)
        for text in draw.sample(texts[label], count)
    ]
    draw.shuffle(rows)
    return rows


def print_linear_scores(chosen: Path, sst: Path) -> None:
    """Prints the accuracies on SST-2's dev file of linear models of words."""
    train, dev = (
        [
            line.split("\t")
            for line in (sst / f"{name}.tsv")
            .read_text("utf-8")
            .strip()
            .split("\n")
        ][1:]
        for name in ("train", "dev")
    )
    sentences = [[row["sentence"], row["label"]] for row in read(chosen)]
    for name, rows in (
        ("SST-2", train),
        ("sentences of reviews", sentences),
        ("both", train + sentences),
    ):
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        texts, labels = zip(*rows, strict=True)
        model = LogisticRegression(max_iter=300)
        model.fit(words.fit_transform(texts), labels)
        texts, labels = zip(*dev, strict=True)
        score = model.score(words.transform(texts), labels)
        print(f"{name}: accuracy {score:.3f}")


if __name__ == "__main__":
    main()
