"""Texts to vocabulary, shards, pretrained and fine-tuned model, by commands.

Every command runs in this process through `keras_albert.cli.main`, as the
console script does. What is learned is shown on TensorFlow, the fastest.
"""

import json
import math
import re
import shutil
import signal
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import (
    edit_json,
    log_of,
    read_json,
    report_of,
    run as run_command,
    write_rows,
)
from documentation import PAGES, README, blocks
from scipy import stats
from small import numpy, signalled

import keras_albert as ka
from keras_albert.finetuning.config import EvaluateRun
from keras_albert.finetuning.evaluate import evaluate
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.training import cost
from keras_albert.training.model_folder import ModelFolder

BACKEND = keras.backend.backend()
LEARNS = BACKEND == "tensorflow"
STEPS = 240 if LEARNS else 6
CONFIG = ka.AlbertConfig(
    vocab_size=160,
    embedding_size=32,
    hidden_size=48,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.1,
)
EXAMPLES = "--examples.sequence-length=64 --examples.max-predictions=9 "
PRETRAIN = (
    "pretrain --data {0}/shards-train --config {0}/config.json --batch-size=8 "
    "--optimizer.learning-rate=0.005 --validate-every=160 " + EXAMPLES
)
FINETUNE = "finetune --model {0}/pre --train {0}/train.tsv --epochs=1 "


@pytest.fixture(scope="module")
def command(tmp_path_factory, tiny_lines):
    """Runs a command, in which "{0}" stands for the folder of all tests."""
    folder = tmp_path_factory.mktemp("trained")
    documents = ["\n".join(tiny_lines[i : i + 12]) for i in range(0, 600, 12)]
    (folder / "train.txt").write_text("\n\n".join(documents[:40]))
    (folder / "held.txt").write_text("\n\n".join(documents[40:]))
    rows = [
        f"{line}\t{'number' if '£9' in line else 'plain'}"
        for line in tiny_lines
    ]
    for name, part in (("train", rows[:80]), ("test", rows[80:120])):
        text = "\n".join(["text\tlabel", *part]) + "\n"
        (folder / f"{name}.tsv").write_text(text)
    CONFIG.to_json(folder / "config.json")

    def run(*words):
        words = " ".join(words).split()
        return run_command(*(word.format(folder) for word in words))

    run("vocab --input {0}/train.txt --output {0}/vocab --vocab-size 160")
    for part in ("train", "held"):
        run(
            f"prepare --input {{0}}/{part}.txt --vocab {{0}}/vocab "
            f"--output {{0}}/shards-{part}"
        )
    run(
        PRETRAIN + "--output {0}/pre --validation {0}/shards-held",
        f"--steps={STEPS} --warmup-steps={STEPS // 10}",
    )
    run(FINETUNE + "--validation {0}/test.tsv --output {0}/fine")
    run.folder = folder
    return run


@pytest.fixture(scope="module")
def trained(command):
    """The folder of a pretrained and a fine-tuned model and their data."""
    return command.folder


@pytest.mark.any_backend
def test_pretraining_report(trained):
    report = report_of(trained / "pre")
    held_out = report["held_out"]
    assert report["examples_seen"] == STEPS * 8
    cost = report["cost"]
    assert cost["tokens"] == STEPS * 8 * 64
    examples = ka.ExampleConfig(sequence_length=64, max_predictions=9)
    assert cost["flops"] == STEPS * 8 * flops_per_example(CONFIG, examples)
    assert cost["minutes"] > 0 and report["tokens_per_second"] > 0
    assert held_out["mlm_baseline"] > 0
    assert 0.5 <= held_out["sop_baseline"] < 0.6
    log = log_of(trained / "pre")
    validated = [160, 240] if LEARNS else [6]
    assert [int(row["step"]) for row in log] == validated
    best = min(log, key=lambda row: float(row["val_loss"]))
    assert report["kept_step"] == int(best["step"])
    assert float(best["val_mlm_accuracy"]) == pytest.approx(
        held_out["mlm_accuracy"]
    )
    if LEARNS:  # more than how frequent each piece is in these very texts
        shards = ka.ShardSet.open(trained / "shards-held").shards
        counts = np.bincount(np.concatenate([each.tokens for each in shards]))
        assert held_out["mlm_loss"] < stats.entropy(counts)
    backbone, tokenizer = ka.load_pretrained(trained / "pre")
    assert backbone.config == CONFIG
    assert tokenizer.vocab_size == 160


