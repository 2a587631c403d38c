"""Prints the pairs of STS-B that share no sentence with MRPC or RTE.

    python examples/small/other_pairs.py GLUE > other-pairs.tsv

STS-B contains pairs that were made of MRPC's. A model that has read those would
know development examples of MRPC.
"""

import re
import sys
from pathlib import Path

PAIRS = {  # the columns of the two sentences
    "MRPC": ("#1 String", "#2 String"),
    "RTE": ("sentence1", "sentence2"),
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a GLUE file, which has no quoting."""
    names, *lines = path.read_text(encoding="utf-8-sig").splitlines()
    names = names.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def words_of(sentence: str) -> str:
    """A sentence in lower case and without punctuation."""
    return " ".join(re.findall(r"\w+", sentence.lower()))


def main(folder: Path) -> None:
    """Prints a table with the columns sentence1, sentence2 and score."""
    known = {
        words_of(row[name])
        for task, names in PAIRS.items()
        for part in ("train", "dev")
        for row in rows_of(folder / task / f"{part}.tsv")
        for name in names
    }
    columns = ("sentence1", "sentence2", "score")
    print(*columns, sep="\t")
    for row in rows_of(folder / "STS-B" / "train.tsv"):
        if not {words_of(row[name]) for name in columns[:2]} & known:
            print(*(row[name] for name in columns), sep="\t")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
