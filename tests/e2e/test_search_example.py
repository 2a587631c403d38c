"""examples/search: its tables, and search and routing with known vectors."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.any_backend

FOLDER = Path(__file__).parents[2] / "examples" / "search"
ANIMALS = ("fox", "hen", "cow", "owl")


@pytest.fixture
def search(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER.parent)
    import search

    yield search
    for name in ("search", "python_corpus"):
        del sys.modules[name]


def encode(texts):
    """One number for each animal: the vector says which ones a text names."""
    found = np.array([[word in text for word in ANIMALS] for text in texts])
    vectors = found + 1e-3  # a text without animals has a vector, too
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def question(number):
    return f"Return the animal that has number {number}."


def answer(number):
    return f"It runs as fast as any of {number} others."


def test_tables(search, tmp_path, monkeypatch):
    """Held-out docstrings are not learned from; the corpus has all answers."""
    library = tmp_path / "library"
    (library / "animals").mkdir(parents=True)
    functions = (
        f'def f{n}():\n    """{question(n)} {answer(n)}"""' for n in range(100)
    )
    (library / "animals" / "a.py").write_text("\n".join(functions))
    (library / "broken.py").write_text("def (")
    paths = {"stdlib": str(library)}
    monkeypatch.setattr(search.sysconfig, "get_paths", lambda: paths)
    search.write_data(tmp_path / "data")
    train, held_out, routes = (
        search.read_table(tmp_path / "data" / f"{name}.tsv")
        for name in ("train", "held_out", "routes")
    )
    assert len(train) + len(held_out) == 100 and 5 < len(held_out) < 40
    known = {question(n): answer(n) for n in range(100)}
    for row in (*train, *held_out):
        assert row["answer"] == known.pop(row["question"])
    assert {row["module"] for row in routes} == {"animals"}
    corpus = (tmp_path / "data" / "corpus.txt").read_text().splitlines()
    assert {row["answer"] for row in (*train, *held_out)} == {*corpus}


def test_search_and_routing(search, tmp_path, capsys):
    """A text goes to the module of its animal; others to none."""
    (tmp_path / "corpus.txt").write_text("the hen\nthe fox\nan owl\n")
    search.ask(encode, tmp_path, "where is the fox?")
    assert capsys.readouterr().out.splitlines()[0] == "1.00  the fox"
    known = encode(["a cow", "an owl", "the fox"])  # computed before
    search.ask(encode, tmp_path, "where is the fox?", known)
    assert capsys.readouterr().out.splitlines()[0] == "1.00  an owl"

    known = [(f"{word} {n}", word) for word in ANIMALS for n in range(60)]
    unknown = [(f"stone {n}", f"module_{n}") for n in range(60)]
    search.write_table(
        tmp_path / "routes.tsv", ("text", "module"), known + unknown
    )
    search.ROUTES = len(ANIMALS)
    search.route(encode, tmp_path)
    said = capsys.readouterr().out
    assert "of 4 modules: 1.000 are routed rightly" in said
    assert "1.000 are answered, of which 1.000 rightly" in said
    assert "sentences of other modules 1.000 are not answered" in said


def test_index(search, tmp_path, capsys):
    """Of few vectors, approximate search finds what the exact one does."""
    texts = [f"{a} {b}" for a in ANIMALS for b in ANIMALS]
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    search.write_table(
        tmp_path / "held_out.tsv", ("question", "answer"), [("fox hen", "a")]
    )
    search.FOUND = 2  # "fox hen" and "hen fox"
    search.index(lambda each: encode(each).astype("float32"), tmp_path)
    assert "HNSW: 1.000 of the 2 nearest of 16" in capsys.readouterr().out


def test_vectors_of_another_corpus(search, tmp_path):
    """Vectors that `embed` has written must be of these texts, and floats."""
    (tmp_path / "corpus.txt").write_text("fox\nhen\n")
    for wrong in (np.ones((3, 4)), np.ones((2, 4), "int8")):
        with pytest.raises(SystemExit, match=r"expected 2 vectors of .*again"):
            search.ask(encode, tmp_path, "fox", wrong)
