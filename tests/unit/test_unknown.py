"""Text that a vocabulary cannot read: counted by hand, said, refused."""

import dataclasses
import re
from types import SimpleNamespace
from unittest.mock import Mock

import commands
import keras
import numpy as np
import pytest
from small import TEXT_CONFIG

import keras_albert as ka
from keras_albert.corpus import write_shards as units
from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.prepare import prepare
from keras_albert.exports import check as checking
from keras_albert.exports.config import CheckRun, EmbedRun
from keras_albert.exports.embed import embed
from keras_albert.finetuning import predict as predicting, run as training
from keras_albert.finetuning.config import FinetuneRun, PredictRun
from keras_albert.finetuning.predict import predict
from keras_albert.text import unknown
from keras_albert.text.model_inputs import text_rows, word_rows
from keras_albert.text.unknown import (
    PieceCount,
    check_readable,
    count_pieces,
    count_rows,
    example_of,
    texts_of,
)

CHINESE = "我喜欢这部电影"  # "▁", <unk>
# Pieces of the vocabulary of these tests, in which a lone "▁" is not counted:
COUNTS = {
    CHINESE: (1, 1),
    "我喜欢，这部电影。": (3, 2),  # ▁ <unk> , <unk>
    "привет мир": (2, 2),  # ▁ <unk> ▁ <unk>
    "nothing": (5, 0),  # ▁n o th in g
    "two hens": (6, 0),  # ▁t w o ▁ he n s
    "two hens ж": (7, 1),
    "the fox 😀": (5, 1),  # ▁t he ▁fo x ▁ <unk>
    "": (0, 0),
}
pytestmark = pytest.mark.on_torch


def test_counts(tokenizer, monkeypatch):
    monkeypatch.setattr(unknown, "COUNTED_AT_ONCE", 2)
    texts = list(COUNTS)
    for text, expected in COUNTS.items():
        count = count_pieces(tokenizer, tokenizer.encode(text))
        assert (count.pieces, count.unknown) == expected, text
    # [CLS], [SEP] and padding are none; what is cut off is not read.
    whole = np.sum([*COUNTS.values()], axis=0)
    rows = text_rows(tokenizer, texts, None, 61)
    assert count_rows(tokenizer, rows) == PieceCount(*whole.tolist())
    ids = tokenizer(texts, pad_to=512)["token_ids"]
    assert count_pieces(tokenizer, ids) == PieceCount(*whole.tolist())
    pairs = text_rows(tokenizer, [CHINESE], ["nothing"], 61)
    assert count_rows(tokenizer, pairs) == PieceCount(6, 1)
    cut = text_rows(tokenizer, ["nothing " + CHINESE], None, 5)
    assert count_rows(tokenizer, cut) == PieceCount(3, 0)
    ((words, _),) = word_rows(tokenizer, ["nothing", "\u0301"], 61)
    assert count_rows(tokenizer, [words]) == PieceCount(6, 1)
    assert count_rows(tokenizer, []) == PieceCount(0, 0)
    assert PieceCount(0, 0).share == 0


def test_an_example_has_the_most_unknown_pieces(tokenizer):
    texts = ["nothing", "two hens ж", "привет " * 20, "the fox 😀"]
    assert example_of(tokenizer, texts) == ("привет " * 20)[:60]
    assert example_of(tokenizer, []) == ""
    values = {"text": ["a", "b"], "choices": [["c", "d"], ["e"]], "label": "x"}
    found = texts_of(values, ["text", "choices", "question"])
    assert list(found) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("pieces", "unknown", "said"),
    [
        (0, 0, ""),
        (21, 1, ""),
        (20, 1, "warning: my.tsv: .* 5.0% of .* .1 of 20 are <unk>.*'ж'"),
        (9, 4, "warning.* 44.4% "),
        (10, 5, None),
        (1, 1, None),
    ],
)
def test_what_is_said_and_refused(pieces, unknown, said, capsys):
    count = PieceCount(pieces, unknown)
    refused = said is None
    if refused:
        message = r"my\.tsv: .* (50|100)\.0% .* in 'ж'\. .*--any-text\.$"
        with pytest.raises(ka.AlbertError, match=message) as caught:
            check_readable(count, "ж", "my.tsv", False)
        assert "\n" not in str(caught.value)
        said = "warning: my.tsv: .*are <unk>"
    check_readable(count, "ж", "my.tsv", any_text=refused)
    shown = capsys.readouterr().err
    assert shown.count("\n") == len(shown.splitlines()) == bool(said)
    assert re.match(said, shown)


def test_prepare_refuses_at_the_end(tiny_vocab, tmp_path, capsys):
    text, output = tmp_path / "a.txt", tmp_path / "out"
    text.write_text(f"nothing\n{CHINESE}\n{CHINESE}\n" + "ж ж ж\n")
    run = PrepareRun((text,), tiny_vocab, output)
    # 5 pieces, and 5 that are unknown.
    with pytest.raises(ka.AlbertError, match=r"the input: .* 50\.0%.*'我喜欢"):
        prepare(run)
    assert not output.exists()
    # The shard is kept for the same command with the option.
    assert "1 shard finished" in capsys.readouterr().err
    shard = output.with_name("out.unfinished") / "shard-00000.tokens.npy"
    made = shard.stat().st_mtime_ns
    told = {"input": text, "vocab": tiny_vocab, "output": output}
    commands.run("prepare", "--any-text", **told)
    shown = capsys.readouterr().err
    assert "warning: the input: " in shown and "50.00 % unknown" in shown
    assert (output / shard.name).stat().st_mtime_ns == made
    # ▁n o th in g, two of ▁ <unk>, three of ▁ <unk>
    assert ka.ShardSet.open(output).num_tokens == 5 + 4 + 6


