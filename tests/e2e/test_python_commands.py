"""`ka.pretrain`, `ka.finetune` and `ka.evaluate`, with data in memory."""

import dataclasses
import io
import itertools
import os
import random
import re
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import (
    log_of,
    report_of,
    rows_of,
    run as command,
    table_of,
    write_rows,
)
from small import TEXT_CONFIG, add_noise, signalled

import keras_albert as ka
from keras_albert import python_api
from keras_albert.cli import run_of
from keras_albert.finetuning import run as finetune_run

# They are the commands, which other tests run on all backends.
pytestmark = pytest.mark.on_torch

WORDS = {"animal": ("fox", "hens", "dog"), "place": ("barn", "village")}
ROWS = [
    {"body": f"the {word} {count}", "label": label}
    for count, (label, words) in itertools.product(range(12), WORDS.items())
    for word in words
]
LEARNING = {
    "columns": {"text": "body"},
    "batch_size": 10,
    "epochs": 8,
    "learning_rate": 0.003,
    "warmup_share": 0.2,
}


@pytest.fixture(scope="module")
def model(tiny_vocab):
    tokenizer = ka.Tokenizer(tiny_vocab)
    return add_noise(ka.AlbertBackbone(TEXT_CONFIG, tokenizer=tokenizer))


def written(folder):
    """The files of a folder, with the times at which they were written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """Fine-tuned from a model in memory, on a list of rows."""
    output = tmp_path_factory.mktemp("front") / "classifier"
    return ka.finetune(model, ROWS, output, **LEARNING)


def test_finetune(run, model):
    assert run.report["accuracy"] > 0.9
    assert f"accuracy {run.report['accuracy']:.3f}" in repr(run)
    assert run.predictor.predict(["the fox 1", "the barn 3"]) == [
        "animal",
        "place",
    ]
    titles = [axes.get_title() for axes in run.plot().axes]
    assert titles[:2] == ["loss", "accuracy"]
    # The same call finds the finished run, and does not train again.
    before = written(run.folder.parent)
    again = ka.finetune(model, ROWS, run.folder, **LEARNING)
    assert again.report == run.report
    # So does a model that was made again, whatever Keras names it.
    twin = ka.AlbertBackbone(TEXT_CONFIG, name="twin")
    twin.set_weights(model.get_weights())
    twin.tokenizer = model.tokenizer
    assert ka.finetune(twin, ROWS, run.folder, **LEARNING).report == run.report
    # Other data, or another model, are another run.
    other = add_noise(ka.AlbertBackbone(TEXT_CONFIG), seed=9)
    other.tokenizer = model.tokenizer
    changed = {"train": [model, ROWS[:-1]], "model": [other, ROWS]}
    for name, given in changed.items():
        message = f"other settings.*{name}='another `{name}`' there, '`{name}`'"
        with pytest.raises(ka.AlbertError, match=message):
            ka.finetune(*given, run.folder, **LEARNING)
    assert written(run.folder.parent) == before


def test_evaluate(run, model, tmp_path):
    """In memory and from files, with the same scores as the command."""
    frame = pytest.importorskip("pandas").DataFrame(ROWS)
    found = ka.evaluate(run.predictor, frame)
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    assert ka.evaluate(run.folder, path).report == found.report
    assert ka.evaluate(run, path).report == found.report
    said = ka.evaluate(run, [{"body": "use --batch-size", "label": "place"}])
    assert "batch_size" not in repr(said)
    two = ka.evaluate([run, run.predictor], frame)
    assert two.report["accuracy"] == found.report["accuracy"]
    assert f"accuracy {found.report['accuracy']:.3f}" in repr(found)
    figure = found.plot()
    assert figure.axes[0].get_ylabel() == "expected"
    pairs = [{"text": "a fox", "pair": "a dog", "label": n} for n in range(3)]
    similarity = ka.evaluate(run.folder, pairs, task="similarity")
    names = [x.get_text() for x in similarity.plot().axes[0].get_yticklabels()]
    assert names[0] == "spearman"
    retrieved = ka.evaluate(
        run.folder,
        {"a": ["a fox", "a barn"], "b": ["hens", "a village"]},
        task="embedding",
        columns={"text": "a", "pair": "b"},
        start=model,
        corpus=[{"a": "a dog"}],
    )
    assert "also among 1 texts of `corpus`" in repr(retrieved)
    assert "before fine-tuning: mrr" in repr(retrieved)


def test_saved_datasets(run, model, tmp_path):
    """Every command that takes a table takes their folders."""
    folder = tmp_path / "rows"
    pytest.importorskip("datasets").Dataset.from_list(ROWS).save_to_disk(folder)
    assert ka.evaluate(run, folder).report == ka.evaluate(run, ROWS).report
    short = {**LEARNING, "epochs": None, "steps": 1}
    ka.finetune(model, folder, tmp_path / "out", **short)
    given = {"model": run.folder, "data": folder}
    rows = rows_of(command("predict", **given))
    assert [row["body"] for row in rows] == [row["body"] for row in ROWS]
    command("embed", **given, column="body", output=tmp_path / "v")
    assert report_of(tmp_path / "v")["texts"] == len(ROWS)


def test_options_are_those_of_the_command(model, tmp_path):
    recipe = {"recipe": "small", "data": Path("a"), "steps": 170}
    settings = run_of("pretrain", {**recipe, "output": "b"})
    assert (settings.variant, settings.warmup_steps) == ("small", 17)
    for options, words in (
        ({"epoch": 2}, r"finetune\(\): there is no option `epoch`.*`epochs`"),
        ({"batch_size": "many"}, "`batch_size` must be an integer"),
        ({"columns": "body"}, "`columns` is a section"),
        ({"task": "mood"}, "`task` must be one of"),
        ({"epochs": 0}, "epochs"),
        ({"teacher": 3}, "`teacher` must be a model, a folder.*Received: int"),
        ({"train": [{"body": "a"}]}, r"`train`, row 0: no column `text`"),
        ({"train": {"body": "abc"}}, "`body` must be a list of values"),
        ({"embedding": {"dimensions": [1.5]}}, "dimensions.*1.5"),
        ({"columns": ka.TableColumns("t")}, "no column `t`.*`columns.text`"),
        (
            {"validation": None, "calibrate": True},
            "Give them with `validation`, or leave out `validation=None`",
        ),
        ({"lora_rank": 2, "freeze": "encoder"}, "`freeze` or `lora_rank` out"),
    ):
        given = {"train": ROWS, **options}
        with pytest.raises(ka.AlbertError, match=words):
            ka.finetune(model, output=tmp_path / "model", **given)
        assert not (tmp_path / "model").exists()
    with pytest.raises(ka.AlbertError, match=r"^--seed/b: no such file"):
        ka.finetune(model, "--seed/b", tmp_path / "model")
    bare = ka.AlbertBackbone(TEXT_CONFIG)
    with pytest.raises(ka.AlbertError, match=r"model\.tokenizer = Tok"):
        ka.finetune(bare, ROWS, tmp_path / "model")
    for data, words in (
        (3, "path of a file"),
        ("x.jsonl", "folder of token sh"),
    ):
        with pytest.raises(ka.AlbertError, match=words):
            ka.pretrain(data, tmp_path / "model")


def test_notes_have_the_names_of_the_call(model, tmp_path, capsys):
    """Not the command's flags, nor the files that tables were written to."""
    kinds = {"animal": "the--seed", "place": "no--where"}
    rows = [
        {"body": f"{row['body']} ☃", "kind": kinds[row["label"]]}
        for row in ROWS
    ]
    # Both texts have the same prediction, whatever is learned.
    equal = [{"body": "a", "kind": kind} for kind in kinds.values()]
    run = ka.finetune(
        model,
        rows,
        tmp_path / "my--run",
        validation=equal,
        columns={"label": "kind", "text": "body"},
        steps=1,
        any_text=True,
    )
    said, warned = capsys.readouterr()
    assert "a model of width 26: `batch_size` 16 `learning_rate` 0.0003" in said
    assert "warning: `train`: the vocabulary cannot read" in warned
    assert "lower `learning_rate` or raise `warmup_share`" in said
    assert "lower `learning_rate` or raise `warmup_share`" in repr(run)
    again = ka.evaluate(run, equal)
    assert "lower `learning_rate` or raise `warmup_share`" in again.text
    for text in (said, warned, repr(run), again.text):
        assert not re.search(r"(?<!\w)--", text)
        assert ".jsonl" not in text
    assert "(the--seed 36, no--where 24)" in said and "my--run" in said
    assert re.search("^the--seed ", again.text, re.MULTILINE)
    # Commands are still written as such.
    with pytest.raises(ka.AlbertError, match="with `finetune --exits own`"):
        ka.evaluate(run, rows, patience=3)


