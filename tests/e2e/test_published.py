"""Published tasks through the commands: GLUE's and RACE's own files."""

import json
import statistics

import pytest
from published import glue_file, passage, race_files

from keras_albert import Predictor
from keras_albert.cli import main
from keras_albert.data.glue import GLUE

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("eagerly")]


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """Writes a few rows of every file of some tasks."""
    folder = tmp_path_factory.mktemp("glue")
    for task in ("MNLI", "AX", "STS-B", "CoLA", "RTE"):
        for split in GLUE[task].splits:
            glue_file(folder, task, split)
    return folder


def finetune(model, task, folder, output, *options):
    main(
        ["finetune", "--model", str(model), "--task", task, "--steps=3"]
        + ["--train", str(folder), "--output", str(output), "--batch-size=4"]
        + [*options]
    )
    return json.loads((output / "report.json").read_text())


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, pretrained_folder, glue):
    """The output of two runs of three steps."""
    output = tmp_path_factory.mktemp("runs") / "mnli"
    options = ("--seeds=2", "--any-size", "--seed=5")
    finetune(pretrained_folder, "MNLI", glue, output, *options)
    return output


def refused(capsys, *arguments):
    with pytest.raises(SystemExit):
        main([*arguments])
    return capsys.readouterr().err


def test_seeds(mnli, glue, pretrained_folder, capsys):
    report = json.loads((mnli / "report.json").read_text())
    assert report["seeds"] == [5, 6]
    assert report["diverged"] == []
    both = [
        json.loads((mnli / f"seed-{seed}" / "report.json").read_text())
        for seed in (5, 6)
    ]
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
    options = ("--seeds=2", "--any-size", "--seed=5")
    assert finetune(pretrained_folder, "MNLI", glue, mnli, *options) == report
    assert "it is finished" in capsys.readouterr().out
    # Of other data, it is not that run.
    file = glue / GLUE["MNLI"].splits["train"].path
    before = file.read_text()
    file.write_text(before.replace("neutral", "entailment", 1))
    said = refused(
        capsys,
        *["finetune", "--model", str(pretrained_folder), "--task", "MNLI"],
        *["--steps=3", "--train", str(glue), "--output", str(mnli)],
        *["--batch-size=4", *options],
    )
    file.write_text(before)
    assert "is finished, and was made of other data" in said


def test_two_dev_splits(mnli, glue, capsys):
    report = json.loads((mnli / "seed-5" / "report.json").read_text())
    assert report["count"] == 12
    parts = [report[f"{part}_accuracy"] for part in ("matched", "mismatched")]
    assert report["accuracy"] == pytest.approx(statistics.fmean(parts))
    main(
        ["evaluate", "--model", str(mnli / "seed-5"), "--data", str(glue)]
        + ["--any-size"]
    )
    assert f"matched accuracy {parts[0]:.3f}" in capsys.readouterr().out


def test_submissions(mnli, glue, tmp_path, capsys):
    arguments = ("predict", "--model", str(mnli / "seed-5"), "--data")
    arguments += (str(glue), "--any-size")
    assert "--output" in refused(capsys, *arguments)
    arguments += ("--output", str(tmp_path / "submission"))
    main([*arguments])
    predictor = Predictor.load(mnli / "seed-5")
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
    assert "exists" in refused(capsys, *arguments)


def test_start_from_another_task(
    mnli, glue, tmp_path, pretrained_folder, capsys
):
    note = "fine-tuned on MNLI"
    finetune(mnli / "seed-6", "RTE", glue, tmp_path / "a", "--any-size")
    assert note not in capsys.readouterr().out
    finetune(pretrained_folder, "RTE", glue, tmp_path / "b", "--any-size")
    assert note in capsys.readouterr().out


def test_similarities(pretrained_folder, glue, tmp_path, capsys):
    output = tmp_path / "sts"
    options = ("--any-size", "--validate-every=2")
    report = finetune(pretrained_folder, "STS-B", glue, output, *options)
    assert report.keys() >= {"pearson", "spearman"}
    log = (output / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in log] == ["step", "2", "3"]
    main(
        ["predict", "--model", str(output), "--data", str(glue)]
        + ["--any-size", "--output", str(tmp_path / "submission")]
    )
    lines = (tmp_path / "submission" / "STS-B.tsv").read_text().splitlines()
    assert len(lines) == 7
    assert all(0 <= float(line.split("\t")[1]) <= 5 for line in lines[1:])


