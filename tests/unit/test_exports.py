"""Exported models for servers and devices answer as the model does."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import keras
import numpy as np
import pytest
from commands import output_of, refused, run, write_rows
from served_models import AB, KINDS, SIGNATURES, inputs_of, random_predictor
from small import TEXT_CONFIG, add_noise

import keras_albert as ka
from keras_albert.data.tables import Table
from keras_albert.exports import (
    check as checking,
    check_texts as of_texts,
    run as exporting,
)
from keras_albert.exports.config import EXPORT_WEIGHTS, CheckRun, ExportRun
from keras_albert.exports.load import (
    Exported,
    load_exported,
    share_of_equal,
)
from keras_albert.exports.saved_model.signatures import serving_module
from keras_albert.modeling.ensemble import AlbertEnsemble
from keras_albert.tasks.config import HeadOptions
from keras_albert.tasks.graph import ServingGraph
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.special_tokens import CLS_ID, SEP_ID
from keras_albert.training.model_folder import ModelFolder

pytestmark = pytest.mark.any_backend
pytest.importorskip("tensorflow_text")
tf = pytest.importorskip("tensorflow")

ROWS = [
    {"text": "The fox sold two hens", "label": "no"},
    {"text": "a letter in London (7 miles away).", "label": "yes"},
    {"text": "nothing", "label": "no"},
] * 8
TEXTS = [row["text"] for row in ROWS[:3]]
CASES = [
    (name, weights) for name, all in EXPORT_WEIGHTS.items() for weights in all
]
USUAL = [("saved_model", "float32"), ("litert", "int8"), ("onnx", "int8")]
CASES = [
    case if case in USUAL else pytest.param(*case, marks=pytest.mark.proof)
    for case in CASES
]
in_this_process = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a worker would trace"
)
# Of KINDS those that differ in their outputs, but for the classes of CASES.
CHECKED = ["regression", "multilabel", "question and choice", "tokens"]
CHECKED += ["answer", "answer or none"]


def classifier(tokenizer, config, lengths=(8, 20)):
    """A classifier of two labels."""
    model = ALL_TASKS["classification"].head(
        ka.AlbertBackbone(config), AB, HeadOptions()
    )
    return ka.Predictor(model, labels=AB, tokenizer=tokenizer, lengths=lengths)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A random classifier, and a labelled table."""
    folder = tmp_path_factory.mktemp("exports")
    keras.utils.set_random_seed(3)
    predictor = classifier(tokenizer, TEXT_CONFIG)
    add_noise(predictor.model)
    predictor.save(folder / "model")
    write_rows(folder / "rows.jsonl", ROWS)
    return folder


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    """`check` measures latencies with two calls: no test is about them."""
    monkeypatch.setattr(checking, "MOST_CALLS", 2)


def export(folder, output, *options):
    return run("export", *options, model=folder / "model", output=output)


def test_computed_in_bfloat16(folder, tmp_path, few_signatures):
    """The outputs are near the model's, and have the digits of bfloat16.

    The graph answers with the labels that the export was given.
    """
    few_signatures("serving_default", "token_ids")  # which are compared
    rows = [{"text": text, "label": "x"} for text in TEXTS]
    rows = write_rows(tmp_path / "rows.jsonl", rows)
    labels = "--labels", "x", "y"
    options = "--compute=bfloat16", f"--data={rows}", *labels
    export(folder, tmp_path / "out", *options)
    expected = ka.Predictor.load(folder / "model").probabilities(TEXTS)
    exported = load_exported(tmp_path / "out" / "1")
    found = exported.probabilities(TEXTS)
    difference = np.abs(found - expected).max()
    assert 1e-5 < difference < 5e-2  # float32 differs by less
    answers = exported.model.call_signature("serving_default", {"text": TEXTS})
    assert {*answers["label"]} <= {"x", "y"}
    said = run("check", tmp_path / "out", folder / "model", rows, *labels)
    assert "float32, computed in bfloat16, " in said


@in_this_process
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_which_weights_are_cast(folder, dtype):
    """Of those in bfloat16, matrices of an encoder that computes in it stay."""
    one, two = (ka.Predictor.load(folder / "model", dtype=dtype) for _ in "12")
    ensemble = AlbertEnsemble([one.model, two.model])
    for predictor in (one, dataclasses.replace(one, model=ensemble)):
        graph = ServingGraph(predictor, ["text"], "probabilities", "bfloat16")
        weights = predictor.model.weights
        exact = [variable.numpy() for variable in weights]
        with graph.scope():
            used = [tf.convert_to_tensor(each.value) for each in weights]
        for variable, value, before in zip(weights, used, exact, strict=True):
            stays = dtype != "float32" and len(value.shape) > 1
            stays = stays and "classifier" not in variable.path
            assert value.dtype == ("bfloat16" if stays else "float32")
            rounded = tf.cast(tf.cast(before, "bfloat16"), "float32")
            np.testing.assert_array_equal(tf.cast(value, "float32"), rounded)


