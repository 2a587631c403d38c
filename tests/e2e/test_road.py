"""The whole road through the command line, on a text of a minute.

Every command runs in this process through `keras_albert.cli.main`, as the
console script does; the SavedModel answers in a process of its own.
"""

import csv
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
from documentation import PAGES, blocks
from scipy import stats
from small import signalled

from keras_albert import (
    AlbertForSequenceClassification,
    Predictor,
    load_pretrained,
)
from keras_albert.cli import main
from keras_albert.corpus.shards import ShardSet
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.evaluate import evaluate
from keras_albert.modeling.config import AlbertConfig
from keras_albert.training.model_folder import ModelFolder

CONFIG = AlbertConfig(
    vocab_size=160,
    embedding_size=32,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.1,
)
PRETRAIN = [
    "--batch-size=8",
    "--steps=240",
    "--warmup-steps=24",
    "--validate-every=160",
    "--optimizer.learning-rate=0.005",
    "--examples.sequence-length=64",
    "--examples.max-predictions=9",
]
FINETUNE = [
    "--sequence-length=32",
    "--batch-size=16",
    "--epochs=16",
    "--learning-rate=0.001",
]


@pytest.fixture(scope="module")
def road(tmp_path_factory, tiny_lines):
    """The folder after every step; each step prints what the test reads."""
    folder = tmp_path_factory.mktemp("road")
    documents = ["\n".join(tiny_lines[i : i + 12]) for i in range(0, 600, 12)]
    (folder / "train.txt").write_text("\n\n".join(documents[:40]))
    (folder / "held.txt").write_text("\n\n".join(documents[40:]))
    rows = [
        f"{line}\t{'number' if 'miles' in line and '£9' in line else 'plain'}"
        for line in tiny_lines
    ]
    for name, part in (("train", rows[:400]), ("test", rows[400:])):
        text = "\n".join(["text\tlabel", *part]) + "\n"
        (folder / f"{name}.tsv").write_text(text)
    CONFIG.to_json(folder / "config.json")

    def at(name):
        return str(folder / name)

    main(
        ["vocab", "--input", at("train.txt"), "--output", at("vocab")]
        + ["--vocab-size", "160"]
    )
    for part in ("train", "held"):
        main(
            ["prepare", "--input", at(f"{part}.txt"), "--vocab", at("vocab")]
            + ["--output", at(f"shards-{part}")]
        )
    main(
        ["pretrain", "--data", at("shards-train"), "--output", at("pre")]
        + ["--validation", at("shards-held"), "--config", at("config.json")]
        + PRETRAIN
    )
    main(
        ["finetune", "--model", at("pre"), "--train", at("train.tsv")]
        + ["--validation", at("test.tsv"), "--output", at("fine")]
        + FINETUNE
    )
    main(["export", "--model", at("fine"), "--output", at("served")])
    return folder


def test_pretraining_report(road):
    report = json.loads((road / "pre" / "report.json").read_text())
    held_out = report["held_out"]
    assert report["examples_seen"] == 240 * 8
    assert held_out["mlm_accuracy"] > 0 and held_out["mlm_baseline"] > 0
    # Better than knowing how frequent each piece is on these very texts.
    shards = ShardSet.open(road / "shards-held").shards
    counts = np.bincount(np.concatenate([each.tokens for each in shards]))
    assert held_out["mlm_loss"] < stats.entropy(counts)
    assert 0.5 <= held_out["sop_baseline"] < 0.6
    with open(road / "pre" / "log.csv") as file:
        log = list(csv.DictReader(file))
    assert len(log) == 2, "240 steps, validated after 160 and 240"
    best = min(log, key=lambda row: float(row["val_loss"]))
    assert report["kept_step"] == int(best["step"])
    assert float(best["val_mlm_accuracy"]) == pytest.approx(
        held_out["mlm_accuracy"]
    )
    backbone, tokenizer = load_pretrained(road / "pre")
    assert backbone.config == CONFIG
    assert tokenizer.vocab_size == 160


