"""Text to token shards and back; damaged folders."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_albert.config import AlbertError, PrepareRun
from keras_albert.data.shards import (
    MANIFEST_FILE,
    Manifest,
    ShardSet,
    prepare,
    token_dtype,
)
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend

DOCUMENTS = [
    ["The fox chased two hens.", "A dog found nothing."],
    ["My uncle sold the old barn in 1923."],
    ["Élodie painted a letter.", "near Prague", "£9 of tea"],
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in DOCUMENTS))
    return path


@pytest.fixture(scope="module")
def folder(corpus, tiny_vocab, tmp_path_factory):
    output = tmp_path_factory.mktemp("shards") / "new" / "shards"
    prepare(PrepareRun(input=(corpus,), vocab=tiny_vocab, output=output))
    return output


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_every_sentence_comes_back(folder, tiny_vocab):
    tokenizer = Tokenizer(tiny_vocab)
    shards = ShardSet.open(folder)
    expected = [tokenizer.encode_batch(lines) for lines in DOCUMENTS]
    found = [
        [sentence.tolist() for sentence in shards.sentences(document)]
        for document in range(shards.num_documents)
    ]
    assert found == expected
    assert shards.num_documents == 3
    assert shards.num_sentences == 6
    assert shards.num_tokens == sum(len(s) for d in expected for s in d)
    assert shards.vocab_size == tokenizer.vocab_size
    assert shards.fingerprint == tokenizer.fingerprint
    first, second = shards.spans(2, 0, 1, 3)
    assert first.tolist() == expected[2][0]
    assert second.tolist() == expected[2][1] + expected[2][2]
    assert first.dtype == "uint16"
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    for document in (-1, 3):
        with pytest.raises(IndexError):
            shards.sentences(document)


def test_a_folder_needs_nothing_beside_it(copy, tiny_vocab):
    moved = copy.rename(copy.with_name("moved"))
    shards = ShardSet.open(moved)
    shards.verify()
    assert shards.tokenizer().encode("two hens") == Tokenizer(
        tiny_vocab
    ).encode("two hens")


def test_small_shards_hold_the_same_documents(
    corpus, folder, tiny_vocab, tmp_path
):
    output = tmp_path / "small"
    manifest = prepare(
        PrepareRun(
            input=(corpus,), vocab=tiny_vocab, output=output, shard_tokens=1
        )
    )
    # A document is never cut, so each has a shard of its own.
    assert [shard.counts["documents"] for shard in manifest.shards] == [1, 1, 1]
    whole, small = ShardSet.open(folder), ShardSet.open(output)
    small.verify()
    for document in range(3):
        for a, b in zip(
            whole.sentences(document), small.sentences(document), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_what_has_no_token_is_dropped(tiny_vocab, tmp_path):
    text = tmp_path / "a.txt"
    # U+0301 alone is a combining accent: normalization removes it.
    text.write_text("\u0301\n\ntwo hens\n\u0301\nnothing\n")
    output = tmp_path / "out"
    prepare(PrepareRun(input=(text,), vocab=tiny_vocab, output=output))
    shards = ShardSet.open(output)
    assert (shards.num_documents, shards.num_sentences) == (1, 2)
    text.write_text("\u0301\n")
    with pytest.raises(AlbertError, match="no token came out"):
        prepare(
            PrepareRun(input=(text,), vocab=tiny_vocab, output=tmp_path / "no")
        )
    assert not (tmp_path / "no").exists()


def test_a_log_gets_one_line(corpus, tiny_vocab, tmp_path, capsys):
    prepare(
        PrepareRun(
            input=(corpus,), vocab=tiny_vocab, output=tmp_path / "shards"
        )
    )
    shown = capsys.readouterr().err
    assert shown.startswith("3 documents, ")
    assert shown.endswith("; 1 shard\n") and shown.count("\n") == 1
    assert "tokens/s" in shown


def test_a_mistake_leaves_nothing_behind(corpus, tiny_vocab, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\n\xff\n")
    work = tmp_path / "work"
    work.mkdir()

    def attempt(inputs, vocab=tiny_vocab, output=work / "out"):
        prepare(PrepareRun(input=inputs, vocab=vocab, output=output))

    with pytest.raises(AlbertError, match=r"bad\.txt:3"):
        attempt((corpus, bad))
    with pytest.raises(AlbertError, match="no such file"):
        attempt((corpus, tmp_path / "gone.txt"))
    with pytest.raises(AlbertError, match="no such file or folder"):
        attempt((corpus,), vocab=tmp_path / "gone.model")
    assert list(work.iterdir()) == []
    with pytest.raises(AlbertError, match="cannot be written"):
        attempt((corpus,), output=bad / "below a file")


def test_an_output_in_use_is_left_alone(corpus, tiny_vocab, tmp_path):
    (tmp_path / "theirs").write_text("x")
    with pytest.raises(AlbertError, match="not empty"):
        prepare(PrepareRun(input=(corpus,), vocab=tiny_vocab, output=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_leaves_no_shards(corpus, tiny_vocab, tmp_path):
    code = (
        "import itertools, sys; from pathlib import Path\n"
        "from keras_albert.config import PrepareRun\n"
        "from keras_albert.data import shards\n"
        "endless = itertools.repeat(['two hens in the old barn'])\n"
        "shards.read_documents = lambda paths: endless\n"
        "a, b, c = map(Path, sys.argv[1:])\n"
        "shards.prepare(PrepareRun((a,), b, c, shard_tokens=100_000))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, corpus, tiny_vocab, tmp_path / "out"],
    )
    try:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("out.unfinished-*/shard-*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(AlbertError, match="not a folder of token shards"):
        ShardSet.open(tmp_path / "out")
    (leftover,) = tmp_path.glob("out.unfinished-*")
    with pytest.raises(AlbertError, match="not a folder of token shards"):
        ShardSet.open(leftover)
    text = tmp_path / "text.txt"
    text.write_text("two hens")
    prepare(  # the empty folder it made is no obstacle
        PrepareRun(input=(text,), vocab=tiny_vocab, output=tmp_path / "out")
    )
    assert ShardSet.open(tmp_path / "out").num_documents == 1


PARTS = ("tokens", "sentences", "documents")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("keep", [0, 40, -1])
def test_truncated_file(copy, part, keep):
    path = copy / f"shard-00000.{part}.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(AlbertError, match=rf"{path.name}.*damaged"):
        ShardSet.open(copy)


@pytest.mark.parametrize("part", PARTS)
def test_missing_or_longer_file(copy, part):
    path = copy / f"shard-00000.{part}.npy"
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    with pytest.raises(AlbertError, match=path.name):
        ShardSet.open(copy)
    path.unlink()
    with pytest.raises(AlbertError, match=rf"{path.name}: no such file"):
        ShardSet.open(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:-1],
        lambda a: a.astype("int16"),
        lambda a: a[:, None],
        lambda a: a[::-1].copy(),
        lambda a: a * 0,
        lambda a: a + 1,
        lambda a: a[[0, 2, 1, *range(3, len(a))]],
        lambda a: a[[0, 1, 1, *range(3, len(a))]],
    ],
)
@pytest.mark.parametrize("part", PARTS[1:])
def test_unsound_offsets(copy, part, change):
    path = copy / f"shard-00000.{part}.npy"
    np.save(path, change(np.load(path)))
    with pytest.raises(AlbertError, match=path.name):
        ShardSet.open(copy)


def test_a_flipped_bit_is_found_by_verify(copy):
    path = copy / "shard-00000.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(AlbertError, match=r"tokens\.npy: its checksum"):
        ShardSet.open(copy).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "reads format 1.*version=2"),
        (lambda m: m.pop("format_version"), "not the manifest"),
        (lambda m: m.pop("fingerprint"), "manifest is damaged"),
        (lambda m: m.update(extra=1), "manifest is damaged"),
        (lambda m: m.update(vocab_size="300"), "manifest is damaged"),
        (lambda m: m.update(shards=[]), "hold no document"),
        (lambda m: m.update(shards=[7]), "manifest is damaged"),
        (lambda m: m["shards"][0].pop("files"), "manifest is damaged"),
        (
            lambda m: m["shards"][0]["files"].update(tokens="../x.npy"),
            "manifest is damaged",
        ),
        (lambda m: m.update(fingerprint="0"), "not the vocabulary"),
        (lambda m: m.update(lower_case=False), "not the vocabulary"),
    ],
)
def test_foreign_or_damaged_manifest(copy, change, message):
    path = copy / MANIFEST_FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(AlbertError, match=message):
        ShardSet.open(copy)


def test_foreign_folder(tmp_path):
    with pytest.raises(AlbertError, match="found nothing"):
        ShardSet.open(tmp_path / "gone")
    with pytest.raises(AlbertError, match="keras-albert prepare"):
        ShardSet.open(tmp_path)
    for content in ("", "[]", "{"):
        (tmp_path / MANIFEST_FILE).write_text(content)
        with pytest.raises(AlbertError, match=MANIFEST_FILE):
            ShardSet.open(tmp_path)


def test_missing_vocabulary(copy):
    (copy / "spiece.model").unlink()
    with pytest.raises(AlbertError, match=r"spiece\.model"):
        ShardSet.open(copy)


def test_manifest_survives_the_file(folder):
    manifest = Manifest.read(folder)
    before = (folder / MANIFEST_FILE).read_bytes()
    manifest.write(folder)
    assert (folder / MANIFEST_FILE).read_bytes() == before


def test_tokens_take_two_bytes_where_they_fit():
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.int32