@in_this_process
@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_computed_in_bfloat16(kind, tokenizer, tmp_path):
    """Weights stored in bfloat16 are as good as float32 ones, rounded to it."""
    random_predictor(tokenizer, kind).save(tmp_path)
    predictor = ka.Predictor.load(tmp_path, dtype="mixed_bfloat16")
    ids = tf.constant([[2, 9, 8, 7, 3, 9, 3], [2, 5, 6, 3, 0, 0, 0]])
    found = []
    for weights in ("bfloat16", "float32"):
        _, functions = serving_module(predictor, weights, {"token_ids"})
        found.append(functions["token_ids"](token_ids=ids))
        for variable in predictor.model.weights:  # for the second round
            rounded = tf.cast(tf.cast(variable.value, "bfloat16"), "float32")
            variable.assign(rounded)
    for name, values in found[0].items():
        if values.dtype == "float32":
            np.testing.assert_allclose(values, found[1][name], 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("kind", "library", "name"),
    [
        ("onnx", "onnxruntime", "InferenceSession"),
        ("litert", "ai_edge_litert.interpreter", "Interpreter"),
    ],
)
def test_threads_of_the_check(
    folder, tmp_path, monkeypatch, kind, library, name
):
    """They reach the library that runs the export."""
    library = pytest.importorskip(library)
    export(folder, tmp_path / "out", f"--format={kind}")
    begin = Mock(wraps=getattr(library, name))
    monkeypatch.setattr(library, name, begin)
    rows = folder / "rows.jsonl"
    run("check", tmp_path / "out", folder / "model", rows, threads=3)
    (begun,) = begin.call_args_list
    found = begun.kwargs.get("num_threads")  # of LiteRT
    assert (found or begun.args[1].intra_op_num_threads) == 3


@pytest.mark.usefixtures("rewritten_graphs")
@pytest.mark.parametrize(("kind", "weights"), CASES)
def test_every_format(folder, tmp_path, kind, weights):
    """The file's outputs are the model's; the command says how near."""
    rows = folder / "rows.jsonl"
    options = f"--format={kind}", f"--weights={weights}", f"--data={rows}"
    said = export(folder, tmp_path / "out", *options, "--force")
    texts = "serving_default: 100.00% of the texts"
    assert (texts in said) == (kind == "saved_model")
    (same,) = re.findall(r"; ([\d.]+)% of 24 predictions are the same", said)
    assert float(same) == 100 or (weights == "int8" and float(same) > 90)
    made = tmp_path / "out" / ("1" if kind == "saved_model" else "")
    expected = ka.Predictor.load(folder / "model").probabilities(TEXTS)
    found = load_exported(made).probabilities(TEXTS)
    atol = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2, "int8": 0.1}
    np.testing.assert_allclose(found, expected, atol=atol[weights])
    with pytest.raises(ka.AlbertError, match=r"`threshold`.*'often'"):
        load_exported(made).with_threshold("often")
    said = run("check", made, folder / "model", rows)
    assert f"{kind}, {weights}, " in said
    assert (texts in said) == (kind == "saved_model")
    assert "8 x 32 tokens" in said and "128 tokens" not in said
    if kind == "saved_model":  # variables that are cut off
        (data,) = made.rglob("*.data-*")
        data.write_bytes(data.read_bytes()[:99])
        with pytest.raises(ka.AlbertError, match=r"1: damaged.*Export it"):
            load_exported(made)