@pytest.mark.any_backend
def test_deeper_from_a_shallower_one(road, tmp_path):
    """A warm start in mixed precision, scanned and rematerialized.

    The first steps must be better than the shallow model's own were.
    """
    deeper = CONFIG.replace(num_hidden_layers=4, hidden_dropout_prob=0.1)
    deeper.to_json(tmp_path / "deeper.json")
    main(
        ["pretrain", "--data", str(road / "shards-train")]
        + ["--output", str(tmp_path / "deeper")]
        + ["--config", str(tmp_path / "deeper.json")]
        + ["--warm-start", str(road / "pre"), "--precision", "mixed_bfloat16"]
        + ["--loop", "scan", "--remat", "--steps=12", "--warmup-steps=2"]
        + ["--batch-size=8", "--validate-every=12"]
        + ["--optimizer.learning-rate=0.001"]
        + ["--examples.sequence-length=64", "--examples.max-predictions=9"]
    )
    report = json.loads((tmp_path / "deeper" / "report.json").read_text())
    shallow = json.loads((road / "pre" / "report.json").read_text())
    guessing = math.log(CONFIG.vocab_size) + math.log(2)
    assert report["training_loss"] < guessing - 1
    assert report["training_loss"] < 1.5 * shallow["training_loss"]
    model = ModelFolder.load(tmp_path / "deeper").model
    assert model.config == deeper
    # Kept for use anywhere: float32, the plain form's weights.
    assert model.dtype_policy.name == "float32"
    assert model.backbone.embeddings.dtype_policy.name == "float32"


@pytest.mark.any_backend
@pytest.mark.filterwarnings("error:Gradients do not exist")
@pytest.mark.parametrize("task", ["nsp", "none"])
def test_other_sentence_tasks(road, tmp_path, task, capsys):
    """Trained, reported, saved and evaluated under their own name.

    The first three steps on short sequences.
    """
    main(
        ["pretrain", "--data", str(road / "shards-train")]
        + ["--validation", str(road / "shards-held"), *PRETRAIN]
        + [
            "--config",
            str(road / "config.json"),
            "--output",
            str(tmp_path / "p"),
        ]
        + ["--steps=5", "--warmup-steps=1", "--examples.sentence-task", task]
        + ["--short-steps=3", "--short-length=60"]
    )
    main(
        ["evaluate", "--model", str(tmp_path / "p")]
        + ["--data", str(road / "shards-held")]
    )
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "p" / "report.json").read_text())
    measured = {name.split("_")[0] for name in report["held_out"]}
    assert measured == ({"mlm"} if task == "none" else {"mlm", "nsp"})
    assert out.count("next-sentence accuracy") == 2 * (task == "nsp")
    assert out.count("held-out next-sentence") == (task == "nsp")
    assert load_pretrained(tmp_path / "p")[0].config == CONFIG


def test_examples_share_rows(road, tmp_path, tiny_lines, capsys):
    """Documents of two short sentences.

    The model is evaluated on the same examples, alone or together.
    """
    folder, shards = tmp_path / "packed", str(tmp_path / "shards")
    lines = [line[:12] for line in tiny_lines]
    documents = ["\n".join(lines[i : i + 2]) for i in range(0, 200, 2)]
    (tmp_path / "short.txt").write_text("\n\n".join(documents))
    main(
        ["prepare", "--input", str(tmp_path / "short.txt")]
        + ["--vocab", str(road / "vocab"), "--output", shards]
    )
    main(
        ["pretrain", "--data", shards, "--validation", shards, *PRETRAIN]
        + ["--config", str(road / "config.json"), "--output", str(folder)]
        + ["--steps=3", "--warmup-steps=1", "--examples.pack"]
    )
    out = capsys.readouterr().out
    filled = re.search(
        r"rows of (\S+) examples on average; (\S+)% of their tokens", out
    )
    assert float(filled[1]) > 2 and float(filled[2]) > 80
    report = json.loads((folder / "report.json").read_text())
    assert report["rows_seen"] == 3 * 8 and "examples_seen" not in report
    task = json.loads((folder / "task.json").read_text())
    measured = []
    for pack in (True, False):
        task["examples"]["pack"] = pack
        (folder / "task.json").write_text(json.dumps(task))
        run = EvaluateRun(model=folder, data=Path(shards))
        measured.append(evaluate(run)["held_out"])
    packed, alone = measured
    assert packed.keys() == alone.keys() == report["held_out"].keys()
    for name in alone:
        assert packed[name] == pytest.approx(alone[name], abs=1e-5)
        assert packed[name] == pytest.approx(report["held_out"][name], abs=1e-5)