@pytest.mark.any_backend
@pytest.mark.usefixtures("eagerly")
def test_deeper_from_a_shallower_one(command, trained, tmp_path, monkeypatch):
    """A warm start in mixed precision, scanned and rematerialized.

    Its first steps are nearly as good as the shallow model's last ones.
    """
    deeper = CONFIG.replace(num_hidden_layers=2, hidden_dropout_prob=0.1)
    deeper.to_json(tmp_path / "deeper.json")
    fit = Mock(wraps=cost.fit_into_folder)
    monkeypatch.setattr(cost, "fit_into_folder", fit)
    command(
        PRETRAIN + f"--output {tmp_path}/deeper --warm-start {{0}}/pre",
        f"--config {tmp_path}/deeper.json --steps=3 --warmup-steps=1",
        "--precision=mixed_bfloat16 --loop=scan --remat",
        "--optimizer.learning-rate=0.001",
    )
    encoder = fit.call_args.args[0].content.model.backbone.encoder
    assert (encoder.loop, encoder.remat) == ("scan", True)
    assert encoder.compute_dtype == "bfloat16"
    loss = report_of(tmp_path / "deeper")["training_loss"]
    if LEARNS:
        guessing = math.log(CONFIG.vocab_size) + math.log(2)
        assert loss < guessing - 1
    assert loss < 1.5 * report_of(trained / "pre")["training_loss"]
    model = ModelFolder.load(tmp_path / "deeper").model
    assert model.config == deeper
    # It is stored in float32, whatever the precision of the training was.
    assert model.dtype_policy.name == "float32"
    assert model.backbone.embeddings.dtype_policy.name == "float32"


@pytest.mark.any_backend
@pytest.mark.usefixtures("eagerly")
def test_a_finished_model_learns_on(command, trained, tmp_path):
    """Size and vocabulary are those of the warm start, if not given.

    Its first step is on shorter sequences.
    """
    command(
        f"prepare --input {{0}}/held.txt --vocab {{0}}/pre "
        f"--output {tmp_path}/shards"
    )
    command(
        PRETRAIN.replace("--config {0}/config.json", "--warm-start {0}/pre")
        + f"--output {tmp_path}/on --steps=2 --warmup-steps=1",
        "--short-steps=1 --short-length=60",
    )
    report = report_of(tmp_path / "on")
    assert report["parameters"] == report_of(trained / "pre")["parameters"]
    if LEARNS:
        assert report["training_loss"] < math.log(CONFIG.vocab_size)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