def test_a_folder_for_temporary_files(model, tmp_path, monkeypatch, capsys):
    """It is named, and goes if the call is refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ka.AlbertError, match="no column"):
        ka.finetune(model, ROWS, columns={"text": "none of them"})
    assert not list(tmp_path.iterdir())
    options = {"steps": 2, "columns": ka.TableColumns("body")}
    with signalled(signal.SIGTERM, step=1), pytest.raises(SystemExit):
        ka.finetune(model, ROWS, checkpoint_every=1, **options)
    (folder,) = tmp_path.glob("keras-albert-*/model")
    assert f"the output folder is {folder}" in capsys.readouterr().out
    run = ka.finetune(model, ROWS, folder, checkpoint_every=1, **options)
    assert "going on from step 1 of 2" in capsys.readouterr().out
    assert run.folder == folder


def test_a_run_that_has_begun_is_kept(model, tmp_path, monkeypatch):
    """It has a model, even if its last file cannot be written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = Mock(side_effect=ka.AlbertError("no space left"))
    monkeypatch.setattr(finetune_run, "write_card", full)
    with pytest.raises(ka.AlbertError, match="no space left"):
        ka.finetune(model, ROWS, steps=2, columns=ka.TableColumns("body"))
    assert list(tmp_path.glob("keras-albert-*/model/model.keras"))


