"""Artefacts for servers and devices: the model's answers, from their files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from small import TEXT_CONFIG, randomize

from keras_albert.cli import main
from keras_albert.config import (
    EXPORT_WEIGHTS,
    AlbertError,
    ExportRun,
    TableColumns,
)
from keras_albert.export import checking, exporting
from keras_albert.export.artefacts import load_exported
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.folders import ModelFolder, Predictor
from keras_albert.training.tasks import TASKS

pytest.importorskip("tensorflow_text")

ROWS = [
    {"text": "The fox sold two hens", "label": "no"},
    {"text": "a letter in London (7 miles away).", "label": "yes"},
    {"text": "nothing", "label": "no"},
] * 8
CASES = [
    (name, weights) for name, all in EXPORT_WEIGHTS.items() for weights in all
]
if keras.backend.backend() != "tensorflow":  # in a worker: one of each
    CASES = [(name, all[-1]) for name, all in EXPORT_WEIGHTS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocab):
    """A random classifier, and a labelled table."""
    folder = tmp_path_factory.mktemp("exports")
    tokenizer = Tokenizer(tiny_vocab)
    keras.utils.set_random_seed(3)
    model = randomize(
        TASKS["classification"].head(
            AlbertBackbone(TEXT_CONFIG), ("no", "yes"), 0.1
        )
    )
    predictor = Predictor(
        model,
        tokenizer,
        "classification",
        ("no", "yes"),
        (8, 20),
        TableColumns(),
    )
    (folder / "model").mkdir()
    ModelFolder(model, tokenizer, predictor.settings()).save(folder / "model")
    lines = map(json.dumps, ROWS)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder


def run(folder, output, *options):
    main(
        ["export", "--model", str(folder / "model"), "--output", str(output)]
        + [*options]
    )


@pytest.mark.parametrize(("kind", "weights"), CASES)
def test_every_format(folder, tmp_path, capsys, kind, weights):
    """The file's outputs are the model's; the command says how near."""
    rows = str(folder / "rows.jsonl")
    run(
        folder,
        tmp_path / "out",
        *["--format", kind, "--weights", weights, "--data", rows, "--force"],
    )
    said = capsys.readouterr().out
    (same,) = re.findall(r"; ([\d.]+)% of 24 predictions are the same", said)
    assert float(same) == 100 or (weights == "int8" and float(same) > 90)
    made = tmp_path / "out" / ("1" if kind == "saved_model" else "")
    texts = [row["text"] for row in ROWS[:3]]
    expected = Predictor.load(folder / "model").probabilities(texts)
    found = load_exported(made).probabilities(texts)
    atol = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2, "int8": 0.1}
    np.testing.assert_allclose(found, expected, atol=atol[weights])
    main(["check", str(made), str(folder / "model"), rows])
    said = capsys.readouterr().out
    assert f"{kind}, {weights}, " in said
    assert "8 x 32 tokens" in said and "128 tokens" not in said


def test_device(folder, tmp_path):
    """The example's loop, in a process that has no Keras."""
    run(folder, tmp_path / "device", "--format=litert")
    script = Path(__file__).parents[2] / "examples" / "device.py"
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "assert not {'keras', 'tensorflow'} & sys.modules.keys()"
    )
    texts = [row["text"] for row in ROWS[:3]] + ["", "é" * 200]
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "device")],
        input="\n".join(texts) + "\n",
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    predictor = Predictor.load(folder / "model")
    labels, odds, times = zip(
        *[line.split("\t") for line in found], strict=True
    )
    assert list(labels) == predictor.predict(texts)
    expected = predictor.probabilities(texts).max(axis=1)
    np.testing.assert_allclose([*map(float, odds)], expected, atol=1e-3)
    assert all(time.endswith(" ms") for time in times)