@pytest.mark.proof
@in_this_process
@pytest.mark.parametrize("kind", CHECKED)
def test_every_kind(tmp_path, tokenizer, kind, few_signatures):
    """`check` compares exports of every kind of task, on ids and texts."""
    compared = {"serving_default", "pair"}
    few_signatures("token_ids", *compared)
    predictor = random_predictor(tokenizer, kind)
    model = tmp_path / "model"
    predictor.save(model)
    inputs = inputs_of(kind, [*TEXTS, "É\u0301 ４２, 😀 " * 9])
    rows = [
        dict(zip(inputs, values, strict=True))
        for values in zip(*inputs.values(), strict=True)
    ]
    table = write_rows(tmp_path / "rows.jsonl", rows)
    for name in ("saved_model", "litert"):
        exporting.export_run(ExportRun(model, tmp_path / name, name))
        made = tmp_path / name / ("1" if name == "saved_model" else "")
        report = checking.check(CheckRun(made, model, table))
        assert report["rows"] == 4 and report["same_predictions"] == 1
        assert report["largest_difference"] < 1e-4
        # A short row: the export may pad it to another length than the model.
        alone = checking.check(CheckRun(made, model, table, rows=1))
        assert alone["largest_difference"] < 1e-4
        asked = SIGNATURES[kind] & compared if name == "saved_model" else ()
        assert report["same_as_texts"] == dict.fromkeys(asked, 1.0)


@in_this_process
def test_settings_that_the_export_was_given(folder, tmp_path, capsys):
    """`check` reads tables and texts as the export does, not as the model."""
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"review": text} for text in TEXTS]
    )
    options = "--format=onnx", "--columns.text=review"
    export(folder, tmp_path / "out", *options)
    said = run("check", tmp_path / "out", folder / "model", rows)
    assert f"{len(TEXTS)} rows: 100.00% of the predictions" in said
    other = ka.Predictor.load(folder / "model", labels=["x", "y"])
    other.save(tmp_path / "other")
    said = refused(capsys, "check", tmp_path / "out", tmp_path / "other", rows)
    assert re.search(r"labels=.*there, .*'x'.* here\. Name the model", said)


@in_this_process
def test_what_else_the_export_was_given(folder, tmp_path):
    """A task and labels `check` is given, too; a threshold it finds there."""
    rows = folder / "rows.jsonl"
    predictor = ka.Predictor.load(folder / "model")
    assert predictor.labels
    told = {"export": tmp_path / "a", "model": folder / "model", "data": rows}
    ka.export(predictor, tmp_path / "a", "onnx", task="embedding")
    said = run("check", **told, task="embedding")
    assert "vectors have cosines of at least 1.0000" in said
    export(folder, tmp_path / "b", "--format=onnx", "--labels", "x", "y")
    told["export"] = tmp_path / "b"
    said = run("check", "--labels", "x", "y", **told)
    assert "100.00% of the predictions" in said
    ka.export(predictor.with_threshold(0.9), tmp_path / "c", "onnx")
    said = run("check", **told | {"export": tmp_path / "c"})
    assert "100.00% of the predictions" in said


@in_this_process
def test_litert_has_the_weights_once(tmp_path, tokenizer):
    """No part of a shared kernel is stored again for a second layer."""
    litert = pytest.importorskip("keras_albert.exports.litert")
    config = TEXT_CONFIG.replace(
        num_hidden_layers=2,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=512,
    )
    predictor = classifier(tokenizer, config)
    count = predictor.model.count_params()
    litert.write_litert(predictor, tmp_path / "a", "int8")
    # The graph takes up to 90 kB; a second joined kernel 196.
    stored = (tmp_path / "a").stat().st_size
    assert count < stored < 1.02 * count + 110_000


