"""examples/novels/corpus.py: books of two collections, as text files."""

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
 night<note><p>In May.</p></note>.</p><quote><l>O night!</l></quote></div>
<div type="chapter"><p>{}</p><p> </p></div></div></body></text></TEI>"""
BOOK = """Title: X\r
*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r
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
        {"ENG19200_Lawrence": prose("held"), "ENG18400_Trollope": prose("t")},
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
    assert "2 novels of ELTeC\n1 of 6 books" in done.stdout
    text = tmp_path / "text"
    assert (text / "held-out" / "ENG19200_Lawrence.txt").read_text() == (
        f"It was a dark night.\n\n{prose('held')}\n"
    )
    assert sorted(path.name for path in (text / "train").iterdir()) == [
        "0001_Ann_Own_Book_e.txt",
        "ENG18400_Trollope.txt",
    ]
    own = (text / "train" / "0001_Ann_Own_Book_e.txt").read_text()
    assert own == f"{prose('own')}\n\n{shared}\n"


def test_another_folder(run):
    done = run({})
    assert done.returncode == 1 and "no ENG*.xml" in done.stderr