@pytest.mark.any_backend
def test_what_is_not_finite_is_no_small_difference():
    one = [np.array([0.5, 1.0]), np.array([2.0, 3.0])]
    other = [np.array([0.5, 1.25]), np.array([np.nan, 3.0])]
    assert checking._largest_difference(one[:1], other[:1]) == 0.25
    assert np.isnan(checking._largest_difference(one, other))


@pytest.mark.any_backend
def test_starts_in_another_order():
    """Two of one score change places; ends of other starts do not count."""

    def beam(index, ends, answer=0.0):
        return {
            "start_top_log_probs": np.array([-1.0, -1.0, -2.0]),
            "start_top_index": np.array(index),
            "end_top_log_probs": np.array(ends),
            "answer_class": np.array([answer]),
        }

    one = beam([4, 7, 2], [[-1.0, -1e30], [-5.0, -6.0], [-3.0, -4.0]])
    other = beam([7, 4, 2], [[-5.0, -6.0], [-1.0, -1e29], [-3.0, -4.5]])
    assert checking._largest_difference([one], [other]) == 0.5
    other["answer_class"] += 0.75
    assert checking._largest_difference([one], [other]) == 0.75
    assert checking._spread([one]) == np.std(
        [-1, -1, -2, -1, -5, -6, -3, -4, 0]
    )


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("code", "stderr", "message"),
    [
        (
            2,
            "a warning\nerror: a line\nand more\n",
            "^a line\nand more$",
        ),
        (-9, "", "ended by signal 9"),
    ],
)
def test_what_the_worker_says(monkeypatch, code, stderr, message):
    """It is told the run by a file of JSON."""

    def run(command, **options):
        settings = json.loads(Path(command[-1]).read_text())
        assert settings["model"] == "m" and settings["format"] == "litert"
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(exporting, "traces_for_tensorflow", lambda: False)
    monkeypatch.setattr(exporting.subprocess, "run", run)
    with pytest.raises(AlbertError, match=message):
        exporting.export(ExportRun(Path("m"), Path("o"), "litert"))


@pytest.mark.any_backend
def test_a_worse_export_is_refused(folder, tmp_path, monkeypatch, capsys):
    """And leaves nothing; unless it is forced."""
    # As if the model had been right half as often again.
    monkeypatch.setattr(exporting, "LARGEST_FALL", -0.5)
    options = ["--format=litert", "--data", str(folder / "rows.jsonl")]
    with pytest.raises(SystemExit) as stop:
        run(folder, tmp_path / "out", *options)
    assert stop.value.code == 2
    assert "more than -0.5 is refused" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
    run(folder, tmp_path / "out", *options, "--force")
    assert (tmp_path / "out" / "model.tflite").is_file()


@pytest.mark.any_backend
def test_a_full_disk(folder, tmp_path, monkeypatch, capsys):
    """TensorFlow's error becomes a message, and nothing is left."""
    tf = pytest.importorskip("tensorflow")

    def save(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(SystemExit) as stop:
        run(folder, tmp_path / "out", "--format=litert")
    assert stop.value.code == 2
    assert "(No space left). Make room" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.any_backend
def test_versions_count_up(folder, tmp_path):
    for expected, options in [("1", []), ("7", ["--version=7"]), ("8", [])]:
        run(folder, tmp_path / "served", *options)
        assert (tmp_path / "served" / expected / "saved_model.pb").is_file()
    names = sorted(path.name for path in (tmp_path / "served").iterdir())
    assert names == ["1", "7", "8"]
    # Variables that are cut off are no model.
    (data,) = (tmp_path / "served" / "8").rglob("*.data-*")
    data.write_bytes(data.read_bytes()[:99])
    with pytest.raises(AlbertError, match=r"8: damaged.*Export it again"):
        load_exported(tmp_path / "served" / "8")


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "onnx", "weights": "float16"}, "stores weights as float32"),
        ({"format": "litert", "version": 2}, "Leave --version out"),
        ({"format": "litert", "weights": "int8"}, "as --data"),
        ({"version": 0}, "version"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(AlbertError, match=message):
        ExportRun(model="m", output="o", **options)