@pytest.mark.proof
@in_this_process
def test_albert_base_in_int8(tmp_path, tokenizer):
    """The file has at most 12.5 MB (million bytes), and a byte a weight."""
    predictor = classifier(tokenizer, ka.AlbertConfig(), (32,))
    predictor.save(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    options = "--format=litert", "--weights=int8", f"--data={rows}", "--force"
    export(tmp_path, tmp_path / "out", *options)
    (made,) = (tmp_path / "out").glob("model.*")
    assert predictor.model.count_params() < made.stat().st_size < 12_500_000


def answering(task, texts, **outputs):
    """A SavedModel that answers these texts so."""

    def ask(signature, inputs):
        assert signature == "serving_default"
        assert inputs == {"text": texts}
        return outputs

    return SimpleNamespace(
        model=Exported(None, frozenset({"serving_default", "token_ids"}), ask),
        definition=ALL_TASKS[task],
        columns=ka.TableColumns(),
    )


def test_texts_that_are_answered_otherwise():
    """Another label, or another score, is another answer."""
    texts = ["a", "b\ufffd", "c\ud800"]  # of half a character nothing is left
    table = Table(Path("t"), {"text": texts}, [{}] * 3, [1, 2, 3])
    answers = [
        {"prediction": "yes", "score": 0.75},
        {"prediction": "no", "score": 0.625},
        {"prediction": "yes", "score": 0.9},
        {"prediction": "beyond", "score": 0.9},
    ]
    for compute, labels, scores, same in [
        ("float32", ["yes", "no", "yes"], [0.75, 0.62501, 0.9], 3),
        ("float32", ["yes", "yes", "yes"], [0.75, 0.625, 0.9], 2),
        ("float32", ["yes", "no", "no"], [0.76, 0.625, np.nan], 1),
        ("bfloat16", ["yes", "no", "yes"], [0.76, 0.525, 0.9], 2),
    ]:
        exported = answering(
            *("classification", ["a", "b\ufffd", "c"]),
            label=labels,
            score=scores,
        )
        shares = of_texts.compare_texts(exported, table, answers, compute)
        assert shares == {"serving_default": same / 3}
        if same == 3:
            of_texts.check_same_texts(shares, Path("served"))
        else:
            with pytest.raises(ka.AlbertError, match=r"served: .* the texts"):
                of_texts.check_same_texts(shares, Path("served"))
    with pytest.raises(ka.AlbertError, match=r"98.50% of .* less than 99%"):
        of_texts.check_same_texts({"serving_default": 0.985}, Path("served"))


def test_answers_of_every_kind_can_differ():
    """Answers that differ are noticed for every kind of task."""
    for task, outputs, given, answer in [
        (
            "qa",
            {"answer": "a fox", "start": 14, "end": 19, "score": 0.5},
            {"context": "a fox, a hen, a fox"},
            {"prediction": "a fox", "score": 0.5, "start": 0, "end": 5},
        ),
        (
            "qa",
            {"answer": "", "start": -1, "end": -1, "score": 0.5},
            {"context": "a fox, a hen, a fox"},
            {"prediction": "", "score": 0.5, "start": None, "end": None},
        ),
        (
            "choice",
            {"choice": 1, "probabilities": [0.25, 0.75]},
            {},
            {"prediction": 1, "score": 0.75},
        ),
        (
            "tokens",
            {"words": ["a", "b", ""], "labels": ["X", "Y", ""]},
            {"text": "a b"},
            {"prediction": ["X", "Y"]},
        ),
        (
            "multilabel",
            {
                "labels": ["a", "b"],
                "chosen": [False, True],
                "probabilities": [0.25, 0.75],
            },
            {},
            {"prediction": ["b"], "score": {"a": 0.25, "b": 0.75}},
        ),
        ("regression", {"score": 2.5}, {}, {"prediction": 2.5}),
    ]:
        found = ALL_TASKS[task].serving.answer
        expected = of_texts._expected(answer)
        assert of_texts._alike(found(outputs, given), expected, 1e-4)
        for name, value in outputs.items():
            if name in ("words", "end") or (name == "labels" and given == {}):
                continue
            others = {
                "answer": "a hen",
                "start": 7,
                "labels": ["X", "X", ""],
                "choice": 0,
                "chosen": [True, True],
            }
            other = others[name] if name in others else np.add(value, 0.01)
            changed = found({**outputs, name: other}, given)
            assert not of_texts._alike(changed, expected, 1e-4), name


def test_words_with_spaces_are_not_asked():
    """No text says that "New York" is one word."""
    exported = answering(
        "tokens", ["a b"], words=[["a", "b"]], labels=[["X", "Y"]]
    )
    for lists, shares in [
        ([["New York"], ["a", "b"]], {"serving_default": 1}),
        ([["New York"]] * 2, {}),
    ]:
        table = Table(Path("t"), {"text": lists}, [{}] * 2, [1, 2])
        answers = [{"prediction": ["Z"]}, {"prediction": ["X", "Y"]}]
        found = of_texts.compare_texts(exported, table, answers, "float32")
        assert found == shares


def device(folder, lines, code=0):
    """What examples/device.py writes, in a process that imports no Keras."""
    script = Path(__file__).parents[2] / "examples" / "device.py"
    command = (
        "import runpy, sys\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "assert not {'keras', 'tensorflow'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, str(folder)],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == code, done.stderr
    if code:
        return done.stderr.decode()
    return [*map(json.loads, done.stdout.splitlines())]


def test_device(folder, tmp_path):
    export(folder, tmp_path / "device", "--format=litert")
    texts = [*TEXTS, "", "é" * 200, "nothing"]
    # Of what is no UTF-8 nothing is read.
    lines = [text.encode() for text in texts[:-1]] + [b"not\xffhing"]
    found = device(tmp_path / "device", lines)
    predictor = ka.Predictor.load(folder / "model")
    assert [row["prediction"] for row in found] == predictor.predict(texts)
    np.testing.assert_allclose(
        [row["score"] for row in found],
        predictor.probabilities(texts).max(axis=1),
        atol=1e-5,
    )
    assert all(row["ms"] > 0 for row in found)
    message = device(folder / "model", [], code=1)
    assert "model: no model.tflite. Give the output" in message


@in_this_process
@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("question and choice", "answer or none")
        else pytest.param(kind, marks=pytest.mark.proof)
        for kind in [*KINDS, "embedding", "similarity"]
    ],
)
def test_device_of_every_kind(tmp_path, tokenizer, kind):
    """It answers as Predictor does."""
    vectors = kind in ("embedding", "similarity")
    predictor = random_predictor(
        tokenizer, "classification" if vectors else kind
    )
    if vectors:
        predictor = ka.Predictor(
            ka.AlbertForTextEmbedding(predictor.model.backbone),
            tokenizer=predictor.tokenizer,
            task=kind,
        )
    predictor.save(tmp_path / "model")
    exporting.export_run(
        ExportRun(tmp_path / "model", tmp_path / "device", "litert")
    )
    # Numbers that differ: of equal answers, rounding would choose one.
    long = " ".join(f"É\u0301 ４{n}, 😀" for n in range(9))
    texts = [*TEXTS, long, "a"]
    inputs = {"text": texts}
    if kind == "similarity":
        inputs["pair"] = texts[::-1]
    elif kind != "embedding":
        inputs = inputs_of(kind, texts)
    # The main text first.
    names = ("text", "context", "question", "pair", "choices")
    inputs = {name: inputs[name] for name in names if name in inputs}
    rows = []
    for row in zip(*inputs.values(), strict=True):
        *others, last = row
        last = last if isinstance(last, list) else [last]
        rows.append("\t".join([*others, *last]).encode())
    found = device(tmp_path / "device", rows)
    if kind == "tokens":
        inputs["text"] = [text.split() for text in texts]
    features = predictor._features_of(inputs)
    wanted = predictor.decode(predictor.outputs(features), features)
    for row, answer in zip(found, wanted, strict=True):
        del row["ms"]
        shown = {k: v for k, v in answer.items() if k in row or v is not None}
        assert row.keys() == shown.keys()
        for name, value in shown.items():
            if isinstance(value, dict):
                assert row[name].keys() == value.keys()
                row[name] = [*row[name].values()]
                value = [*value.values()]
            # The list of several labels may be empty.
            if np.size(value) and isinstance(np.ravel(value)[0], float):
                np.testing.assert_allclose(row[name], value, atol=1e-5)
            else:
                assert row[name] == value, name
    if kind in ("choice", "answer", "similarity"):
        message = device(tmp_path / "device", [b"a text"], code=1)
        assert "texts or more, separated by tabs, for" in message