def test_prepare_refuses_early(tiny_vocab, tmp_path, monkeypatch, capsys):
    """After the first part of the first unit, before the rest is read."""
    monkeypatch.setattr(units, "CHARACTERS_AT_ONCE", 16)
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(f"{CHINESE}\n{CHINESE}\n" + "nothing\n" * 90)
    second.write_text("nothing\n" * 90)
    run = PrepareRun((first, second), tiny_vocab, tmp_path / "out", workers=1)
    with pytest.raises(ka.AlbertError, match=r"a\.txt: .* 100\.0%"):
        prepare(run)
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.txt"}
    # A text that begins well is judged as a whole.
    first.write_text("nothing\nnothing\n" + f"{CHINESE}\n" * 3)
    prepare(PrepareRun((first,), tiny_vocab, tmp_path / "out", workers=1))
    assert ka.ShardSet.open(tmp_path / "out").num_tokens == 5 + 5 + 6
    shown = capsys.readouterr().err
    assert re.search("warning: the input: .* 23.1% .*3 of 13 are <unk>", shown)


def rows_of(text, folder):
    """A file of two examples with the same text."""
    rows = [{"text": text, "label": label} for label in ("no", "yes")]
    return commands.write_rows(folder / "rows.jsonl", rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    """The folder of a classifier that was never trained."""
    folder = tmp_path_factory.mktemp("unknown")
    keras.utils.set_random_seed(3)
    backbone = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=tokenizer)
    head = ka.AlbertForSequenceClassification(backbone, 2, labels=("no", "yes"))
    ka.Predictor(head, lengths=(32,)).save(folder)
    return folder


REFUSED = r"rows\.jsonl: .* 100\.0% .* in '我喜欢这部电影'.*--any-text\.$"


class Reached(Exception):
    """What stands behind the check was begun."""


def test_finetune(pretrained_folder, tmp_path, monkeypatch, capsys):
    """Text that the vocabulary cannot read is refused before training."""
    go_on = Mock(side_effect=Reached)
    monkeypatch.setattr(training, "_finetune_once", go_on)
    rows, output = rows_of(CHINESE, tmp_path), tmp_path / "out"
    run = FinetuneRun(str(pretrained_folder), rows, output, validation=None)
    with pytest.raises(ka.AlbertError, match=REFUSED):
        training.finetune(run)
    assert not output.exists()
    with pytest.raises(Reached):
        training.finetune(dataclasses.replace(run, any_text=True))
    assert "warning: " in capsys.readouterr().err


def test_predict(model, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    run = PredictRun(model, rows_of(CHINESE, tmp_path), output)
    with pytest.raises(ka.AlbertError, match=REFUSED):
        predict(run)
    assert not output.exists()
    predict(dataclasses.replace(run, any_text=True))
    assert len(output.read_text().splitlines()) == 2
    assert "warning: " in capsys.readouterr().err
    predict(PredictRun(model, rows_of("two hens", tmp_path)))
    assert capsys.readouterr().err == ""


def test_embed(model, tmp_path):
    output = tmp_path / "out"
    run = EmbedRun(str(model), rows_of(CHINESE, tmp_path), output)
    with pytest.raises(ka.AlbertError, match=REFUSED):
        embed(run)
    assert not output.exists()
    embed(dataclasses.replace(run, any_text=True))
    assert len(ka.read_vectors(output)) == 2


def test_all_parts_of_a_file_are_judged(model, tmp_path, monkeypatch):
    """Not the last one alone."""
    monkeypatch.setattr(predicting, "PREDICTED_AT_ONCE", 1)
    rows = [{"text": text} for text in (*[CHINESE] * 9, "two hens")]
    data = commands.write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ka.AlbertError, match=r"in '我喜欢这部电影'"):
        predict(PredictRun(model, data, tmp_path / "out.jsonl"))


def test_check(model, tmp_path, monkeypatch, capsys):
    own = ka.Predictor.load(model)
    names = ("settings", "lengths", "columns", "reading", "threshold")
    found = SimpleNamespace(
        **{name: getattr(own, name) for name in (*names, "definition")},
        model=SimpleNamespace(early_exit=None),
        outputs=Mock(side_effect=Reached),
    )
    monkeypatch.setattr(checking, "load_exported", lambda *_: found)
    run = CheckRun(tmp_path, model, rows_of(CHINESE, tmp_path))
    with pytest.raises(ka.AlbertError, match=REFUSED):
        checking.check(run)
    with pytest.raises(Reached):
        checking.check(dataclasses.replace(run, any_text=True))
    assert "warning: " in capsys.readouterr().err


def test_predictor_warns(model):
    predictor = ka.Predictor.load(model)
    predictor.model.run_eagerly = True
    with pytest.warns(UserWarning, match="14.3% .*'two hens ж'"):
        predictor.predict(["two hens ж"] * 2)
    with pytest.warns(UserWarning, match="100.0%"):
        predictor.probabilities([CHINESE.encode()])
