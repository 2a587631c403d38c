"""Adds questions about other texts to SQuAD's training file.

    for texts in new_wiki amazon_reviews reddit; do
        curl -O https://raw.githubusercontent.com/modestyachts/\
squadshifts-website/master/datasets/${texts}_v1.0.json
    done
    python examples/small/more_questions.py --train SQUAD/train-v1.1.json \\
        --more new_wiki_v1.0.json amazon_reviews_v1.0.json reddit_v1.0.json \\
        --without SQUAD/dev-v1.1.json --output more

Miller et al. 2020 (arXiv:2004.14444) collected questions like those of SQuAD
about other articles of Wikipedia, product reviews and posts of Reddit, to see
how well models that have learned from SQuAD answer them. They may be used under
CC BY 4.0. A model that has learned from them must not be measured with them.

The output is a folder like SQuAD's: `train-v1.1.json` has the articles of
`--train` and of `--more`, and `dev-v1.1.json` is a copy of the file of
`--without`. Paragraphs of `--more` that share eight words in a row with one of
this file are left out. Of a question's several answers the first is kept, as
SQuAD's training file has one.
"""

import argparse
import json
import shutil
from pathlib import Path

from articles import runs_of_file
from reviews import runs


def main() -> None:
    """Reads the arguments, writes the folder, prints how much was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--more", type=Path, nargs="+", required=True)
    parser.add_argument("--without", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    known = runs_of_file(arguments.without)
    data = articles_of(arguments.train)
    for path in arguments.more:
        articles = articles_of(path)
        kept = [without_paragraphs(article, known) for article in articles]
        print(f"{path}: {questions(kept)} of {questions(articles)} questions")
        data += kept
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": "1.1", "data": data})
    (arguments.output / "train-v1.1.json").write_text(text, "utf-8")
    shutil.copy(arguments.without, arguments.output / "dev-v1.1.json")
    print(f"{arguments.output}: {questions(data)} questions")


def articles_of(path: Path) -> list[dict]:
    """The articles of a file in SQuAD's layout."""
    return json.loads(path.read_text("utf-8"))["data"]


def without_paragraphs(article: dict, known: set[str]) -> dict:
    """The article's paragraphs without known runs, an answer a question."""
    paragraphs = [
        {
            "context": paragraph["context"],
            "qas": [
                {**question, "answers": question["answers"][:1]}
                for question in paragraph["qas"]
            ],
        }
        for paragraph in article["paragraphs"]
        if known.isdisjoint(runs(paragraph["context"]))
    ]
    return {"title": article["title"], "paragraphs": paragraphs}


def questions(articles: list[dict]) -> int:
    """The number of questions about the articles."""
    return sum(
        len(paragraph["qas"])
        for article in articles
        for paragraph in article["paragraphs"]
    )


if __name__ == "__main__":
    main()