@pytest.mark.filterwarnings("error:Gradients do not exist")
def test_examples_share_rows(command, tmp_path, tiny_lines):
    """A packed model has the same scores on examples in rows of their own.

    Its sentence task is next-sentence prediction.
    """
    folder, shards = tmp_path / "packed", tmp_path / "shards"
    lines = [line[:12] for line in tiny_lines]
    documents = ["\n".join(lines[i : i + 2]) for i in range(0, 40, 2)]
    (tmp_path / "short.txt").write_text("\n\n".join(documents))
    command(
        f"prepare --input {tmp_path}/short.txt --vocab {{0}}/vocab",
        f"--output {shards}",
    )
    out = command(
        PRETRAIN + f"--data {shards} --validation {shards} --output {folder}",
        "--steps=3 --warmup-steps=1 --batch-size=4 --examples.pack",
        "--examples.sentence-task=nsp",
    )
    filled = re.search(
        r"rows of (\S+) examples on average; (\S+)% of their tokens", out
    )
    assert float(filled[1]) > 2 and float(filled[2]) > 80
    assert "% of the examples count for the sentence task nsp" in out
    assert out.count("held-out next-sentence") == 1
    report = report_of(folder)
    assert report["rows_seen"] == 3 * 4 and "examples_seen" not in report
    measured = {name.split("_")[0] for name in report["held_out"]}
    assert measured == {"mlm", "nsp"}
    task = read_json(folder / "task.json")
    for pack in (True, False):
        task["examples"]["pack"] = pack
        (folder / "task.json").write_text(json.dumps(task))
        held_out = evaluate(EvaluateRun(folder, shards))["held_out"]
        assert held_out == pytest.approx(report["held_out"], abs=1e-5)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_evaluate_repeats_the_report(command, trained):
    out = command("evaluate --model {0}/pre --data {0}/shards-held")
    expected = report_of(trained / "pre")["held_out"]["mlm_accuracy"]
    assert f"masked-LM accuracy      {expected:.3f}" in out
    assert "held-out" not in out, "no option says that this text is held out"
    report = report_of(trained / "fine")
    out = command("evaluate --model {0}/fine --data {0}/test.tsv")
    assert f"accuracy {report['accuracy']:.3f}" in out
    assert report["count"] == 40


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_the_other_sentence_task(trained, capsys, tmp_path):
    """The head for sentence order answers whether B is of another document.

    A model that learned with more words masked is measured on the same ones.
    """
    shutil.copytree(trained / "pre", tmp_path, dirs_exist_ok=True)
    task = json.loads((tmp_path / "task.json").read_text())
    task["examples"] |= {"masked_lm_prob": 0.5, "max_predictions": 30}
    (tmp_path / "task.json").write_text(json.dumps(task))
    run = EvaluateRun(
        str(tmp_path), trained / "shards-held", sentence_task="nsp"
    )
    found = evaluate(run)["held_out"]
    assert "next-sentence accuracy" in capsys.readouterr().out
    assert not any(name.startswith("sop") for name in found)
    folder = ModelFolder.load(trained / "pre")
    examples = ka.ExampleConfig(64, 30, sentence_task="nsp")
    right, words = [], 0
    for x, y, weight in ka.validation_dataset(
        ka.ShardSet.open(run.data), examples, batch_size=32
    ).as_numpy_iterator():
        answers = np.argmax(folder.model.predict_on_batch(x)["sop"], axis=1)
        right += (answers == y["nsp"])[weight["nsp"] > 0].tolist()
        words += np.count_nonzero(weight["mlm"])
    assert found["nsp_count"] == len(right) > 20
    assert found["mlm_count"] == words
    assert found["nsp_accuracy"] == pytest.approx(np.mean(right), abs=1e-6)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_the_number_of_cut_texts_is_printed(command, tmp_path, capsys):
    rows = ["text\tlabel", "the fox " * 80 + "\tplain", "hens\tplain"]
    for name, lines in (("x.tsv", rows), ("x.txt", rows[1:])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    for verb, name in (("evaluate", "x.tsv"), ("predict", "x.txt")):
        command(f"{verb} --model {{0}}/fine --data {tmp_path}/{name}")
        said = capsys.readouterr().err
        assert "1 of 2 are longer than 64 tokens and cut" in said


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_finetuning_starts_from_the_pretrained_encoder(command, trained):
    """With --from-scratch, it starts from random weights."""
    rows = [
        {"a": f"A dog {i}.", "b": "The fox.", "gold": i % 2} for i in range(20)
    ]
    write_rows(trained / "renamed.jsonl", rows)

    def finetuned(name, option):
        """A fine-tuned model whose learning rate changes nothing."""
        command(
            f"finetune --model {{0}}/pre --train {{0}}/renamed.jsonl {option}",
            f"--output {{0}}/{name} --steps=1 --learning-rate=1e-12",
            "--columns.text=a --columns.pair=b --columns.label=gold",
        )
        return ModelFolder.load(trained / name)

    pretrained = ka.load_pretrained(trained / "pre")[0].get_weights()
    loaded = finetuned("kept", "--dropout=0.25")
    assert loaded.model.config == CONFIG.replace(
        hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.25
    )
    kept = loaded.model.backbone.get_weights()
    for ours, theirs in zip(kept, pretrained, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    fresh = finetuned("fresh", "--from-scratch").model.backbone
    assert fresh.config == CONFIG
    assert abs(numpy(fresh.pooler.kernel) - pretrained[-2]).max() > 1e-3
    # The model knows the names of the columns that it was trained on.
    assert loaded.task["labels"] == ["0", "1"]
    assert loaded.task["columns"]["pair"]
    command("evaluate --model {0}/kept --data {0}/renamed.jsonl")


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
def test_interrupted_pretraining_goes_on(command, trained, capsys):
    """Ctrl-C, the same command with other settings, and then as it was.

    test_resume.py and test_loop.py show that the model is the same.
    """

    def pretrain(options):
        return command(
            PRETRAIN + "--output {0}/twice --validation {0}/shards-held",
            "--validation-steps=1 --steps=6 --warmup-steps=2",
            f"--validate-every=4 {options}",
        )

    with signalled(signal.SIGINT, step=3), pytest.raises(SystemExit) as stop:
        pretrain("")
    assert stop.value.code == 130
    assert "stopped at step 3 of 6" in capsys.readouterr().err
    for options, named in (
        ("--steps=7", "steps=6 there, 7 here"),
        ("--examples.ngram=2 --seed=3", "examples.ngram=3 there, 2 here"),
    ):
        with pytest.raises(SystemExit, match="2"):
            pretrain(options)
        assert named in capsys.readouterr().err
    # Options that change nothing in the model may differ.
    out = pretrain("--checkpoint-every=2 --tensorboard")
    assert "going on from step 3 of 6" in out
    rows = log_of(trained / "twice")
    assert [row["step"] for row in rows] == ["4", "6"]
    assert float(rows[-1]["tokens_per_second"]) > 0
    assert (trained / "twice" / "tensorboard").is_dir()
    kept = {p.name for p in (trained / "twice" / "checkpoints").iterdir()}
    assert {"step-00000004", "step-00000006"} <= kept and len(kept) <= 3
    before = (trained / "twice" / "log.csv").stat().st_mtime_ns
    again = command("pretrain --file {0}/twice/run.json")
    assert "and it is finished" in again and "cost: " in again
    assert (trained / "twice" / "log.csv").stat().st_mtime_ns == before


# A part of the message, and the mistake of a user. More of them are in the unit
# tests of what a command calls.
RUN = PRETRAIN + "--steps=9 --warmup-steps=1 --output {0}/never "
TUNE = FINETUNE + "--output {0}/never "
BAD = {
    "shard-00000.tokens.npy: its checksum": RUN + "--data {0}/shards-damaged",
    "the output folder is not empty": (
        "vocab --input {0}/train.txt --output {0}/vocab --vocab-size 160"
    ),
    "nothing was changed": (
        "predict --model {0}/fine --data {0}/test.tsv --output {0}/train.txt"
    ),
    "vocab_size is 161": RUN + "--config {0}/wider.json",
    "vocabulary (the .model file) of {0}/wider/model.keras.": (
        RUN.replace(
            "--config {0}/config.json", "--warm-start {0}/wider/model.keras"
        )
    ),
    "`type_vocab_size` must be 2": RUN + "--config {0}/segment.json",
    "max_position_embeddings=64. Received: 512": (
        RUN + "--examples.sequence-length=512"
    ),
    "keras-albert prepare": RUN + "--data {0}/vocab",
    "from 0 to 4294967295": RUN + "--seed 4294967296",
    "other.tsv:2: ": TUNE + "--validation {0}/other.tsv",
    "--columns.label": TUNE + "--columns.label text --columns.text label",
    "at least 3 for single texts. Received: 2": TUNE + "--sequence-length=2",
    "no column `sentence` for the text. The columns are `text`, `label`. "
    "Rename the right one, or add it (of a TSV or CSV file, in its first "
    "line). Or name another column with --columns.text.": (
        TUNE + "--columns.text sentence"
    ),
    "Or name another column with --columns.label.": (
        "evaluate --model {0}/fine --data {0}/test.tsv --columns.label nope"
    ),
    "name another column with --columns.text.": (
        "predict --model {0}/fine --data {0}/test.tsv --columns.text nope"
    ),
    "Or name another column with --column.": (
        "embed --model {0}/pre --data {0}/test.tsv --column nope "
        "--output {0}/never"
    ),
    "Or name another column with --corpus-column.": (
        "evaluate --model {0}/pre --data {0}/test.tsv --task embedding "
        "--columns.pair label --corpus {0}/test.tsv --corpus-column nope"
    ),
    "is a pretrained model": "evaluate --model {0}/pre --data {0}/test.tsv",
    "`split` has no meaning for token shards": (
        "evaluate --model {0}/pre --data {0}/shards-held --split test"
    ),
    "shards-damaged/shard-00000.tokens.npy: its checksum": (
        "evaluate --model {0}/pre --data {0}/shards-damaged"
    ),
    "prepared with another vocabulary than {0}/foreign has (lower_case": (
        "evaluate --model {0}/foreign --data {0}/shards-held"
    ),
    "was trained for classification. Convert or rename the file": (
        "predict --model {0}/fine --data {0}/config.json"
    ),
    "`patience` has no meaning for a pretrained model": (
        "evaluate --model {0}/pre --data {0}/shards-held --patience 2"
    ),
    "Leave --sentence-task out": (
        "evaluate --model {0}/fine --data {0}/test.tsv --sentence-task nsp"
    ),
    "strange": "evaluate --model {0}/fine --data {0}/other.tsv",
    "not what `pretrain`, `finetune` or `convert` writes": (
        "evaluate --model {0}/mistold --data {0}/test.tsv"
    ),
    "absent. Make it": (
        "predict --model {0}/fine --data {0}/test.tsv --output {0}/absent/x.l"
    ),
    "written as JSONL": (
        "predict --model {0}/fine --data {0}/test.tsv --output {0}/new.csv"
    ),
    "`columns.context` has no meaning for the task classification": (
        "predict --model {0}/fine --data {0}/test.tsv --columns.context nope"
    ),
    "names in another order: number, plain. Received: labels=['plain', ": (
        "evaluate --model {0}/fine --data {0}/test.tsv --labels plain number"
    ),
    "no other columns. Received: columns.text='foo'": (
        "predict --model {0}/fine --data {0}/train.txt --columns.text foo"
    ),
    "no other columns. Received: column='foo'": (
        "embed --model {0}/pre --data {0}/train.txt --column foo "
        "--output {0}/never"
    ),
    "no other columns. Received: corpus_column='foo'. Leave --corpus-c": (
        "evaluate --model {0}/pre --data {0}/test.tsv --task embedding "
        "--corpus {0}/train.txt --corpus-column foo"
    ),
    "Received: seed=4294967295, seeds=2": TUNE + "--seeds 2 --seed 4294967295",
    "`any_size` is for a benchmark's folder": (
        "predict --model {0}/fine --data {0}/test.tsv --any-size"
    ),
    "`columns.pair` is for classification, pairs": (
        TUNE + "--task CoLA --columns.pair other"
    ),
    "of pieces. Received: onnx. Export a saved_model": (
        "export --model {0}/pre --output {0}/never --format onnx"
    ),
    "`skip_bad` is for the rows of `data`": (
        "export --model {0}/fine --output {0}/never --skip-bad"
    ),
    "`convert` has no option `--average`": (
        "convert --input {0}/fine --output {0}/never --average weights"
    ),
    "`any_text` has no meaning for a pretrained model": (
        "evaluate --model {0}/pre --data {0}/shards-held --any-text"
    ),
    "`config` and `variant` both say the size": RUN + "--variant large_v2",
    "damaged": "export --model {0}/broken --output {0}/never",
}


@pytest.fixture(scope="module")
def bad_files(trained):
    """Adds files that commands refuse."""
    for name, changes in (
        ("wider", {"vocab_size": 161}),
        ("segment", {"type_vocab_size": 1}),
    ):
        CONFIG.replace(**changes).to_json(trained / f"{name}.json")
    shutil.copytree(trained / "pre", trained / "wider")
    wider = ka.AlbertBackbone(CONFIG.replace(vocab_size=161))
    ka.AlbertForPretraining(wider).save(trained / "wider" / "model.keras")
    (trained / "other.tsv").write_text("text\tlabel\nA dog.\tstrange\n")
    (trained / "mistold").mkdir()
    (trained / "mistold" / "task.json").write_text("[]")
    shutil.copytree(trained / "fine", trained / "broken")
    model = trained / "broken" / "model.keras"
    model.write_bytes(model.read_bytes()[:9999])
    shutil.copytree(trained / "pre", trained / "foreign")
    edit_json(trained / "foreign" / "spiece.json", lower_case=False)
    damaged = trained / "shards-damaged"
    shutil.copytree(trained / "shards-train", damaged)
    tokens = damaged / "shard-00000.tokens.npy"
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"\xff\xff")


@pytest.mark.any_backend
@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize(("message", "arguments"), BAD.items())
def test_bad_input(command, trained, message, arguments, capsys):
    """One line on standard error, status 2, and no file is written."""
    before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
    with pytest.raises(SystemExit) as stop:
        command(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error, error
    assert message.format(trained) in error
    assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(PAGES, marks=pytest.mark.any_backend, id="all pages"),
        pytest.param(
            [README],
            marks=() if BACKEND == "torch" else pytest.mark.proof,
            id="README",
        ),
    ],
)
def test_python_of_the_documentation(
    pages, trained, tmp_path, monkeypatch, few_signatures, tiny_lines
):
    """The code of each page runs as it stands, one block after the other."""
    few_signatures("serving_default")
    monkeypatch.chdir(tmp_path)
    for name, target in {
        "demo/pretrained": trained / "pre",
        "demo/finetuned": trained / "fine",
        "demo/shards-train": trained / "shards-train",
        "served": tmp_path / "my-served",  # which getting-started.md exports
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    backbone, tokenizer = ka.load_pretrained(trained / "pre")
    embedder = ka.AlbertForTextEmbedding(backbone)
    ka.Predictor(embedder).save(tmp_path / "embedder")
    reader = ka.AlbertForQuestionAnswering(backbone)
    ka.Predictor(reader, tokenizer=tokenizer).save(tmp_path / "my-reader")
    if pages == PAGES:
        rows = ({"body": line} for line in tiny_lines[:20])
        write_rows(tmp_path / "articles.jsonl", rows)
        embed = "embed --model embedder --data articles.jsonl --column body"
        run_command(*embed.split(), "--output", "vectors")
        run_command(*embed.split(), "--output", "bits", "--numbers", "binary")
        ka.export("embedder", "served-vectors")
    (tmp_path / "texts.txt").write_text("\n".join(tiny_lines[:200]))
    count = 0
    for page in pages:
        names = {"__name__": "__main__"}  # a page is a program of its own
        with monkeypatch.context() as patch:
            if page == README:  # its export is the one of getting-started.md
                patch.setattr(ka, "export", lambda *_: None)
            for block in blocks(page, "python"):
                exec(compile(block.code, block.place, "exec"), names)
                count += 1
    assert count >= (10 if pages == PAGES else 2)
