"""Makes text files of movie reviews, for continued pretraining.

    curl -O https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz
    tar xzf aclImdb_v1.tar.gz
    python examples/small/reviews.py --reviews aclImdb \\
        --without GLUE/SST-2/dev.tsv --output reviews

The Large Movie Review Dataset (Maas et al. 2011, "Learning Word Vectors for
Sentiment Analysis") has 100,000 reviews of users of IMDb, for research. Their
ratings are not read. The output has a paragraph a line and a blank line between
reviews: `train.txt` with the 75,000 reviews of the archive's training folders,
and `held-out.txt` with a fiftieth of its test reviews. Repeated reviews are
left out, and those that share eight words in a row with a sentence of the table
of `--without`: a pretrained model should not know the sentences that measure
it. Shorter sentences are not looked for, as texts share so few words by chance.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LINE_BREAKS = re.compile(r"(?:<br\s*/?>\s*)+")
RUN = 8  # words in a row; fewer are often shared by chance
EVERY = 50  # of the test reviews, one is held out


def main() -> None:
    """Reads the arguments, writes both files, prints how much was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--without", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    train = sorted(arguments.reviews.glob("train/*/*.txt"))
    held_out = sorted(arguments.reviews.glob("test/*/*.txt"))[::EVERY]
    if not train or not held_out:
        sys.exit(
            f"error: {arguments.reviews} has no train/*/*.txt or no "
            "test/*/*.txt. Unpack aclImdb_v1.tar.gz."
        )
    known = known_runs(arguments.without)
    arguments.output.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for name, paths in (("train", train), ("held-out", held_out)):
        reviews = [*new_reviews(paths, known, seen)]
        text = "\n\n".join(reviews) + "\n"
        path = arguments.output / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(reviews)} of {len(paths)} reviews")


def known_runs(table: Path) -> set[str]:
    """All runs of words of the sentences of a table of SST-2."""
    header, *rows = table.read_text(encoding="utf-8").split("\n")
    if not header.startswith("sentence\t"):
        sys.exit(
            f"error: {table} is no table of SST-2: it begins with "
            f"{header[:40]!r}. Give GLUE's SST-2/dev.tsv."
        )
    return {run for row in rows for run in runs(row.split("\t")[0])}


def new_reviews(
    paths: Iterable[Path], known: set[str], seen: set[str]
) -> Iterator[str]:
    """The reviews that share no run of words with `known`, a paragraph a line.

    Those in `seen` are left out, and those that are returned are added to it.
    """
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = (" ".join(line.split()) for line in LINE_BREAKS.split(text))
        review = "\n".join(filter(None, lines))
        if review and review not in seen and known.isdisjoint(runs(review)):
            seen.add(review)
            yield review


def runs(text: str) -> set[str]:
    """All runs of eight words of a text, in lower case, no punctuation."""
    words = re.findall(r"[^\W_]+", text.lower())
    return {
        " ".join(words[start : start + RUN])
        for start in range(len(words) - RUN + 1)
    }


if __name__ == "__main__":
    main()