def test_seeds_and_numbers(model, tmp_path):
    """The picture has the score; of several seeds, that of the best one."""
    rows = [{**row, "label": len(row["body"])} for row in ROWS]
    run = ka.finetune(
        model,
        rows,
        tmp_path / "numbers",
        task="regression",
        seeds=2,
        **{**LEARNING, "epochs": None, "steps": 2},
    )
    titles = [axes.get_title() for axes in run.plot().axes]
    assert titles == ["loss", "pearson", "tokens per second"]
    for seed in run.report["seeds"]:
        report = {**run.report, "best_seed": seed}
        plot = dataclasses.replace(run, report=report).plot()
        (shown,) = plot.axes[0].lines[0].get_ydata()
        (logged,) = log_of(run.folder / f"seed-{seed}")
        assert shown == float(logged["loss"])
    wrong = tmp_path / "wrong.csv"
    own = {"prediction (table)": "first", "prediction": "mine"}
    scored = [{**row, **own} for row in rows]
    found = ka.evaluate(run, scored, errors=1, errors_file=wrong)
    first = table_of(wrong)[0]
    assert first["prediction (table)"] == "first"
    assert first["prediction (table) (table)"] == "mine" != first["prediction"]
    assert "the 1 farthest off:\nrow" in repr(found)
    with pytest.raises(ka.AlbertError, match="there is no folder"):
        ka.evaluate(run, rows, errors_file=tmp_path / "none" / "wrong.csv")


def test_global_settings_of_the_caller(model, tmp_path, monkeypatch):
    """They do not change a run, and are the same after it.

    Keras would add up the loss in bfloat16, and end each epoch, which is a
    whole run here, after one step. A daemon may have no streams.
    """
    settings = {**LEARNING, "epochs": None, "steps": 4, "validation": None}
    expected = ka.finetune(model, ROWS, tmp_path / "plain", **settings)
    monkeypatch.chdir(tmp_path)
    try:
        keras.config.set_floatx("bfloat16")
        keras.config.set_max_steps_per_epoch(1)
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", None)
            patch.setattr("sys.stderr", None)
            found = ka.finetune(model, ROWS, "changed", **settings)
            monkeypatch.chdir("/")  # the folder is found from everywhere
            answers = found.predictor.predict(["the fox 1"])
        assert keras.config.floatx() == "bfloat16"
        assert keras.config.max_steps_per_epoch() == 1
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_max_steps_per_epoch(None)
    for name in ("training_loss", "on_training_rows"):
        assert found.report[name] == expected.report[name]
    assert answers == expected.predictor.predict(["the fox 1"])


def test_evaluations_in_several_threads(run, capsys):
    """Each has its own text, and what others print goes where it went."""
    tables = [ROWS[:count] for count in (9, 20, 31, 42)]
    expected = [repr(ka.evaluate(run, table)) for table in tables]
    before = sys.stdout, sys.stderr, os.environ.get("COLUMNS")
    with ThreadPoolExecutor(len(tables)) as pool:
        found = [*pool.map(lambda table: ka.evaluate(run, table), tables * 3)]
    assert [*map(repr, found)] == expected * 3
    assert before == (sys.stdout, sys.stderr, os.environ.get("COLUMNS"))
    assert capsys.readouterr().out == ""