def test_another_model_than_the_exported(folder, tmp_path, capsys):
    """For int8 only the predictions tell models apart."""
    rows, other = folder / "rows.jsonl", tmp_path / "other"
    options = "--format=onnx", "--weights=int8", f"--data={rows}", "--force"
    export(folder, tmp_path / "out", *options)
    loaded = ModelFolder.load(folder / "model")
    *_, kernel, bias = loaded.model.weights
    for weight in (kernel, bias):
        weight.assign(-weight)
    other.mkdir()
    loaded.save(other)
    error = refused(capsys, "check", tmp_path / "out", other, rows)
    assert re.search(r": \d?\d% of the predictions are the model's", error)


def test_an_ensemble_is_not_the_model(folder, tmp_path, capsys):
    """It predicts the same here, but its logits are others."""
    rows, model = folder / "rows.jsonl", folder / "model"
    weights = "--weights=int8", "--force"
    export(folder, tmp_path / "out", "--format=onnx", *weights)
    copy = shutil.copytree(model, tmp_path / "copy")
    told = {"export": tmp_path / "out", "data": rows}
    run("check", "--model", model, **told)
    error = refused(capsys, "check", "--model", model, copy, **told)
    assert " parameters, and " in error and "Name the model that was" in error


def test_what_int8_is_judged_by():
    """A regression's numbers may differ a little: that is no fault."""
    rng = np.random.default_rng(0)
    exact = rng.normal(3, 0.5, (50, 1))

    def judge(found):
        largest, error = checking._differences(exact, found)
        report = {"largest_difference": largest, "error": error}
        report |= {"weights": "int8", "compute": "float32", "vectors": None}
        report["same_predictions"] = 0.0
        checking._judge(report, 1.0, CheckRun(Path("e"), "m", Path("d")))
        return error

    assert 0.1 < judge(exact + rng.normal(0, 0.1, exact.shape)) < 0.3
    with pytest.raises(ka.AlbertError, match="less than 90%, and outputs"):
        judge(rng.normal(3, 0.5, exact.shape))
    # The share of an error in the size of numbers that are all equal.
    exact = np.full((3, 1), 2.0)
    assert judge(exact + 0.1) == pytest.approx(0.05)


