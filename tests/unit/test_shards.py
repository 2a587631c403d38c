"""Token shards as they are read; damaged folders."""

import errno
import hashlib
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from test_prepare import DOCUMENTS
from test_pretraining_data import write_shards

from keras_albert.corpus.shards import Shard, ShardSet, token_dtype
from keras_albert.errors import AlbertError
from keras_albert.storage import MANIFEST_FILE

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def folder(tiny_vocab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_shards(folder, tiny_vocab, DOCUMENTS)
    return folder / "shards"


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_counts_and_tokens(folder, tokenizer):
    """Sizes are of all documents; a file of tokens cannot be changed."""
    shards = ShardSet.open(folder)
    expected = [tokenizer.encode_batch(lines) for lines in DOCUMENTS]
    assert shards.num_documents == 3
    assert shards.num_tokens == sum(len(s) for d in expected for s in d)
    assert shards.vocab_size == tokenizer.vocab_size
    assert shards.manifest.fingerprint == tokenizer.fingerprint
    (shard,) = shards.shards
    assert shard.tokens.dtype == "uint16"
    with pytest.raises(ValueError, match="read-only"):
        shard.tokens[0] = 0


def test_a_folder_needs_nothing_beside_it(copy, tokenizer):
    """An older manifest says nothing of accents: there were none."""
    changed_manifest(copy, lambda manifest: manifest.pop("keep_accents"))
    shards = ShardSet.open(copy.rename(copy.with_name("moved")))
    shards.verify()
    assert shards.tokenizer().model_bytes == tokenizer.model_bytes
    assert not shards.tokenizer().keep_accents


PARTS = ("tokens", "sentences", "documents")


@pytest.mark.parametrize("part", PARTS)
def test_files_of_another_length(copy, part):
    path = copy / f"shard-00000.{part}.npy"
    whole = path.read_bytes()
    for content in (b"", whole[:40], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(AlbertError, match=rf"{path.name}.*damaged"):
            ShardSet.open(copy)
    path.unlink()
    with pytest.raises(AlbertError, match=rf"{path.name}: no such file"):
        ShardSet.open(copy)
    (copy / "spiece.model").unlink()
    with pytest.raises(AlbertError, match=r"spiece\.model"):
        ShardSet.open(copy)


def test_too_many_open_files(copy, monkeypatch):
    def load(path, **_):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(AlbertError, match=r"cannot be opened .*ulimit -n 4096"):
        ShardSet.open(copy)
    sound = OSError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(np, "load", Mock(side_effect=sound))
    with pytest.raises(PermissionError):
        ShardSet.open(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:-1],
        lambda a: a.astype("int16"),
        lambda a: a[:, None],
        lambda a: a[::-1].copy(),
        lambda a: a + 1,
        lambda a: a[[0, 2, 1, *range(3, len(a))]],
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


def changed_manifest(folder, change):
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_tokens_outside_of_the_vocabulary(copy):
    """Under a checksum that fits, as of a faulty writer."""
    last = ShardSet.open(copy).vocab_size - 1
    path = copy / "shard-00000.tokens.npy"
    tokens = np.load(path)
    for token in (last, last + 1):
        tokens[3] = token
        np.save(path, tokens)
        sums = {"tokens": hashlib.sha256(path.read_bytes()).hexdigest()}
        changed_manifest(
            copy, lambda m, sums=sums: m["shards"][0]["sha256"].update(sums)
        )
        if token == last:
            ShardSet.open(copy).verify()
    message = rf"tokens\.npy: it has the token id {last + 1}, .* 0 to {last}\."
    with pytest.raises(AlbertError, match=message):
        ShardSet.open(copy).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "reads format 1.*version=2"),
        (lambda m: m.pop("format_version"), "not the manifest"),
        (lambda m: m.pop("fingerprint"), "manifest is damaged"),
        (lambda m: m.update(vocab_size="300"), "manifest is damaged"),
        (lambda m: m.update(shards=[]), "hold no document"),
        (lambda m: m.update(shards=[7]), "manifest is damaged"),
        (lambda m: m["shards"][0].pop("files"), "manifest is damaged"),
        (
            lambda m: m["shards"][0]["files"].update(tokens="../x.npy"),
            "manifest is damaged",
        ),
        (lambda m: m.update(fingerprint="0"), "not the vocabulary"),
        (lambda m: m.update(keep_accents=True), "not the vocabulary"),
        (lambda m: m.update(keep_accents="no"), "manifest is damaged"),
    ],
)
def test_foreign_or_damaged_manifest(copy, change, message):
    changed_manifest(copy, change)
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


def test_tokens_take_two_bytes_where_they_fit():
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.int32


def test_the_share_of_documents_of_one_line():
    shards, nothing = ShardSet.__new__(ShardSet), np.zeros(0)
    shards.shards = tuple(
        Shard(nothing, nothing, np.array(documents))
        for documents in ([0, 1, 3], [0, 1, 4])
    )
    assert shards.share_of_single_lines == 0.5
