"""Vocabulary training: the recipe, determinism, and every error."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from commands import output_of

from keras_albert.corpus.config import VocabRun
from keras_albert.corpus.vocabulary import train_vocabulary
from keras_albert.errors import AlbertError
from keras_albert.storage import DiskFull
from keras_albert.text.tokenizer import Tokenizer

pytestmark = pytest.mark.any_backend

LINES = [
    f"The {animal} Élan sat near {number} barns, for £{number}.\n"
    for animal in ("fox", "dog", "hen")
    for number in range(70)
]


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n  \n" + "".join(LINES), encoding="utf-8")
    return file


def run(*files, name="vocab", **changes):
    output = files[0].parent / name
    return VocabRun(files, output, **{"vocab_size": 41, **changes})


def test_recipe(corpus):
    tokenizer = train_vocabulary(run(corpus))
    assert [tokenizer.id_to_piece(i) for i in range(13)] == [
        *("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        *("(", ")", '"', "-", ".", "–", "£", "€"),
    ]
    assert tokenizer.vocab_size == 41
    assert tokenizer.lower_case
    pieces = "".join(tokenizer.id_to_piece(i) for i in range(13, 41))
    assert pieces == pieces.lower() and "é" not in pieces
    assert 1 not in tokenizer.encode("The hen Élan, £7.")
    again = Tokenizer(corpus.parent / "vocab")
    assert again.fingerprint == tokenizer.fingerprint


def test_marks_are_kept_where_wanted(tmp_path):
    """Voiced kana, Hindi's vowel signs, German: nothing is another letter."""
    text = "がぎ かき हिन्दी हनद Käse Kase"
    path = tmp_path / "text.txt"
    path.write_text(f"{text}\n" * 9)
    tokenizer = train_vocabulary(run(path, keep_accents=True, vocab_size=32))
    assert tokenizer.keep_accents
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower()
    assert Tokenizer(tmp_path / "vocab").encode(text) == tokenizer.encode(text)
    published = train_vocabulary(run(path, name="published", vocab_size=27))
    found = published.decode(published.encode(text)).split()
    assert found[0] == found[1] and found[4] == found[5] == "kase"


def test_cased(corpus):
    tokenizer = train_vocabulary(run(corpus, cased=True))
    assert not tokenizer.lower_case
    assert not Tokenizer(corpus.parent / "vocab").lower_case
    assert tokenizer.piece_to_id("T") != 1
    assert tokenizer.piece_to_id("É") == 1  # marks go in any case


def test_same_input_same_bytes(corpus):
    first = train_vocabulary(run(corpus))
    # Another process: no state of this one may be part of the result.
    second = corpus.parent / "second"
    command = sys.executable, "-m", "keras_albert.cli", "vocab"
    output_of(
        *command, "--vocab-size=41", "--input", corpus, "--output", second
    )
    assert (second / "spiece.model").read_bytes() == first.model_bytes


def test_files_are_read_in_order(corpus, tmp_path):
    """Two files, and another format, that hold the same text."""
    half = len(LINES) // 2
    parts = tmp_path / "a.txt", tmp_path / "b.txt"
    parts[0].write_text("".join(LINES[:half]), encoding="utf-8")
    parts[1].write_text("".join(LINES[half:]).rstrip(), encoding="utf-8")
    whole = train_vocabulary(run(corpus))
    split = train_vocabulary(run(*parts, name="split"))
    rows = (json.dumps({"body": line}) + "\n" for line in LINES)
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(rows).encode()))
    other = train_vocabulary(run(packed, name="rows", column="body"))
    assert split.model_bytes == whole.model_bytes == other.model_bytes


@pytest.mark.parametrize("dropped", ["\n", " "])
def test_no_line_is_dropped(tmp_path, dropped):
    """Longer than SentencePiece's limit of 4192 bytes, or with NUL."""
    file = tmp_path / "odd.txt"
    put = {"\n": "", " ": "\0"}[dropped]
    file.write_text("".join(LINES).replace(dropped, put), encoding="utf-8")
    assert train_vocabulary(run(file)).piece_to_id("x") != 1


def refusal(a_run, message):
    with pytest.raises(AlbertError, match=message) as raised:
        train_vocabulary(a_run)
    assert "\n" not in str(raised.value)
    assert not a_run.output.exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("size", "bound", "step"), [(30_000, "most", 1), (9, "least", -1)]
)
def test_vocab_size_out_of_range(corpus, size, bound, step):
    said = refusal(run(corpus, vocab_size=size), rf"Pass at {bound} \d+")
    limit = int(said.split(f"at {bound} ")[1].split(",")[0])
    # The remedy works, and is the limit.
    refusal(run(corpus, vocab_size=limit + step), f"{bound} {limit},")
    assert train_vocabulary(run(corpus, vocab_size=limit))


@pytest.mark.parametrize(
    ("coverage", "is_valid"), [(0.98, True), (0.97, False), (1.1, False)]
)
def test_character_coverage(corpus, coverage, is_valid):
    """SentencePiece refuses less than 0.98."""
    told = {"vocab_size": 40, "character_coverage": coverage}
    if is_valid:
        assert train_vocabulary(run(corpus, **told))
        return
    with pytest.raises(AlbertError, match=rf"in \[0.98, 1\].*{coverage}"):
        run(corpus, **told)


@pytest.mark.parametrize("content", ["", "\u0301\n\0\n"])
def test_texts_that_train_nothing(tmp_path, content):
    file = tmp_path / "a.txt"
    file.write_text(content)
    refusal(run(file), r"no text to train on .*a\.txt")


def test_nothing_is_trained_for_an_output_that_cannot_be(corpus, monkeypatch):
    monkeypatch.setattr(
        "keras_albert.corpus.vocabulary._train", lambda run: pytest.fail()
    )
    impossible = Path("/proc/none/vocab")
    refusal(VocabRun((corpus,), impossible), "output folder cannot be made")


def test_nothing_is_left_of_a_vocabulary_that_is_not_whole(corpus, monkeypatch):
    """So that the same command works when there is room again."""
    save = Tokenizer.save

    def full(self, folder):
        save(self, folder)
        raise DiskFull(folder, "no space left")

    monkeypatch.setattr(Tokenizer, "save", full)
    refusal(run(corpus), "Make room and give the same command again")
    assert not (corpus.parent / "vocab").exists()
    monkeypatch.undo()
    assert train_vocabulary(run(corpus)).vocab_size == 41


def test_the_vocabulary_of_another_run_stays(corpus, monkeypatch):
    """Two runs begin with the same empty folder; the other one is faster."""
    other = corpus.parent / "vocab" / "spiece.model"

    def slow(run):
        other.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_albert.corpus.vocabulary._train", slow)
    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(run(corpus))
    assert other.exists()


def test_missing_input(corpus, tmp_path):
    refusal(VocabRun((), tmp_path / "vocab"), "no text file given")
    absent = run(corpus, tmp_path / "absent.txt")
    refusal(absent, r"absent\.txt: no such file")
