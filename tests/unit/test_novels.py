"""examples/novels/corpus.py: books of two collections, as text files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend

SCRIPT = Path(__file__).parents[2] / "examples" / "novels" / "corpus.py"
NOVEL = """<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><p>By whom.</p>
</teiHeader><text><front><p>To my wife.</p></front><body>
<div type="group"><div type="chapter"><head>I</head>
<p>It was a <hi>dark</hi>
 night<note><p>In May.</p></note>.</p><quote><l>O night!</l>
<p>Dear Ann!</p></quote></div>
<div type="chapter"><p>{}</p><p> </p></div></div></body></text></TEI>"""
BOOK = """Title: X\r
*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r
Produced by Ann.\r
\r
CHAPTER I\r
\r
{}\r
\r
\r
\r
\r
{}\r
*** END OF THIS PROJECT GUTENBERG EBOOK X ***\r
License."""


NOVELS = dict.fromkeys(
    ("ENG19200_Lawrence", "ENG19201_Arlen", "ENG18400_Trollope"), "A novel."
)


def prose(name, words=4_000):
    """A paragraph that no other name has, two thirds of it common words."""
    return " ".join(f"the {name}{i} of" for i in range(words // 3)) + "."


@pytest.fixture
def run(tmp_path):
    eltec, gutenberg = tmp_path / "level1", tmp_path / "gutenberg"
    (gutenberg / "Ann").mkdir(parents=True)
    eltec.mkdir()

    def run(novels, books=None):
        for name, paragraph in novels.items():
            (eltec / f"{name}.xml").write_text(NOVEL.format(paragraph))
        for name, paragraphs in (books or {}).items():
            path = gutenberg / "Ann" / f"{name}.txt"
            path.write_text(BOOK.format(*paragraphs), newline="")
        command = [sys.executable, SCRIPT, "--eltec", eltec]
        command += ["--gutenberg", gutenberg, "--output", tmp_path / "text"]
        return subprocess.run(command, capture_output=True, text=True)

    return run


def test_both_collections(run, tmp_path):
    shared = prose("shared")
    done = run(
        NOVELS | {"ENG19200_Lawrence": prose("held")},
        {
            "Own Book: é": (prose("own"), shared.replace(" the", "\r\nthe")),
            "Own, another edition": (prose("other"), f"“{shared}”"),
            "Women in Love": (prose("held"), "And so on."),
            "Verse": ("The sea\r\n\r\n" * 4_000, ""),
            "Conte": (prose("c").replace("the", "le").replace("of", "de"), ""),
            "Short": ("Of the sea and the wind.", ""),
        },
    )
    assert done.returncode == 0, done.stderr
    assert "3 novels of ELTeC\n1 of 6 books" in done.stdout
    text = tmp_path / "text"
    assert (text / "held-out" / "ENG19200_Lawrence.txt").read_text() == (
        f"It was a dark night.\nDear Ann!\n\n{prose('held')}\n"
    )
    assert sorted(path.name for path in (text / "train").iterdir()) == [
        "0001_Ann_Own_Book_e.txt",
        "ENG18400_Trollope.txt",
    ]
    own = (text / "train" / "0001_Ann_Own_Book_e.txt").read_text()
    assert own == f"{prose('own')}\n\n{shared}\n"


def test_marks_of_the_publisher(run, tmp_path):
    """Some are missing or repeated; a sentence may end with a dash."""
    end = "End of Project Gutenberg, said the man."
    own = [prose("a"), f"{prose('c', 60)[:-1]}:--", f"{prose('d', 60)[:-1]}…"]
    books = {"Early end": (prose("b"), ""), "Own": ("\r\n\r\n".join(own), "")}
    run(NOVELS, books)
    path = tmp_path / "gutenberg/Ann/Early end.txt"
    path.write_text(f"{end}\n*END*THE SMALL PRINT! Ver. 1*\n{path.read_text()}")
    path = path.with_name("Own.txt")
    path.write_text(re.sub(r"\*\*\* (START|END).*", "", path.read_text()))
    assert "2 of 2 books" in run(NOVELS).stdout
    texts = sorted((tmp_path / "text/train").glob("0*"))
    early, plain = (path.read_text() for path in texts)
    assert early == f"{prose('b')}\n"
    assert plain == "\n".join(own) + "\n\nLicense.\n"


def test_another_folder(run, tmp_path):
    for novels, words in (
        ({}, "no ENG*.xml"),
        ({"ENG19200_Lawrence": "A."}, "lacks ENG19201_Arlen"),
        (NOVELS, "no AUTHOR/BOOK.txt"),
    ):
        done = run(novels)
        assert done.returncode == 1 and words in done.stderr
    path = tmp_path / "level1" / "ENG1.xml"
    path.write_text("<TEI/>")
    assert f"{path} has no text/body" in run({}).stderr
