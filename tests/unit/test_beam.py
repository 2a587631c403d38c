"""The same shards from an Apache Beam pipeline, on its local runner."""

import gzip
import importlib.util
import json
import sys

import pyarrow
import pytest
from pyarrow.parquet import write_table

from keras_albert.cli import main
from keras_albert.corpus import beam
from keras_albert.corpus.beam import prepare_with_beam
from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare
from keras_albert.errors import AlbertError
from keras_albert.text.files import find_files

pytestmark = pytest.mark.any_backend
needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None,
    reason="needs apache-beam (pip install 'keras-albert[beam]')",
)


@pytest.fixture
def corpus(tiny_lines, tmp_path):
    """A file of each format, and one that is cut."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    text = "\n\n".join(
        "\n".join(tiny_lines[i : i + 9]) for i in range(0, 540, 9)
    )
    rows = [
        {"text": "\n".join(tiny_lines[i : i + 5])} for i in range(0, 600, 5)
    ]
    jsonl = "".join(json.dumps(row) + "\n" for row in rows[:40])
    (folder / "a.txt").write_text(text)
    (folder / "b.txt.gz").write_bytes(gzip.compress(text[:3_000].encode()))
    (folder / "c.jsonl").write_text(jsonl)
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(jsonl.encode()))
    table = pyarrow.Table.from_pylist(rows[40:])
    write_table(table, folder / "e.parquet", row_group_size=30)
    return folder


def content(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name != "report.json"  # of `prepare` on one machine, to go on
    }


@needs_beam
@pytest.mark.proof
def test_shards_are_the_same_bytes(corpus, tiny_vocab, tmp_path):
    inputs = (str(corpus / "*.txt*"), str(corpus / "[c-e]*"))
    here, there = tmp_path / "here", tmp_path / "there"
    prepare(PrepareRun(inputs, tiny_vocab, here, shard_bytes=9_000, workers=1))
    main(
        ["prepare", "--input", *inputs, "--vocab", str(tiny_vocab)]
        + ["--output", str(there), "--shard-bytes", "9000"]
        + ["--beam", "runner=DirectRunner", "direct_num_workers=2"]
        + ["direct_running_mode=multi_processing"]
    )
    assert content(there) == content(here)
    assert len(list(here.glob("*.tokens.npy"))) > 5


@needs_beam
@pytest.mark.proof
def test_mistakes(corpus, tiny_vocab, tmp_path):
    def run(pattern, output, runner="DirectRunner"):
        options = {"beam": (f"runner={runner}",)}
        prepare_with_beam(PrepareRun((pattern,), tiny_vocab, output, **options))

    with pytest.raises(AlbertError, match=r"\*\.md: no file matches"):
        run(str(corpus / "*.md"), tmp_path / "out")
    with pytest.raises(AlbertError, match="not empty"):
        run(str(corpus / "*.txt"), corpus)
    with pytest.raises(AlbertError, match=r"runner=Nonsense.*DataflowRunner"):
        run(str(corpus / "*.txt"), tmp_path / "out", "Nonsense")


@needs_beam
@pytest.mark.proof
@pytest.mark.parametrize(
    "pattern", ["**/*.txt", "a/**/b/**/*.txt", "*.txt", "a/.h*/*"]
)
def test_patterns_find_the_files_that_they_find_without_beam(tmp_path, pattern):
    names = ["1.txt", ".2.txt", "a/3.txt", "a/.h/4.txt", "a/b/5.txt"]
    for name in (*names, "a/x/b/y/z/6.txt", "a/b/c/7.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("two hens\n")
    (folder := tmp_path / ".data").mkdir()
    (tmp_path / "1.txt").rename(folder / "1.txt")
    (tmp_path / "a").rename(folder / "a")
    expected = [str(path) for path in find_files([folder / pattern])]
    found = beam._find_files((str(folder / pattern),))
    assert sorted(file.path for file in found) == sorted(expected)
    assert expected


def test_beam_is_named_where_it_is_missing(tiny_vocab, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(AlbertError, match=r"pip install.*\[beam\]"):
        prepare_with_beam(
            PrepareRun(("a.txt",), tiny_vocab, tmp_path / "out", beam=())
        )
