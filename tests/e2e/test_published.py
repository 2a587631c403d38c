"""Published tasks through the commands: GLUE's and RACE's own files."""

import csv
import re
import statistics

import numpy as np
import pytest
from commands import log_of, refused, report_of, rows_of, run, write_rows
from published import glue_file, passage, race_files

import keras_albert as ka
from keras_albert.data.glue import GLUE, read_glue
from keras_albert.finetuning import predict as predicting
from keras_albert.storage import DiskFull
from keras_albert.tasks.registry import submit

pytestmark = [pytest.mark.on_torch, pytest.mark.usefixtures("eagerly")]


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """Writes a few rows of every file of some tasks."""
    folder = tmp_path_factory.mktemp("glue")
    for task in ("MNLI", "AX", "STS-B", "CoLA", "RTE"):
        for split in GLUE[task].splits:
            glue_file(folder, task, split)
    return folder


def settings(model, task, folder, output):
    """What `finetune` is told."""
    told = {"model": model, "task": task, "train": folder, "output": output}
    return told | {"steps": 3, "batch_size": 4}


def finetune(model, task, folder, output, *options):
    run("finetune", *options, **settings(model, task, folder, output))
    return report_of(output)


SEEDS = ("--seeds=2", "--any-size", "--seed=5")


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, pretrained_folder, glue):
    """The output of two runs of three steps."""
    output = tmp_path_factory.mktemp("runs") / "mnli"
    finetune(pretrained_folder, "MNLI", glue, output, *SEEDS)
    return output


def test_seeds(mnli, glue, pretrained_folder, capsys):
    report = report_of(mnli)
    assert report["seeds"] == [5, 6]
    assert report["diverged"] == []
    both = [report_of(mnli / f"seed-{seed}") for seed in (5, 6)]
    assert report["scores"].keys() == {
        "accuracy",
        "matched_accuracy",
        "mismatched_accuracy",
        "training_loss",
    }
    for name, found in report["scores"].items():
        values = [each[name] for each in both]
        assert found["all"] == values
        assert found["median"] == found["mean"] == statistics.fmean(values)
    # Of the same weights would be the same loss.
    assert both[0]["training_loss"] != both[1]["training_loss"]
    best = max((5, 6), key=lambda seed: both[seed - 5]["accuracy"])
    assert report["best_seed"] == best
    # Given again, it is finished.
    told = (pretrained_folder, "MNLI", glue, mnli)
    assert finetune(*told, *SEEDS) == report
    assert "it is finished" in capsys.readouterr().out
    # Of other data, it is not that run.
    file = glue / GLUE["MNLI"].splits["train"].path
    before = file.read_text()
    file.write_text(before.replace("neutral", "entailment", 1))
    said = refused(capsys, "finetune", *SEEDS, **settings(*told))
    file.write_text(before)
    assert "is finished, and the data in" in said


def test_two_dev_splits(mnli, glue, tmp_path, capsys):
    report = report_of(mnli / "seed-5")
    assert report["count"] == 12
    parts = [report[f"{part}_accuracy"] for part in ("matched", "mismatched")]
    assert report["accuracy"] == pytest.approx(statistics.fmean(parts))
    told = {"model": mnli / "seed-5", "data": glue}
    wrong = tmp_path / "wrong.csv"
    said = run(
        "evaluate",
        "--any-size",
        "--errors=12",
        f"--errors-file={wrong}",
        **told,
    )
    assert f"matched accuracy {parts[0]:.3f}" in said
    # Both files have a line 7, say.
    groups = [row["group"] for row in csv.DictReader(wrong.open())]
    assert {*groups} <= {"matched", "mismatched"} and groups
    assert re.search(rf"line \d+, {groups[0]}: ", said)
    output = f"--output={tmp_path}"
    for command in (["evaluate"], ["predict", output]):
        other = [*command, "--any-size", "--columns.text=other"]
        assert "Leave --columns out" in refused(capsys, *other, **told)


