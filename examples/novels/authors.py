"""Tables of passages and who wrote them, to measure reading of long texts.

    python examples/novels/authors.py text/train authors

The first folder holds novels named ENGyyyyn_Author.txt, as corpus.py writes
them. Of each author with two novels or more, 40 passages of 300 words go to
train.jsonl, and 40 of the last novel to test.jsonl, so that names of persons
and places do not tell the author.
"""

import collections
import json
import random
import sys
from pathlib import Path

PASSAGES, WORDS = 40, 300
SKIPPED = 2000  # words at the beginning, among them title and author


def main(novels: Path, output: Path) -> None:
    """Writes both tables."""
    books = collections.defaultdict(list)
    for path in sorted(novels.glob("ENG*_*.txt")):
        books[path.stem.split("_")[1]].append(path)
    books = {k: v for k, v in sorted(books.items()) if len(v) > 1}
    if not books:
        sys.exit(
            f"error: {novels} has no two novels ENGyyyyn_Author.txt of one "
            "author. Give the folder text/train that corpus.py writes."
        )
    if output.exists():
        sys.exit(f"error: {output} exists. Choose another output.")
    output.mkdir(parents=True)
    rng = random.Random(0)
    for name, part in (("train", slice(-1)), ("test", slice(-1, None))):
        rows = []
        for author, paths in books.items():
            every = [text for path in paths[part] for text in passages(path)]
            if len(every) < PASSAGES:
                sys.exit(
                    f"error: {author} has {len(every)} passages for {name}, "
                    f"and {PASSAGES} are needed. Remove these novels."
                )
            for text in rng.sample(every, PASSAGES):
                rows.append({"text": text, "label": author})
        rng.shuffle(rows)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        table = output / f"{name}.jsonl"
        table.write_text("".join(lines), encoding="utf-8")
        print(f"{table}: {len(rows)} passages of {len(books)} authors")


def passages(path: Path) -> list[str]:
    """The text of a novel in parts."""
    words = path.read_text(encoding="utf-8").split()[SKIPPED:]
    starts = range(0, len(words) - WORDS, WORDS)
    return [" ".join(words[start : start + WORDS]) for start in starts]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