def test_another_number_of_parameters():
    """It tells models apart if outputs differ, and predictions do not."""
    asked = CheckRun(Path("e"), "m", Path("d"))
    for count, error in ((7, 3.0), (8, 0.4), (8, np.nan)):
        checking._check_size({"error": error, "parameters": 7}, count, asked)
    checking._check_size({"error": 3.0}, 8, asked)  # an older export
    with pytest.raises(ka.AlbertError, match="7 parameters, and m has 8"):
        checking._check_size({"error": 3.0, "parameters": 7}, 8, asked)


def test_what_is_not_finite_is_no_small_difference():
    one = [np.array([0.5, 1.0]), np.array([2.0, 3.0])]
    other = [np.array([0.5, 1.25]), np.array([np.nan, 3.0])]
    error = np.sqrt(0.25**2 / 2) / 0.25
    assert checking._differences(one[:1], other[:1]) == (0.25, error)
    assert np.isnan(checking._differences(one, other)).all()
    # A position that the model masks, and the export does not.
    one, other = np.array([0.0, -1e30]), np.array([0.0, 3.0])
    assert checking._differences([one], [other])[0] > 1_000


@pytest.mark.parametrize(
    ("weights", "compute", "found", "limit"),
    [
        ("float32", "float32", "0.0005", "0.0001"),
        ("float16", "float32", "0.1", "0.02"),
        ("float16", "bfloat16", "0.5", "0.1"),
    ],
)
def test_large_outputs_may_differ_by_more(weights, compute, found, limit):
    """A float32 export by 1e-4, or so much of outputs that vary by 10."""
    report = {"largest_difference": float(found), "error": 0.0}
    report |= {"weights": weights, "compute": compute, "vectors": None}
    report["same_predictions"] = 1.0
    run = CheckRun(Path("e"), "m", Path("d"))
    checking._judge(report, 10.0, run)
    with pytest.raises(
        ka.AlbertError, match=f"by {found}, more than {limit}\\. "
    ):
        checking._judge(report, 1.0, run)


def test_numbers_are_equal_up_to_a_hundredth():
    rows = [[{"prediction": n} for n in (1.0, each)] for each in (1.009, 1.02)]
    assert share_of_equal(rows[0], [{"prediction": 1.0}] * 2) == 1
    assert share_of_equal(rows[1], [{"prediction": 1.0}] * 2) == 0.5


def test_latencies(monkeypatch):
    """Those of the calls that follow three others, in milliseconds."""
    passed, clock = iter([9, 9, 9, 0.001, 0.003]), [0.0]

    def call(token_ids):
        clock[0] += next(passed)

    time = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(checking, "time", time)
    found = checking._latency(call, np.zeros((2, 7)))
    assert found == pytest.approx(
        {"batch": 2, "length": 7, "calls": 2, "p50_ms": 2, "p99_ms": 2.98}
    )


def test_rows_that_are_timed():
    """The pieces of the texts, one after the other, in rows of any length."""
    rows = [[CLS_ID, 9, 8, SEP_ID], [CLS_ID, 7, 5, SEP_ID]]
    rows = [SimpleNamespace(token_ids=np.array(row)) for row in rows]
    features = SimpleNamespace(rows=rows, choices=None)
    np.testing.assert_array_equal(
        checking._timed(features, 2, 7),
        [[CLS_ID, 8, 7, 5, 9, 8, SEP_ID], [CLS_ID, 9, 8, 7, 5, 9, SEP_ID]],
    )


def test_starts_in_another_order():
    """Starts of equal scores may change places, with their ends."""

    def beam(index, ends, answer=0.0):
        return {
            "start_top_log_probs": np.array([-1.0, -1.0, -2.0]),
            "start_top_index": np.array(index),
            "end_top_log_probs": np.array(ends),
            "answer_class": np.array([answer]),
        }

    one = beam([4, 7, 2], [[-1.0, -1e30], [-5.0, -6.0], [-3.0, -4.0]])
    other = beam([7, 4, 2], [[-5.0, -6.0], [-1.0, -1e29], [-3.0, -4.5]])
    assert checking._differences([one], [other])[0] == 0.5
    other["answer_class"] += 0.75
    assert checking._differences([one], [other])[0] == 0.75
    assert checking._spread([one]) == np.std(
        [-1, -1, -2, -1, -5, -6, -3, -4, 0]
    )