def test_submissions(mnli, glue, tmp_path, capsys, monkeypatch):
    told = {"model": mnli / "seed-5", "data": glue}
    assert "--output" in refused(capsys, "predict", "--any-size", **told)
    (tmp_path / "file").touch()
    told["output"] = tmp_path / "file"
    assert "found a file" in refused(capsys, "predict", "--any-size", **told)
    told["output"] = tmp_path / "submission"
    skipping = "--any-size", "--skip-bad"
    said = refused(capsys, "predict", *skipping, **told)
    assert "predictions for every row. Leave --skip-bad out" in said
    assert not told["output"].exists()
    # Interrupted in the second of three files: none is there, and the same
    # command works again.
    outputs, begun = ka.Predictor.outputs, []

    def interrupted(self, *arguments, **options):
        begun.append(1)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return outputs(self, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(ka.Predictor, "outputs", interrupted)
        run("predict", "--any-size", **told)
    # The same if the disk is full at the second one.
    written = []

    def on_a_full_disk(*arguments):
        if written:
            raise DiskFull("AX.tsv", "no space")
        written.append(submit(*arguments))
        return written[0]

    with monkeypatch.context() as patch:
        patch.setattr(predicting, "submit", on_a_full_disk)
        assert "no space" in refused(capsys, "predict", "--any-size", **told)
    assert written and not written[0].exists()
    run("predict", "--any-size", **told)
    predictor = ka.Predictor.load(mnli / "seed-5")
    names = {"MNLI-m": "matched", "MNLI-mm": "mismatched", "AX": None}
    files = {path.stem: path for path in (tmp_path / "submission").iterdir()}
    assert files.keys() == names.keys()
    sentences = [[f"sentence{part} {i}" for i in range(6)] for part in (1, 2)]
    expected = predictor.predict(*sentences)
    assert set(expected) <= {"contradiction", "entailment", "neutral"}
    for path in files.values():
        assert path.read_text().splitlines() == [
            "index\tprediction",
            *(f"{100 + i}\t{name}" for i, name in enumerate(expected)),
        ]
    assert "exists" in refused(capsys, "predict", "--any-size", **told)


def test_start_from_another_task(
    mnli, glue, tmp_path, pretrained_folder, capsys
):
    note = "fine-tuned on MNLI"
    finetune(mnli / "seed-6", "RTE", glue, tmp_path / "a", "--any-size")
    assert note not in capsys.readouterr().out
    finetune(pretrained_folder, "RTE", glue, tmp_path / "b", "--any-size")
    assert note in capsys.readouterr().out


def test_similarities(pretrained_folder, glue, tmp_path):
    output = tmp_path / "sts"
    options = ("--any-size", "--validate-every=2")
    report = finetune(pretrained_folder, "STS-B", glue, output, *options)
    assert report.keys() >= {"pearson", "spearman"}
    assert [row["step"] for row in log_of(output)] == ["2", "3"]
    submission = tmp_path / "submission"
    run("predict", "--any-size", model=output, data=glue, output=submission)
    lines = (submission / "STS-B.tsv").read_text().splitlines()
    assert len(lines) == 7
    rows = read_glue(glue, "STS-B", "test", any_size=True).values
    found = ka.Predictor.load(output).predict(rows["text"], rows["pair"])
    expected = np.clip(found, 0, 5)
    found = [float(line.split("\t")[1]) for line in lines[1:]]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_cola_is_judged_by_matthews(pretrained_folder, glue, tmp_path):
    """Its baseline is 0, the correlation of a constant answer."""
    output = tmp_path / "cola"
    report = finetune(pretrained_folder, "CoLA", glue, output, "--any-size")
    assert report["best"] == "matthews"
    assert report["baseline"] == 0


def test_schools(pretrained_folder, tmp_path, capsys):
    data, output = tmp_path / "RACE", tmp_path / "race"
    for split in ("train", "dev", "test"):
        race_files(data, split, [passage("a", 3)], [passage("b", 1)])
    told = pretrained_folder, "RACE", data, output
    refusal = refused(capsys, "finetune", **settings(*told))
    assert "expected 87,866 questions in train, as published" in refusal
    report = finetune(*told, "--any-size")
    assert report["accuracy"] == pytest.approx(
        (3 * report["middle_accuracy"] + report["high_accuracy"]) / 4
    )
    told = {"model": output, "data": data}
    said = run("evaluate", "--split=test", "--any-size", **told)
    # The test split is the same file as the dev split.
    assert f"accuracy {report['accuracy']:.3f}, middle accuracy" in said
    refusal = refused(capsys, "predict", **told)
    assert "not fine-tuned on a task of GLUE" in refusal


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("CoLA", ("--validation=x.tsv",), "Leave --validation out"),
        ("CoLA", ("--train={glue}/CoLA/train.tsv",), "not a folder"),
        ("CoLA", (), "expected 8,551 rows, as published. Received: 6"),
        ("STS-B", ("--any-size", "--class-weights"), "Leave --class-weights"),
        ("WNLI", (), "WNLI/train.tsv: no such file"),
        ("CoLA", ("--warmup-steps=9",), "`warmup_steps` must be"),
        ("CoLA", ("--seeds=2",), "expected 8,551 rows, as published"),
    ],
)
def test_mistakes(
    pretrained_folder, glue, tmp_path, capsys, task, options, message
):
    told = settings(pretrained_folder, task, glue, tmp_path / "out")
    options = (option.format(glue=glue) for option in options)
    assert message in refused(capsys, "finetune", *options, **told)
    assert not (tmp_path / "out").exists()


