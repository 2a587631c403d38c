"""Scripts of examples/small that make data: reviews and splits."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend

FOLDER = Path(__file__).parents[2] / "examples" / "small"
MEASURED = "an utterly charming film that will not outstay ."  # eight words
REVIEWS = {
    "train/pos/0_9.txt": "Seen twice.<br /><br />A  second\nparagraph.",
    "train/unsup/0_0.txt": "Seen twice.<br /><br />A second paragraph.",
    "train/unsup/1_0.txt": "I quote: an UTTERLY charming film, that will not "
    "outstay its welcome!",
    "train/unsup/2_0.txt": "One utterly charming film that will not outstay.",
    "test/neg/0_1.txt": "The first one<br>is held out.",
    **{f"test/neg/{i}_1.txt": f"Number {i} is not read." for i in range(1, 50)},
    "test/pos/0_9.txt": "Seen twice.<br />A second paragraph.",
}
ROWS = """sentence\tlabel
a dull film with a fine end \t0
a fine end \t1
dull \t0
the best film \t1
film \t1
two of us \t0
not for me \t0
one of them \t1
one too many \t0
one \t1
"""


def run(script, *arguments):
    command = [sys.executable, FOLDER / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def reviews(tmp_path):
    """The command for a small archive of reviews."""
    for name, text in REVIEWS.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table = tmp_path / "dev.tsv"
    table.write_text(f"sentence\tlabel\n{MEASURED}\t1\n")
    return [
        *("reviews.py", "--reviews", tmp_path / "aclImdb"),
        *("--without", table, "--output", tmp_path / "text"),
    ]


def test_reviews(reviews, tmp_path):
    """Each once, without those that quote eight words of what is measured."""
    done = run(*reviews)
    assert done.returncode == 0, done.stderr
    train = (tmp_path / "text" / "train.txt").read_text()
    assert train == (
        "Seen twice.\nA second paragraph.\n\n"
        "One utterly charming film that will not outstay.\n"
    )
    held_out = (tmp_path / "text" / "held-out.txt").read_text()
    assert held_out == "The first one\nis held out.\n"
    assert "train.txt: 2 of 4 reviews" in done.stdout
    # Of 51 test reviews two are chosen; the second is one of train.txt.
    assert "held-out.txt: 1 of 2 reviews" in done.stdout


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_of_the_reviews_is_missing(part, reviews, tmp_path):
    (tmp_path / "aclImdb" / part).rename(tmp_path / "other")
    done = run(*reviews)
    assert done.returncode == 1
    assert "Unpack aclImdb_v1.tar.gz" in done.stderr


def test_another_table(reviews, tmp_path):
    """Its first line would be taken for a header."""
    (tmp_path / "dev.tsv").write_text(f"{MEASURED}\t1\n")
    done = run(*reviews)
    assert done.returncode == 1
    assert "is no table of SST-2: it begins with 'an utterly" in done.stderr


def test_split_by_sentences(tmp_path):
    """Of a held-out sentence only what another one has, too, is learned."""
    table = tmp_path / "train.tsv"
    table.write_text(ROWS)
    done = run("sentences_split.py", table, tmp_path / "SST-2")
    assert done.returncode == 0, done.stderr
    header, *rows = ROWS.splitlines()
    held_out = (tmp_path / "SST-2" / "dev.tsv").read_text().splitlines()
    # The longest one and, of six, the last one of the same length.
    ends = ["a dull film with a fine end \t0", "one too many \t0"]
    assert held_out == [header, *ends]
    # "film" and "one" are parts of learned sentences, too.
    train = (tmp_path / "SST-2" / "train.tsv").read_text().splitlines()
    parts = ["a fine end \t1", "dull \t0"]
    assert train == [header, *(r for r in rows if r not in ends + parts)]
