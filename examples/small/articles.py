"""Makes text files of news articles, for cloze.py or continued pretraining.

    curl -O https://dumps.wikimedia.org/enwikinews/latest/\
enwikinews-latest-pages-articles.xml.bz2
    wikiextractor --json -o wikinews enwikinews-latest-pages-articles.xml.bz2
    curl -O http://www.daviddlewis.com/resources/testcollections/\
reuters21578/reuters21578.tar.gz
    mkdir reuters21578 && tar xzf reuters21578.tar.gz -C reuters21578
    curl -O http://mlg.ucd.ie/files/datasets/bbc-fulltext.zip
    unzip bbc-fulltext.zip
    python examples/small/articles.py --wikinews wikinews \\
        --reuters reuters21578 --bbc bbc --output articles \\
        --without GLUE/MRPC/dev.tsv SQUAD/dev-v1.1.json

The English Wikinews may be used under CC BY 2.5. Reuters-21578 and the articles
of BBC news (Greene and Cunningham 2006, "Practical Solutions to the Problem of
Diagonal Dominance in Kernel Document Clustering") were published for research.

The output has a title or a paragraph a line and a blank line between articles,
in random order: 500 in `held-out.txt`, the others in `train.txt`. Repeated
articles are left out, and those that share eight words in a row with a cell of
a table of `--without`, or with a context of a file of SQuAD: a pretrained model
should not know the texts that measure it. Shorter texts are not looked for, as
texts share so few words by chance.
"""

import argparse
import html
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from reviews import runs

HELD_OUT = 500  # articles
SHORTEST_ARTICLE = 400  # characters
SHORTEST_PARAGRAPH = 41  # characters; Wikinews' dates and captions have fewer
# In Reuters such a gap is between the columns of a table, and also begins a
# paragraph. An article with more gaps is a table or a list of paragraphs.
GAP = "   "
MOST_GAPS = 20
ARTICLE = re.compile(r"<REUTERS.*?</REUTERS>", re.DOTALL)
TITLE = re.compile(r"<TITLE>(.*?)</TITLE>", re.DOTALL)
BODY = re.compile(r"<BODY>(.*?)</BODY>", re.DOTALL)
END_OF_BODY = re.compile(r"\s*reuter\s*$", re.IGNORECASE)


def main() -> None:
    """Reads the arguments, writes both files, prints how much was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--wikinews", type=Path, required=True)
    parser.add_argument("--reuters", type=Path, required=True)
    parser.add_argument("--bbc", type=Path, required=True)
    parser.add_argument("--without", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    known = {run for path in arguments.without for run in runs_of_file(path)}
    kept: dict[str, None] = {}  # articles in their order, each once
    for read, folder, expected in (
        (wikinews, arguments.wikinews, "wiki_* of wikiextractor --json"),
        (reuters, arguments.reuters, "reut2-*.sgm of Reuters-21578"),
        (bbc, arguments.bbc, "*/*.txt of bbc-fulltext.zip"),
    ):
        found = ["\n".join(lines) for lines in read(folder)]
        if not found:
            sys.exit(f"error: {folder} has no articles in files {expected}.")
        before = len(kept)
        new = (each for each in found if known.isdisjoint(runs(each)))
        kept |= dict.fromkeys(new)
        print(f"{folder}: {len(kept) - before} of {len(found)} articles")
    articles = [*kept]
    if len(articles) <= HELD_OUT:
        sys.exit(
            f"error: {len(articles)} articles are too few, as {HELD_OUT} are "
            "held out."
        )
    random.Random(0).shuffle(articles)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, part in (
        ("held-out", articles[:HELD_OUT]),
        ("train", articles[HELD_OUT:]),
    ):
        path = arguments.output / f"{name}.txt"
        path.write_text("\n\n".join(part) + "\n", encoding="utf-8")
        print(f"{path}: {len(part)} articles")


def runs_of_file(path: Path) -> set[str]:
    """The runs of eight words in cells of a table or in SQuAD's contexts."""
    text = path.read_text(encoding="utf-8-sig")
    texts = re.split(r"[\t\n]", text)
    if path.suffix == ".json":
        texts = [
            paragraph["context"]
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
        ]
    found = {run for each in texts for run in runs(each)}
    if not found:
        sys.exit(
            f"error: {path} has no cell with eight words in a row. Give a "
            "table whose cells are separated by tabs, or a file of SQuAD."
        )
    return found


def wikinews(folder: Path) -> Iterator[list[str]]:
    """A title and paragraphs for each article of WikiExtractor's files."""
    for path in sorted(folder.glob("**/wiki_*")):
        for line in filter(None, path.read_text("utf-8").split("\n")):
            try:
                article = json.loads(line)
            except json.JSONDecodeError:
                sys.exit(f"error: {path} is not of wikiextractor --json.")
            lines = map(html.unescape, article["text"].split("\n"))
            paragraphs = [
                paragraph
                for paragraph in map(_one_line, lines)
                if len(paragraph) >= SHORTEST_PARAGRAPH
            ]
            if len(" ".join(paragraphs)) > SHORTEST_ARTICLE:
                title = _one_line(html.unescape(article["title"]))
                yield [title, *paragraphs]


def reuters(folder: Path) -> Iterator[list[str]]:
    """The same of Reuters-21578, without tables; some have no title."""
    for path in sorted(folder.glob("reut2-*.sgm")):
        for article in ARTICLE.findall(path.read_text(encoding="latin-1")):
            title, body = TITLE.search(article), BODY.search(article)
            if body is None:
                continue
            text = END_OF_BODY.sub("", html.unescape(body[1]).strip())
            paragraphs = [*filter(None, map(_one_line, text.split("\n    ")))]
            if (
                text.count(GAP) <= MOST_GAPS
                and len(" ".join(paragraphs)) >= SHORTEST_ARTICLE
            ):
                titles = [_one_line(html.unescape(title[1]))] if title else []
                yield titles + paragraphs


def bbc(folder: Path) -> Iterator[list[str]]:
    """The same of BBC news."""
    for path in sorted(folder.glob("*/*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if lines := [*filter(None, map(_one_line, text.split("\n")))]:
            yield lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
