"""Holds out three of the articles of SQuAD's training file.

    python examples/small/squad_split.py SQUAD/train-v1.1.json squad-split

Questions about an article that is learned from are easier than those about a
new one, and the dev file has other articles. The output is a folder like
SQuAD's: `dev-v1.1.json` has the second, seventh and eleventh article, and
`train-v1.1.json` the others.
"""

import argparse
import json
from pathlib import Path

HELD_OUT = 1, 6, 10  # of the articles, counted from 0


def main(file: Path, output: Path) -> None:
    """Writes both files, and prints how many articles they have."""
    articles = json.loads(file.read_text("utf-8"))["data"]
    output.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train", False), ("dev", True)):
        data = [
            article
            for number, article in enumerate(articles)
            if (number in HELD_OUT) == held_out
        ]
        text = json.dumps({"version": "1.1", "data": data})
        (output / f"{name}-v1.1.json").write_text(text, "utf-8")
        print(f"{name}-v1.1.json: {len(data)} articles")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    main(arguments.file, arguments.output)
