"""Scripts of examples/small that make data: reviews and splits."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend

FOLDER = Path(__file__).parents[2] / "examples" / "small"
MEASURED = "an utterly charming film that will not outstay its welcome ."
REVIEWS = {
    "train/pos/0_9.txt": "Seen twice.<br /><br />A  second\nparagraph.",
    "train/unsup/0_0.txt": "Seen twice.<br /><br />A second paragraph.",
    "train/unsup/1_0.txt": "I quote: utterly charming film, that will NOT "
    "outstay its welcome!",
    "train/unsup/2_0.txt": "A charming film that will outstay its welcome.",
    "test/neg/0_1.txt": "The first one<br>is held out.",
    "test/neg/1_1.txt": "The second one is not read.",
}
ROWS = """sentence\tlabel
a dull film with a fine end \t0
a fine end \t1
dull \t0
the best film \t1
film \t1
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
        "A charming film that will outstay its welcome.\n"
    )
    held_out = (tmp_path / "text" / "held-out.txt").read_text()
    assert held_out == "The first one\nis held out.\n"
    assert "train.txt: 2 of 4 reviews" in done.stdout


def test_another_folder_of_reviews(reviews, tmp_path):
    (tmp_path / "aclImdb" / "train").rename(tmp_path / "other")
    done = run(*reviews)
    assert done.returncode == 1
    assert "Unpack aclImdb_v1.tar.gz" in done.stderr


def test_split_by_sentences(tmp_path):
    """No row to learn from is only a part of a held-out sentence."""
    table = tmp_path / "train.tsv"
    table.write_text(ROWS)
    done = run("sentences_split.py", table, tmp_path / "SST-2")
    assert done.returncode == 0, done.stderr
    held_out = (tmp_path / "SST-2" / "dev.tsv").read_text()
    assert held_out == "sentence\tlabel\na dull film with a fine end \t0\n"
    # "film" is a part of both sentences.
    train = (tmp_path / "SST-2" / "train.tsv").read_text()
    assert train == "sentence\tlabel\nthe best film \t1\nfilm \t1\n"