def test_constant_answers_have_no_matthews(pretrained_folder, glue, tmp_path):
    output = tmp_path / "cola"
    report = finetune(pretrained_folder, "CoLA", glue, output, "--any-size")
    assert report["best"] == "matthews"
    assert report["baseline"] == 0


def test_schools(pretrained_folder, tmp_path, capsys):
    for split in ("train", "dev", "test"):
        race_files(
            tmp_path / "RACE",
            split,
            middle=[passage("a", 3)],
            high=[passage("b", 1)],
        )
    output = tmp_path / "race"
    arguments = pretrained_folder, "RACE", tmp_path / "RACE", output
    with pytest.raises(SystemExit):
        finetune(*arguments)
    refusal = capsys.readouterr().err
    assert "expected 87,866 questions in train, as published" in refusal
    report = finetune(*arguments, "--any-size")
    assert report["accuracy"] == pytest.approx(
        (3 * report["middle_accuracy"] + report["high_accuracy"]) / 4
    )
    capsys.readouterr()
    main(
        ["evaluate", "--model", str(output), "--split=test", "--any-size"]
        + ["--data", str(tmp_path / "RACE")]
    )
    # The test split is the same file as the dev split.
    shown = f"accuracy {report['accuracy']:.3f}, middle accuracy"
    assert shown in capsys.readouterr().out
    refusal = refused(
        capsys,
        *("predict", "--model", str(output), "--data", str(tmp_path / "RACE")),
    )
    assert "not fine-tuned on a task of GLUE" in refusal


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("CoLA", ("--validation", "x.tsv"), "Leave --validation out"),
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
    with pytest.raises(SystemExit):
        finetune(pretrained_folder, task, glue, tmp_path / "out", *options)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_benchmark(pretrained_folder, glue, tmp_path, capsys):
    with pytest.raises(SystemExit):
        path = glue / "CoLA" / "train.tsv"
        finetune(pretrained_folder, "CoLA", path, tmp_path / "out")
    assert "not a folder" in capsys.readouterr().err


def test_labels_that_are_not_published(mnli, glue, capsys):
    refusal = refused(
        capsys,
        *("evaluate", "--model", str(mnli / "seed-5"), "--data", str(glue)),
        "--split=test",
    )
    assert "MNLI's test split are not published" in refusal


def test_the_best_of_several_is_named(mnli, tmp_path, capsys):
    """`predict` averages several models; other commands take one."""
    best = json.loads((mnli / "report.json").read_text())["best_seed"]
    output = str(tmp_path / "out")
    refusal = refused(
        capsys, "convert", "--input", str(mnli), "--output", output
    )
    assert f"the best is {mnli / f'seed-{best}'}" in refusal


def test_what_a_prediction_would_replace(mnli, tmp_path, capsys):
    """The column is in the second row; no prediction is printed."""
    row = {"text": "a", "pair": "b"}
    table = tmp_path / "table.jsonl"
    rows = [row, row | {"score": 3}]
    table.write_text("\n".join(map(json.dumps, rows)))
    arguments = ("predict", "--model", str(mnli / "seed-5"))
    refusal = refused(capsys, *arguments, "--data", str(table))
    assert "would be replaced: score" in refusal
    table.write_text(json.dumps(row))
    main([*arguments, "--data", str(table)])
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert found.keys() == {"text", "pair", "prediction", "score"}


def test_an_export_is_compared_on_the_dev_split(mnli, glue, tmp_path, capsys):
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is missing")
    report = json.loads((mnli / "seed-5" / "report.json").read_text())
    main(
        ["export", "--model", str(mnli / "seed-5"), "--format", "onnx"]
        + ["--data", str(glue), "--output", str(tmp_path / "out")]
    )
    assert (
        f"accuracy {report['accuracy']:.4f} as a model, "
        f"{report['accuracy']:.4f} as onnx float32"
    ) in capsys.readouterr().out


def test_card(mnli, glue):
    folder = mnli / "seed-5"
    text = (folder / "README.md").read_text()
    report = json.loads((folder / "report.json").read_text())
    assert text.startswith("# ALBERT for MNLI\n")
    for expected in (
        "3 labels: `contradiction`, `entailment`, `neutral`",
        "6 examples of",
        f"| matched accuracy | {report['matched_accuracy']:.4f} |",
        'predict(["a text"], ["its second text"])',
        "cut after 40 tokens",
    ):
        assert expected in text
    assert str(glue.parent) not in text