def test_a_table_whose_name_is_not_utf8(model, tmp_path):
    """Its name is in the model card, a file that has to be UTF-8."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    write_rows(path, ROWS)
    settings = {**LEARNING, "epochs": None, "steps": 2}
    run = ka.finetune(model, path, tmp_path / "run", **settings)
    assert "caf?.jsonl" in (run.folder / "README.md").read_text()
    assert 0 <= ka.evaluate(run, path).report["accuracy"] <= 1


@pytest.mark.parametrize("encoding", ["ascii", "koi8-r", "cp1252"])
def test_letters_that_the_callers_output_lacks(monkeypatch, encoding):
    """Labels are printed in any case."""
    written = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    monkeypatch.setattr("sys.stderr", written)
    with python_api._Inputs(Path("unused")).named_as_given():
        print("a \u65e5", file=sys.stderr)
    assert written.buffer.getvalue() == b"a \\u65e5\n"


def test_random_numbers_of_the_caller():
    """A run sets their seed, and its caller draws others after each run."""
    drawn = []

    def draw():
        return (
            random.random(),
            np.random.random(),
            float(keras.random.uniform(())),
        )

    for _ in range(2):
        with python_api._own_random_numbers():
            keras.utils.set_random_seed(3)
            draw()
        drawn.append(draw())
    assert all(a != b for a, b in zip(*drawn, strict=True))


def test_pretrain(tiny_lines, tiny_vocab, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(tiny_lines))
    told = {"vocab": tiny_vocab, "output": tmp_path / "shards"}
    command("prepare", input=text, **told)
    config = TEXT_CONFIG.replace(vocab_size=160)
    start = ka.AlbertBackbone(config, tokenizer=ka.Tokenizer(tiny_vocab))
    run = ka.pretrain(
        tmp_path / "shards",
        tmp_path / "model",
        validation=None,
        warm_start=start,
        steps=2,
        warmup_steps=0,
        batch_size=4,
        examples={"sequence_length": 40, "sentence_task": "none"},
    )
    assert type(ka.load(run.folder)) is ka.AlbertForPretraining
    assert "loss" in repr(run) and run.plot().axes
    scores = ka.evaluate(run.folder, tmp_path / "shards")
    assert "masked-LM accuracy" in repr(scores)
    with pytest.raises(ka.AlbertError, match="without a sentence task and has"):
        ka.evaluate(run.folder, tmp_path / "shards", sentence_task="sop")
    names = [x.get_text() for x in scores.plot().axes[0].get_yticklabels()]
    assert names == ["mlm accuracy", "mlm baseline"]


def test_another_process_than_the_first(model, tmp_path, monkeypatch):
    """The first one has the report; the others return without."""
    for name in ("run_pretrain", "run_finetune"):
        monkeypatch.setattr(python_api, name, lambda run: {})
    assert ka.pretrain("shards", tmp_path / "a").report == {}
    assert ka.finetune("model", "train.tsv", tmp_path / "b").report == {}


def test_mistakes(run, tmp_path):
    """The surest first, on the screen and in a file."""
    flipped = {"animal": "place", "place": "animal"}
    rows = [
        {**row, "label": flipped[row["label"]] if n in (3, 7) else row["label"]}
        for n, row in enumerate(ROWS)
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    told = {"data": path, "errors": 1, "errors_file": tmp_path / "wrong.csv"}
    said = command("evaluate", model=run.folder, **told)
    wrong = table_of(tmp_path / "wrong.csv")
    lines = [int(row["line"]) for row in wrong]
    assert {4, 8} <= {*lines}
    scores = [float(row["score"]) for row in wrong]
    assert scores == sorted(scores, reverse=True)
    for row in wrong:
        assert row["body"] == rows[int(row["line"]) - 1]["body"]
        assert row["expected"] == flipped[row["prediction"]]
    first = wrong[0]
    assert f"{len(wrong)} of 60 examples have a wrong prediction" in said
    assert (
        f"line {first['line']}: {first['prediction']} "
        f"({scores[0]:.3f}), expected {first['expected']}: {first['body']}"
    ) in said
    # In memory it is the row, and the user's own text is as it was.
    both = [{"body": "a --seed", "label": label} for label in flipped]
    text = ka.evaluate(run.folder, both, errors=2, any_text=True).text
    assert re.search("^row [01]: .*: a --seed$", text, re.MULTILINE)
    named = [{"id": 9 - number, **row} for number, row in enumerate(both)]
    text = ka.evaluate(run.folder, named, errors=2, any_text=True).text
    assert re.search("^row (0, 9|1, 8): .*: a --seed$", text, re.MULTILINE)
    with pytest.raises(ka.AlbertError, match=r"of `labels` begins .*'-x'"):
        ka.evaluate(run.folder, both, labels=["-x", "y"])
    allowed = {"model": "m", "data": "d", "labels": ["-", "- a"]}
    assert run_of("evaluate", allowed).labels == ("-", "- a")
    pairs = [{"text": "a fox", "pair": "a dog", "label": n} for n in range(3)]
    with pytest.raises(ka.AlbertError, match=r"`errors` is for.*'similarity'"):
        ka.evaluate(run.folder, pairs, task="similarity", errors=3)


def test_the_checksum_of_a_model_that_is_made_again(model, tmp_path):
    """By it a run recognizes its model, also in another process."""
    path, checksum = tmp_path / "model.keras", python_api._checksum
    classifier = ka.AlbertForSequenceClassification(model, 2, labels=("a", "b"))
    classifier.save(path)
    again = [ka.load(path) for _ in range(2)]
    assert len({*map(checksum, (classifier, *again))}) == 1
    half = ka.load(path, dtype="mixed_bfloat16")
    assert checksum(half) != checksum(classifier)
    again[0].labels = ("b", "a")
    assert checksum(again[0]) != checksum(classifier)