def test_labels_that_are_not_published(mnli, glue, capsys):
    told = {"model": mnli / "seed-5", "data": glue, "split": "test"}
    refusal = refused(capsys, "evaluate", **told)
    assert "MNLI's test split are not published" in refusal


def test_the_best_of_several_is_named(mnli, tmp_path, capsys):
    """`predict` averages several models; other commands take one."""
    best = report_of(mnli)["best_seed"]
    output = tmp_path / "out"
    refusal = refused(capsys, "convert", input=mnli, output=output)
    assert f"the best is {mnli / f'seed-{best}'}" in refusal


def test_what_a_prediction_would_replace(mnli, tmp_path, capsys):
    """The column is in the second row; no prediction is printed."""
    row = {"text": "a", "pair": "b"}
    table = write_rows(tmp_path / "table.jsonl", [row, row | {"score": 3}])
    told = {"model": mnli / "seed-5", "data": table}
    refusal = refused(capsys, "predict", **told)
    assert "would be replaced: score" in refusal
    write_rows(table, [row])
    (found,) = rows_of(run("predict", **told))
    assert found.keys() == {"text", "pair", "prediction", "score"}


def test_an_export_is_compared_on_the_dev_split(mnli, glue, tmp_path):
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is missing")
    told = {"model": mnli / "seed-5", "data": glue, "format": "onnx"}
    said = run("export", **told, output=tmp_path / "out")
    found = f"{report_of(mnli / 'seed-5')['accuracy']:.4f}"
    assert f"accuracy {found} as a model, {found} as onnx float32" in said


def test_card(mnli, glue):
    folder = mnli / "seed-5"
    text = (folder / "README.md").read_text()
    report = report_of(folder)
    assert text.startswith("# ALBERT for MNLI\n")
    for expected in (
        "3 labels: `contradiction`, `entailment`, `neutral`",
        "6 examples of",
        f"step {report['step']} is kept, after {report['epoch']:.1f} passes",
        "- batches of 4, learning rate 0.0003, seed 5; everything else",
        f"| matched accuracy | {report['matched_accuracy']:.4f} |",
        'predict(["a text"], ["its second text"])',
        "cut after 40 tokens",
    ):
        assert expected in text
    assert str(glue.parent) not in text
