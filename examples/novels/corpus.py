"""Makes text files of two public collections of books, for pretraining.

    git clone --depth 1 https://github.com/COST-ELTeC/ELTeC-eng
    git clone --depth 1 https://github.com/rcdm-uga/Gutenberg_Text
    python examples/novels/corpus.py --eltec ELTeC-eng/level1 \\
        --gutenberg Gutenberg_Text --output text

ELTeC-eng (CC BY 4.0) has 100 English novels of 1840 to 1920 in TEI, an XML
format for editions. Gutenberg_Text has some 3,400 books of Project Gutenberg,
in the public domain in the United States. The output has a paragraph a line and
a blank line between chapters: `text/train`, and `text/held-out` with the novels
that are held out. Of Project Gutenberg only English prose is kept, and no book
that shares a paragraph with a novel of ELTeC or with a book before.
"""

import argparse
import re
import statistics
import sys
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

HELD_OUT = ("ENG19200_Lawrence", "ENG19201_Arlen")
TEI = "{http://www.tei-c.org/ns/1.0}"

# Of the publisher's own text, before and after the book; the second form is
# the oldest.
START = re.compile(
    r"^(\*\*\* ?START OF TH(E|IS) PROJECT GUTENBERG|"
    r"\*END ?\*? ?THE SMALL PRINT).*$",
    re.M,
)
END = re.compile(r"^(\*\*\* ?END OF TH|End of (the )?Project Gutenberg)", re.M)
# Project Gutenberg separates paragraphs by one blank line, and chapters by
# several.
CHAPTERS = re.compile(r"\n[ \t]*(?:\n[ \t]*){3,}")
PARAGRAPHS = re.compile(r"\n[ \t]*\n")

ENDS = (".", "!", "?", ":", ";", "—", "--", "…")  # of a sentence
LONGEST_NAME = 100  # of a file; many systems have a limit of 255
FEWEST_WORDS = 3_000  # of a book
COMMON = frozenset(("the", "and", "of", "to", "a", "in", "he", "that", "was"))
COMMON_SHARE = 0.15  # of all words; other languages have nearly none of them
PROSE = 15  # words; verse, plays and tables have shorter paragraphs
LONG = 30  # words; a shorter paragraph may be in two books by chance

Chapter = list[str]  # its paragraphs, without line breaks


def main() -> None:
    """Reads the arguments, converts all books, prints what it has kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--eltec", type=Path, required=True)
    parser.add_argument("--gutenberg", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    novels = sorted(arguments.eltec.glob("ENG*.xml"))
    if not novels:
        sys.exit(f"error: {arguments.eltec} has no ENG*.xml. Clone ELTeC-eng.")
    seen: set[str] = set()
    missing = {*HELD_OUT} - {path.stem for path in novels}
    if missing:
        sys.exit(
            f"error: {arguments.eltec} lacks {', '.join(sorted(missing))}, "
            "which would be held out. Clone ELTeC-eng again."
        )
    for path in novels:
        chapters = tei_chapters(path)
        part = "held-out" if path.stem in HELD_OUT else "train"
        seen |= set(long_paragraphs(chapters))
        write(arguments.output / part / f"{path.stem}.txt", chapters)
    print(f"{len(novels)} novels of ELTeC")
    if arguments.gutenberg is None:
        return
    kept, books = 0, sorted(arguments.gutenberg.glob("*/*.txt"))
    if not books:
        sys.exit(
            f"error: {arguments.gutenberg} has no AUTHOR/BOOK.txt. Clone "
            "Gutenberg_Text."
        )
    for path in books:
        chapters = gutenberg_chapters(path.read_text("utf-8", "replace"))
        long = set(long_paragraphs(chapters))
        if not is_english_prose(chapters) or long & seen:
            continue
        seen |= long
        kept += 1
        name = f"{kept:04} {path.parent.name} {path.stem}"
        write(arguments.output / "train" / file_name(name), chapters)
    print(f"{kept} of {len(books)} books of Project Gutenberg")


def write(path: Path, chapters: list[Chapter]) -> None:
    """Writes a book, a paragraph a line, a blank line between chapters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(chapter) for chapter in chapters)
    path.write_text(text + "\n", encoding="utf-8")


def file_name(name: str) -> str:
    """Letters and digits of a name in ASCII, other characters as "_"."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore")
    return "_".join(re.findall(r"\w+", plain.decode()))[:LONGEST_NAME] + ".txt"


def tei_chapters(path: Path) -> list[Chapter]:
    """The chapters of a TEI file, without headings, verse and notes."""
    body = ET.parse(path).getroot().find(f"{TEI}text/{TEI}body")
    if body is None:
        sys.exit(f"error: {path} has no text/body. Clone ELTeC-eng again.")
    chapters = []
    for part in [body, *body.iter(f"{TEI}div")]:
        paragraphs = (one_line(text_of(p)) for p in own_paragraphs(part))
        chapters.append([paragraph for paragraph in paragraphs if paragraph])
    return [chapter for chapter in chapters if chapter]


def own_paragraphs(part: ET.Element) -> Iterator[ET.Element]:
    """The paragraphs of a part, not of a part inside it, in their order."""
    for child in part:
        if child.tag == f"{TEI}p":
            yield child
        elif child.tag == f"{TEI}quote":  # such as a letter
            yield from own_paragraphs(child)


def text_of(element: ET.Element) -> str:
    """The text of an element without that of its notes."""
    parts = [element.text or ""]
    for child in element:
        if child.tag != f"{TEI}note":
            parts.append(text_of(child))
        parts.append(child.tail or "")
    return "".join(parts)


def gutenberg_chapters(text: str) -> list[Chapter]:
    """The chapters of a plain-text book, without the publisher's own text."""
    text = text.replace("\r\n", "\n").replace("_", "")  # _italics_
    begin = max([0, *(start.end() for start in START.finditer(text))])
    end = END.search(text, begin)
    text = text[begin : end.start() if end else None]
    chapters = []
    for chapter in CHAPTERS.split(text):
        paragraphs = map(one_line, PARAGRAPHS.split(chapter))
        prose = [
            p
            for p in paragraphs
            if not (is_heading(p) or p.startswith("Produced by "))
        ]
        if prose:
            chapters.append(prose)
    return chapters


def one_line(text: str) -> str:
    """The text with single spaces for all white space."""
    return " ".join(text.split())


def is_heading(paragraph: str) -> bool:
    """Whether a paragraph has no small letter or does not end as a sentence."""
    ends = paragraph.rstrip("\"'”’)]»").endswith(ENDS)
    return paragraph.upper() == paragraph or not ends


def is_english_prose(chapters: list[Chapter]) -> bool:
    """Whether a book is long enough, English, and not verse or a play."""
    lengths, common = [], 0
    for chapter in chapters:
        for paragraph in chapter:
            words = paragraph.lower().split()
            lengths.append(len(words))
            common += sum(word in COMMON for word in words)
    return (
        sum(lengths) >= FEWEST_WORDS
        and common / sum(lengths) > COMMON_SHARE
        and statistics.median(lengths) >= PROSE
    )


def long_paragraphs(chapters: list[Chapter]) -> Iterator[str]:
    """The letters of paragraphs that no two books have by chance."""
    for chapter in chapters:
        for paragraph in chapter:
            words = re.findall(r"[a-z]+", paragraph.lower())
            if len(words) >= LONG:
                yield "".join(words)


if __name__ == "__main__":
    main()
