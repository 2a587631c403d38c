"""Splits SST-2's training rows by sentences.

    python examples/small/sentences_split.py GLUE/SST-2/train.tsv \\
        split-by-sentences/SST-2

Most of the 67,349 rows are phrases of about 6,900 sentences, the rows that no
other row contains. Rows chosen at random are therefore parts of sentences that
were learned, and far easier than new ones. Here every fifth sentence is held
out as a whole: `dev.tsv` has these sentences, as SST-2's own development file
has, and `train.tsv` the phrases that the other sentences contain. A phrase of
a held-out sentence is learned only if another sentence has it, too.
"""

import argparse
import sys
from pathlib import Path

EVERY = 5  # sentences, of which one is held out


def phrases_of(text: str) -> set[str]:
    """All runs of words of a text."""
    words = text.split()
    return {
        " ".join(words[start:end])
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
    }


def main(table: Path, output: Path) -> None:
    """Writes both tables, and prints how many rows they have."""
    header, *lines = table.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if not lines:
        sys.exit(f"error: {table} has no rows. Give GLUE's SST-2/train.tsv.")
    texts = {line: line.split("\t")[0].strip() for line in lines}
    contained: set[str] = set()  # the phrases of the sentences so far
    sentences = []
    # The longest first: a phrase comes after the sentence that contains it.
    for line in sorted(lines, key=lambda line: -len(texts[line].split())):
        if texts[line] not in contained:
            sentences.append(line)
            contained |= phrases_of(texts[line])
    held_out = sentences[::EVERY]
    learned = {
        phrase
        for line in {*sentences} - {*held_out}
        for phrase in phrases_of(texts[line])
    }
    train = [line for line in lines if texts[line] in learned]
    output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("dev", held_out)):
        text = "\n".join([header, *rows]) + "\n"
        (output / f"{name}.tsv").write_text(text, encoding="utf-8")
        print(f"{name}.tsv: {len(rows)} rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    main(arguments.table, arguments.output)