@pytest.fixture
def worker(monkeypatch):
    """worker(works) replaces the other process by `works(settings)`."""

    def replace(works):
        def run(command, **options):
            # The worker reads its settings from a JSON file.
            done = works(json.loads(Path(command[-1]).read_text()))
            return subprocess.CompletedProcess(command, *done)

        monkeypatch.setattr(exporting.subprocess, "run", run)

    monkeypatch.setattr(exporting, "traces_for_tensorflow", lambda: False)
    return replace


@pytest.mark.parametrize(
    ("code", "stderr", "message"),
    [
        (2, "a warning\nerror: a line\nand more\n", "^a line\nand more$"),
        (-9, "", "killed by signal 9"),
    ],
)
def test_what_the_worker_says(tmp_path, worker, code, stderr, message):
    def works(settings):
        assert settings["model"] == "m" and settings["format"] == "litert"
        return code, "", stderr

    worker(works)
    with pytest.raises(ka.AlbertError, match=message):
        exporting.export_run(ExportRun(Path("m"), tmp_path / "o", "litert"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", [None, 7])
def test_a_worker_publishes_nothing(tmp_path, worker, capsys, version):
    """A server must not find the output of a command that was stopped.

    Without a version it is the next one.
    """

    def works(settings):
        made = Path(settings["output"], str(version or 1))
        made.mkdir(parents=True)
        (made / "saved_model.pb").touch()
        if not (output / "6").is_dir():
            raise KeyboardInterrupt
        return 0, f"saved_model -> {made}\n", ""

    worker(works)
    output = tmp_path / "served"
    wanted = ExportRun(Path("m"), output, version=version)
    with pytest.raises(KeyboardInterrupt):
        exporting.export_run(wanted)
    assert not output.exists()
    for name in ("6", "9", "10"):  # in the order of numbers, not of text
        (output / name).mkdir(parents=True)
    exporting.export_run(wanted)
    new = str(version or 11)
    files = {str(p.relative_to(output)) for p in output.rglob("*")}
    assert files == {"6", "9", "10", new, f"{new}/saved_model.pb"}
    assert capsys.readouterr().out == f"saved_model -> {output / new}\n"


def test_no_empty_folder_of_versions(folder, tmp_path, monkeypatch):
    """Of an export in this process that is stopped."""
    stop = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(exporting, "_write", stop)
    monkeypatch.setattr(exporting, "traces_for_tensorflow", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        ka.export(folder / "model", tmp_path / "served")
    assert stop.called and not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["task.json", "run.json", "saved_model.pb"])
def test_no_folder_of_versions(tmp_path, name):
    """The folder is a model, another export, or a version itself."""
    (tmp_path / name).touch()
    with pytest.raises(ka.AlbertError, match=f"`served/1`. Found: {name}"):
        exporting.export_run(ExportRun(Path("m"), tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_without_docstrings(tmp_path, monkeypatch):
    """tensorflow-text could not be imported."""
    optimized = SimpleNamespace(flags=SimpleNamespace(optimize=2))
    monkeypatch.setattr(exporting, "sys", optimized)
    with pytest.raises(ka.AlbertError, match=r"PYTHONOPTIMIZE=2\)\. Use -O"):
        exporting.export_run(ExportRun("m", tmp_path / "served"))


def test_a_path_that_is_not_utf8(tmp_path):
    """TensorFlow and ONNX would fail at it after the whole work."""
    output = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(ka.AlbertError, match=r"udce9.*must be UTF-8"):
        exporting.export_run(ExportRun("m", output))
    assert not any(tmp_path.iterdir())


@pytest.mark.proof
def test_in_the_numpy_mode_of_tensorflow(folder, tmp_path):
    """In it, `==` between a tensor and bytes is another operation."""
    program = (
        "import sys, tensorflow.experimental.numpy as numpy\n"
        "numpy.experimental_enable_numpy_behavior()\n"
        "import keras_albert\n"
        "keras_albert.export(*sys.argv[1:])"
    )
    output_of(
        *(sys.executable, "-c", program, folder / "model", tmp_path / "served"),
        env=os.environ | {"KERAS_BACKEND": "tensorflow"},
    )
    # It raises if the answers differ.
    run("check", tmp_path / "served", folder / "model", folder / "rows.jsonl")


def test_a_worse_export_is_refused(folder, tmp_path, monkeypatch, capsys):
    """It leaves no file; with --force it is written."""
    # As if the model had been right half as often again.
    monkeypatch.setattr(exporting, "LARGEST_FALL", -0.5)
    told = {"model": folder / "model", "data": folder / "rows.jsonl"}
    told |= {"output": tmp_path / "out", "format": "onnx"}
    error = refused(capsys, "export", **told)
    assert "more than -0.5 is refused" in error
    assert not any(tmp_path.iterdir())
    run("export", "--force", **told)
    assert (tmp_path / "out" / "model.onnx").is_file()


def test_a_better_export_is_not_refused(folder, tmp_path, monkeypatch, capsys):
    """Of a file that says the opposite, which may be right or wrong."""
    load = exporting.load_exported

    def opposite(folder):
        found = load(folder)
        model = dataclasses.replace(
            found.model,
            run=lambda ids: {"logits": -found.model.run(ids)["logits"]},
        )
        return dataclasses.replace(found, model=model)

    said = ka.Predictor.load(folder / "model").predict(TEXTS)
    other = {"no": "yes", "yes": "no"}
    told = {"model": folder / "model", "format": "onnx"}
    for name, labels in (("right", said), ("wrong", [*map(other.get, said)])):
        rows = [
            {"text": text, "label": label}
            for text, label in zip(TEXTS, labels, strict=True)
        ]
        data = write_rows(tmp_path / f"{name}.jsonl", rows)
        told |= {"data": data, "output": tmp_path / name}
        monkeypatch.setattr(exporting, "load_exported", opposite)
        if name == "wrong":
            assert "accuracy 0.0000 as a model, 1.0000" in run("export", **told)
            continue
        error = refused(capsys, "export", **told)
        assert "from 1.0000 to 0.0000; more than 0.01 is refused" in error
    # A point of 100, of scores that go up to 100.
    assert exporting.LARGEST_FALL * ALL_TASKS["qa"].highest == 1


def test_sizes_are_those_of_the_version_that_is_checked(folder, tmp_path):
    """Of version 10 of a SavedModel, and not of 9."""
    for version, weights in ((9, "float32"), (10, "float16")):
        run(
            *("export", f"--version={version}", f"--weights={weights}"),
            model=folder / "model",
            output=tmp_path,
        )
    rows = folder / "rows.jsonl"
    report = checking.check(CheckRun(tmp_path, str(folder / "model"), rows))
    assert report["weights"] == "float16"
    found = sum(report["megabytes"].values())
    files = [p for p in (tmp_path / "10").rglob("*") if p.is_file()]
    assert found == pytest.approx(sum(p.stat().st_size for p in files) / 1e6)


@in_this_process
@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("a; No space left on device", "Make room"),
        ("a; Read-only file system", "Correct that"),
    ],
)
def test_a_disk_refuses(folder, tmp_path, monkeypatch, capsys, reason, remedy):
    """TensorFlow's error becomes a message, and nothing is left."""
    tf = pytest.importorskip("tensorflow")
    error = tf.errors.FailedPreconditionError(None, None, reason)
    monkeypatch.setattr(tf.saved_model, "save", Mock(side_effect=error))
    told = {"model": folder / "model", "output": tmp_path / "out"}
    error = refused(capsys, "export", "--format=litert", **told)
    assert f"({reason}). {remedy}, or choose another output" in error
    assert not any(tmp_path.iterdir())


def test_bad_rows(folder, tmp_path, capsys):
    """The message names an option that these commands have."""
    rows, output = tmp_path / "a.jsonl", tmp_path / "out"
    lines = ["{", *map(json.dumps, ROWS[:3]), '{"text": "a"}']
    rows.write_text("\n".join(lines))
    told = {"model": folder / "model", "output": output, "data": rows}
    told["format"] = "onnx"
    error = refused(capsys, "export", "--force", **told)
    assert "a.jsonl:1: " in error and "--skip-bad" in error
    said = run("export", "--force", "--skip-bad", **told)
    assert "2 bad rows are left out" in said and " of 3 predictions" in said
    check = "check", output, folder / "model", rows, "--rows=1"
    assert "--skip-bad" in refused(capsys, *check)
    said = run(*check, "--skip-bad")  # the first part has none
    assert "1 rows: 100.00%" in said