def test_evaluate_repeats_the_report(road, capsys):
    report = json.loads((road / "pre" / "report.json").read_text())
    main(
        ["evaluate", "--model", str(road / "pre")]
        + ["--data", str(road / "shards-held")]
    )
    expected = report["held_out"]["mlm_accuracy"]
    out = capsys.readouterr().out
    assert f"masked-LM accuracy      {expected:.3f}" in out
    assert "held-out" not in out, "nobody said that these were"
    main(
        ["evaluate", "--model", str(road / "fine")]
        + ["--data", str(road / "test.tsv")]
    )
    report = json.loads((road / "fine" / "report.json").read_text())
    assert f"accuracy {report['accuracy']:.3f}" in capsys.readouterr().out
    assert report["count"] == 200


def test_classifier_beats_the_majority(road):
    report = json.loads((road / "fine" / "report.json").read_text())
    assert report["accuracy"] > report["baseline"] + 0.05


def test_predict_keeps_rows_and_order(road, capsys):
    output = road / "predictions.jsonl"
    main(
        ["predict", "--model", str(road / "fine")]
        + ["--data", str(road / "test.tsv"), "--output", str(output)]
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    with open(road / "test.tsv") as file:
        expected = list(csv.DictReader(file, delimiter="\t"))
    assert [row["text"] for row in rows] == [row["text"] for row in expected]
    correct = sum(row["prediction"] == row["label"] for row in rows)
    report = json.loads((road / "fine" / "report.json").read_text())
    assert correct / len(rows) == pytest.approx(report["accuracy"])
    with pytest.raises(SystemExit) as stop:
        main(
            ["predict", "--model", str(road / "fine")]
            + ["--data", str(road / "test.tsv"), "--output", str(output)]
        )
    assert stop.value.code == 2
    assert "nothing was changed" in capsys.readouterr().err


def test_what_is_cut_is_said(road, tmp_path, capsys):
    rows = ["text\tlabel", "the fox " * 40 + "\tplain", "hens\tplain"]
    for name, lines in (("x.tsv", rows), ("x.txt", rows[1:])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    for command, name in (("evaluate", "x.tsv"), ("predict", "x.txt")):
        main(
            [command, "--model", str(road / "fine")]
            + ["--data", str(tmp_path / name)]
        )
        said = capsys.readouterr().err
        assert "1 of 2 are longer than 32 tokens and cut" in said


ASK = """
import json, sys
import tensorflow as tf, tensorflow_text

serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
inputs = {k: tf.constant(v) for k, v in json.loads(sys.argv[2]).items()}
out = {k: v.numpy() for k, v in serve(**inputs).items()}
assert not [m for m in sys.modules if m.startswith("keras_albert")]
label = [name.decode() for name in out["label"]]
print(json.dumps({"label": label, "p": out["probabilities"].tolist()}))
"""


def ask(saved_model, inputs):
    """The answers of a process that has TensorFlow and nothing of ours."""
    result = subprocess.run(
        [sys.executable, "-c", ASK, str(saved_model), inputs],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(result.stdout)


def test_saved_model_answers_strings_in_a_fresh_process(road):
    """Results equal those of the classifier."""
    texts = ["The fox sold £9 of tea in 1950.", "", "ÉLODIE " * 90, "a"]
    answers = ask(road / "served" / "1", json.dumps({"text": texts}))
    classifier = Predictor.load(road / "fine")
    np.testing.assert_allclose(
        answers["p"], classifier.probabilities(texts), atol=1e-5
    )
    assert answers["label"] == classifier.predict(texts)


def test_saved_model_stores_weights_once(road):
    parameters = Predictor.load(road / "fine").model.count_params()
    data = (road / "served" / "1" / "variables").glob("*.data-*")
    assert sum(f.stat().st_size for f in data) < 4 * parameters * 1.05 + 9000


def finetuned(road, name, *options):
    """A fine-tuned model whose learning rate moves nothing."""
    main(
        ["finetune", "--model", str(road / "pre"), "--epochs=1"]
        + ["--train", str(road / "renamed.jsonl"), "--columns.text=a"]
        + ["--columns.pair=b", "--columns.label=gold", "--sequence-length=32"]
        + ["--output", str(road / name), "--learning-rate=1e-12", *options]
    )
    return ModelFolder.load(road / name)


def test_finetuning_starts_from_the_pretrained_encoder(road):
    """And from random weights of the same architecture when asked."""
    rows = [
        {"a": f"A dog {i}.", "b": "The fox.", "gold": i % 2} for i in range(20)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (road / "renamed.jsonl").write_text(text)
    pretrained = load_pretrained(road / "pre")[0].get_weights()
    loaded = finetuned(road, "kept", "--dropout=0.25")
    config = loaded.model.config
    assert config.hidden_dropout_prob == 0.25
    assert config.attention_probs_dropout_prob == 0.25
    assert (
        config.replace(
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        == load_pretrained(road / "pre")[0].config
    )
    kept = loaded.model.backbone.get_weights()
    for ours, theirs in zip(kept, pretrained, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    fresh = finetuned(road, "fresh", "--from-scratch").model.backbone
    assert fresh.config == load_pretrained(road / "pre")[0].config
    kernel = np.asarray(keras.ops.convert_to_numpy(fresh.pooler.kernel))
    assert abs(kernel - pretrained[-2]).max() > 0.01
    # Columns of other names travel with the model.
    assert loaded.task["labels"] == ["0", "1"]
    assert loaded.task["columns"]["pair"]
    main(
        ["evaluate", "--model", str(road / "kept")]
        + ["--data", str(road / "renamed.jsonl")]
    )


@pytest.mark.any_backend
def test_interrupted_pretraining_goes_on(road, capsys):
    """Ctrl-C before the first validation; the same seed, the same model.

    Then settings that differ are named, and a finished run says so.
    """

    def pretrain(name, *options):
        main(
            ["pretrain", "--data", str(road / "shards-train")]
            + ["--validation", str(road / "shards-held")]
            + ["--config", str(road / "config.json")]
            + ["--output", str(road / name), *PRETRAIN, "--steps=12"]
            + ["--warmup-steps=2", "--validate-every=8", *options]
        )

    pretrain("once")
    with signalled(signal.SIGINT, step=5), pytest.raises(SystemExit) as stop:
        pretrain("twice")
    assert stop.value.code == 130
    assert "stopped at step 5 of 12" in capsys.readouterr().err
    for options, named in (
        (["--steps=13"], "steps=12 there, 13 here"),
        (["--examples.ngram=2", "--seed=3"], "examples.ngram=3 there, 2 here"),
    ):
        with pytest.raises(SystemExit) as stop:
            pretrain("twice", *options)
        assert stop.value.code == 2
        assert named in capsys.readouterr().err
    # What changes nothing in the model is free.
    pretrain("twice", "--checkpoint-every=3", "--tensorboard")
    assert "going on from step 5 of 12" in capsys.readouterr().out
    first, _ = load_pretrained(road / "once")
    second, _ = load_pretrained(road / "twice")
    atol = 1e-6 if keras.backend.backend() == "torch" else 0.0
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
    logs = []
    for name in ("once", "twice"):
        with open(road / name / "log.csv") as file:
            rows = list(csv.DictReader(file))
        assert [row["step"] for row in rows] == ["8", "12"]
        assert float(rows[-1]["tokens_per_second"]) > 0
        logs.append([float(row["val_sop_loss"]) for row in rows])
    assert logs[0] == pytest.approx(logs[1], abs=1e-5)
    files = {path.name for path in (road / "twice").iterdir()}
    assert {"curves.png", "tensorboard"} <= files
    kept = {p.name for p in (road / "twice" / "checkpoints").iterdir()}
    assert {"step-00000009", "step-00000012"} <= kept and len(kept) <= 3
    before = (road / "twice" / "log.csv").stat().st_mtime_ns
    main(["pretrain", "--file", str(road / "twice" / "run.json")])
    assert "and it is finished" in capsys.readouterr().out
    assert (road / "twice" / "log.csv").stat().st_mtime_ns == before


@pytest.mark.any_backend
def test_interrupted_finetuning_goes_on(road, capsys):
    """In its second epoch: the order of the rows, too, is that of one run."""

    def run(name):
        main(
            ["finetune", "--model", str(road / "pre"), "--epochs=2"]
            + ["--train", str(road / "test.tsv"), "--output", str(road / name)]
            + ["--sequence-length=32", "--learning-rate=0.001"]
            + ["--batch-size=32", "--validation=none"]
        )

    run("in-one")
    with signalled(signal.SIGTERM, step=9), pytest.raises(SystemExit) as stop:
        run("in-two")
    assert stop.value.code == 0
    run("in-two")
    assert "going on from step 9 of 14" in capsys.readouterr().out
    one, two = (
        ModelFolder.load(road / name).model.get_weights()
        for name in ("in-one", "in-two")
    )
    atol = 1e-6 if keras.backend.backend() == "torch" else 0.0
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
    reports = [
        json.loads((road / name / "report.json").read_text())
        for name in ("in-one", "in-two")
    ]
    for name in ("skipped", "made_of", "chosen", "on_training_rows"):
        assert reports[0].pop(name) == reports[1].pop(name)
    assert reports[0] == pytest.approx(reports[1], abs=1e-6)
    assert not (road / "in-two" / "checkpoints").exists()


def bad(road, case):
    """(arguments, expected part of the message) of a user's mistake."""
    at = lambda name: str(road / name)  # noqa: E731
    out = at("never")
    pretrain = ["pretrain", "--data", at("shards-train"), "--output", out]
    finetune = ["finetune", "--model", at("pre"), "--output", out]
    wider = road / "wider.json"
    CONFIG.replace(vocab_size=161).to_json(wider)
    segment = road / "segment.json"
    CONFIG.replace(type_vocab_size=1).to_json(segment)
    typo = road / "typo.json"
    typo.write_text('{"hiden_size": 32}')
    (road / "mistold").mkdir(exist_ok=True)
    (road / "mistold" / "task.json").write_text("[]")
    (road / "empty.txt").write_text("\n \n")
    (road / "broken").mkdir(exist_ok=True)
    for file in (road / "fine").iterdir():
        content = file.read_bytes()
        half = len(content) // 2 if file.suffix == ".keras" else None
        (road / "broken" / file.name).write_bytes(content[:half])
    (road / "other.tsv").write_text("text\tlabel\nA dog.\tstrange\n")
    (road / "one.tsv").write_text("text\tlabel\nA dog.\tplain\n")
    with open(road / "foreign.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((road / "train.txt").read_text().split()),
            model_writer=file,
            vocab_size=60,
            minloglevel=2,
        )
    damaged = road / "shards-damaged"
    shutil.copytree(road / "shards-train", damaged, dirs_exist_ok=True)
    tokens = damaged / "shard-00000.tokens.npy"
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"\xff\xff")
    return {
        "wrong special ids": (
            ["prepare", "--input", at("train.txt"), "--output", out]
            + ["--vocab", at("foreign.model")],
            "Train one with `keras-albert vocab`",
        ),
        "damaged shards": (
            ["pretrain", "--data", at("shards-damaged"), "--output", out]
            + ["--config", at("config.json"), *PRETRAIN],
            "shard-00000.tokens.npy: its checksum",
        ),
        "missing corpus": (
            ["vocab", "--input", at("absent.txt"), "--output", out],
            "absent.txt",
        ),
        "empty corpus": (
            ["vocab", "--input", at("empty.txt"), "--output", out],
            "empty.txt",
        ),
        "output in use": (
            ["vocab", "--input", at("train.txt"), "--output", at("vocab")]
            + ["--vocab-size", "160"],
            "the output folder is not empty",
        ),
        "model output in use": (
            ["pretrain", "--data", at("shards-train"), "--output", at("pre")]
            + ["--config", at("config.json"), *PRETRAIN],
            "the output folder is not empty",
        ),
        "another vocabulary size": (
            [*pretrain, "--config", str(wider), *PRETRAIN],
            "vocab_size is 161",
        ),
        "config field": (
            [*pretrain, "--config", str(typo)],
            "Did you mean `hidden_size`?",
        ),
        "too long": (
            [*pretrain, "--config", at("config.json")],
            "max_position_embeddings=64. Received: 512",
        ),
        "no shards": (
            ["pretrain", "--data", at("vocab"), "--output", out],
            "keras-albert prepare",
        ),
        "unknown label": (
            [*finetune, "--train", at("train.tsv"), *FINETUNE]
            + ["--validation", at("other.tsv")],
            "strange",
        ),
        "one label": (
            [*finetune, "--train", at("one.tsv"), *FINETUNE],
            "two or more different labels",
        ),
        "labels and texts swapped": (
            [*finetune, "--train", at("train.tsv"), *FINETUNE]
            + ["--columns.label", "text", "--columns.text", "label"],
            "--columns.label",
        ),
        "shorter than anything": (
            [*finetune, "--train", at("train.tsv"), *FINETUNE]
            + ["--sequence-length=2"],
            "at least 3 for single texts. Received: 2",
        ),
        "one segment": (
            [*pretrain, "--config", str(segment), *PRETRAIN],
            "`type_vocab_size` must be 2",
        ),
        "table for shards": (
            ["evaluate", "--model", at("pre"), "--data", at("test.tsv")],
            "is a pretrained model",
        ),
        "seed": (
            [*pretrain, "--config", at("config.json"), "--seed", "4294967296"],
            "from 0 to 4294967295",
        ),
        "task file": (
            ["evaluate", "--model", at("mistold"), "--data", at("test.tsv")],
            "not what `pretrain`, `finetune` or `convert` writes",
        ),
        "no folder for predictions": (
            ["predict", "--model", at("fine"), "--data", at("test.tsv")]
            + ["--output", at("absent/x.jsonl")],
            "absent/x.jsonl: its folder does not exist. Make it",
        ),
        "missing column": (
            [*finetune, "--train", at("train.tsv")]
            + ["--columns.text", "sentence"],
            "no column `sentence` for the text. The columns are `text`, "
            "`label`. Rename the right one, or add it (of a TSV or CSV file, "
            "in its first line). Or name another column with --columns.text.",
        ),
        "split of shards": (
            ["evaluate", "--model", at("pre"), "--data", at("shards-held")]
            + ["--split", "test"],
            "`split` has no meaning for token shards",
        ),
        "size of a table": (
            ["predict", "--model", at("fine"), "--data", at("test.tsv")]
            + ["--any-size"],
            "`any_size` is for a benchmark's folder",
        ),
        "no model": (
            ["finetune", "--model", at("vocab"), "--train", at("train.tsv")]
            + ["--output", out],
            "no model here",
        ),
        "not a classifier": (
            ["export", "--model", at("pre"), "--output", out]
            + ["--format", "onnx"],
            "only a model of AlbertForSequenceClassification",
        ),
        "truncated model": (
            ["export", "--model", at("broken"), "--output", out],
            "damaged",
        ),
        "evaluate unknown label": (
            ["evaluate", "--model", at("fine"), "--data", at("other.tsv")],
            "strange",
        ),
    }[case]


CASES = [
    "wrong special ids",
    "damaged shards",
    "missing corpus",
    "empty corpus",
    "output in use",
    "model output in use",
    "another vocabulary size",
    "config field",
    "too long",
    "no shards",
    "unknown label",
    "one label",
    "labels and texts swapped",
    "shorter than anything",
    "one segment",
    "table for shards",
    "seed",
    "task file",
    "no folder for predictions",
    "missing column",
    "split of shards",
    "size of a table",
    "no model",
    "not a classifier",
    "truncated model",
    "evaluate unknown label",
]


@pytest.mark.any_backend
@pytest.mark.parametrize("case", CASES)
def test_bad_input(road, case, capsys):
    """One line, status 2, and nothing written."""
    arguments, message = bad(road, case)
    before = {p: p.stat().st_mtime_ns for p in road.rglob("*")}
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error, error
    assert message in error
    after = {p: p.stat().st_mtime_ns for p in road.rglob("*")}
    assert after == before


@pytest.mark.any_backend
def test_loss_that_is_not_finite(road, capsys):
    with pytest.raises(SystemExit) as stop:
        main(
            ["pretrain", "--data", str(road / "shards-train")]
            + ["--config", str(road / "config.json")]
            + ["--output", str(road / "diverged"), *PRETRAIN]
            + ["--optimizer.learning-rate=1e30"]
        )
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "diverged at step" in error and "No model was kept" in error
    assert not (road / "diverged").exists()


def test_released_archive(road, tmp_path):
    """`finetune --model` takes the original's own layout as well."""
    golden = Path(__file__).parents[1] / "data" / "tf1_golden"
    for file in golden.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(AlbertError, match=r"\.model"):
        load_pretrained(tmp_path)
    file = tmp_path / "30k-clean.model"
    file.write_bytes((road / "vocab" / "spiece.model").read_bytes())
    with pytest.raises(AlbertError, match=r"160 pieces.*vocab_size=120"):
        load_pretrained(tmp_path)
    main(
        ["vocab", "--input", str(road / "train.txt"), "--vocab-size", "120"]
        + ["--output", str(tmp_path / "smaller")]
    )
    file.write_bytes((tmp_path / "smaller" / "spiece.model").read_bytes())
    backbone, tokenizer = load_pretrained(tmp_path)
    assert tokenizer.vocab_size == 120
    kernel = np.asarray(keras.ops.convert_to_numpy(backbone.pooler.kernel))
    assert kernel.shape == (32, 32)


@pytest.mark.any_backend
def test_saved_model_of_pairs(road, tmp_path):
    """A model of pairs takes two strings; an empty second one is a single."""
    backbone, tokenizer = load_pretrained(road / "pre")
    task = {
        "task": "classification",
        "labels": ["no", "yes"],
        "lengths": [16, 32],
        "columns": {"text": "text", "pair": "second"},
    }
    model = AlbertForSequenceClassification(backbone, num_labels=2)
    (tmp_path / "fine").mkdir()
    ModelFolder(model, tokenizer, task).save(tmp_path / "fine")
    served = tmp_path / "served"
    main(["export", "--model", str(tmp_path / "fine"), "--output", str(served)])
    texts = ["A dog found a letter.", "The fox", "near London " * 20, ""]
    pairs = ["My uncle sold it.", "", "in 1990 " * 30, "a"]
    answers = ask(served / "1", json.dumps({"text": texts, "pair": pairs}))
    classifier = Predictor.load(tmp_path / "fine")
    expected = classifier.probabilities(texts, pairs)
    np.testing.assert_allclose(answers["p"], expected, atol=1e-5)
    with pytest.raises(AlbertError, match="takes pairs"):
        classifier.predict(texts)


RUN_PAGES = """
import json, sys

for page in json.load(open(sys.argv[1])):
    names = {"__name__": "__main__"}  # a page is a program of its own
    for place, code in page:
        print("==", place, flush=True)
        exec(compile(code, place, "exec"), names)
"""


def test_python_of_the_documentation(road, tmp_path):
    """Every page's code runs as it stands, one block after the other."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "pretrained").symlink_to(road / "pre")
    (tmp_path / "demo" / "finetuned").symlink_to(road / "fine")
    (tmp_path / "served").symlink_to(road / "served")
    (tmp_path / "demo" / "shards-train").symlink_to(road / "shards-train")
    pages = [
        [(block.place, block.code) for block in found if block.runs]
        for found in (blocks(page, "python") for page in PAGES)
    ]
    assert len(pages[0]) == 2, "README.md comes first"
    assert sum(map(len, pages)) == 11
    assert sum(bool(page) for page in pages) == 7
    (tmp_path / "pages.json").write_text(json.dumps([p for p in pages if p]))
    done = subprocess.run(
        [sys.executable, "-c", RUN_PAGES, "pages.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (tmp_path / "model.keras").is_file()
