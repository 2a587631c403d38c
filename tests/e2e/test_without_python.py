"""Exports of every kind of task, run by TensorFlow's C library alone.

The texts and ids of each go through `capi.py`, in a process that cannot import
TensorFlow, Keras or this package; the answers are those of Predictor. Also with
older libraries: KERAS_ALBERT_OLDER_TENSORFLOW names folders, separated as in
PATH, into which tensorflow-cpu and tensorflow-text were installed (`make
proof`).
"""

import importlib.util
import json
import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

if pytest.importorskip("keras").backend.backend() != "tensorflow":
    pytest.skip("graphs are traced by TensorFlow", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from capi import LIBRARIES  # noqa: E402
from commands import output_of  # noqa: E402
from onednn import FORCED, X86, dangerous, products  # noqa: E402
from served_models import (  # noqa: E402
    KINDS,
    LONGEST,
    READS_PAIRS,
    SIGNATURES,
    answers_of,
    check_rows,
    embeddings_of,
    ids_of,
    inputs_of,
    outputs_of,
    random_predictor,
)
from written_texts import WRITTEN, trained_tokenizer  # noqa: E402

import keras_albert as ka  # noqa: E402
from keras_albert.exports.config import ExportRun  # noqa: E402
from keras_albert.exports.run import export_run  # noqa: E402
from keras_albert.exports.saved_model.signatures import serving_module  # noqa: E402
from keras_albert.tasks.question_answering.config import (  # noqa: E402
    AnswerConfig,
    WindowConfig,
)

INSTALLED = Path(importlib.util.find_spec("tensorflow").origin).parents[1]
TESTS = Path(__file__).parents[1]
RUNNER = TESTS / "capi.py"
LOAD = TESTS / "benchmarks" / "load_saved_model.py"
OLDER = "KERAS_ALBERT_OLDER_TENSORFLOW"
FOLDERS = os.environ[OLDER].split(os.pathsep) if os.environ.get(OLDER) else []
LIBRARY_FOLDERS = [
    pytest.param(INSTALLED, id="installed"),
    *(pytest.param(Path(each), id=Path(each).name) for each in FOLDERS),
]
if not FOLDERS:
    reason = f"set {OLDER}, or run `make proof`, for older libraries"
    skip = pytest.mark.skip(reason=reason)
    LIBRARY_FOLDERS.append(pytest.param(None, id="older", marks=skip))
# Longer steps than elsewhere: Python decodes all windows of a long context.
READING = ka.ReadingConfig(
    WindowConfig(sequence_length=61, stride=41, query_length=7),
    AnswerConfig(n_best=6, answer_length=9),
)
TEXTS = {
    **WRITTEN,
    "empty": "",
    "white space": " \t\n\u3000\u0085",
    "malformed": b"the f\xffox \xc3\x28 \xe2\x82 sold \xf0\x9f \xed\xa0\x80.",
    "NUL": "a fox\0 sold\0 tea",
}
# More rows than the graph reads at once.
LONG = "".join(f"Fox {i} sold £9 of tea, near Prague. " for i in range(400))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, tiny_lines):
    """A tokenizer whose vocabulary has pieces of all these scripts."""
    folder = tmp_path_factory.mktemp("scripts")
    return trained_tokenizer(folder, [*tiny_lines, *WRITTEN.values()] * 2, 300)


@pytest.fixture(scope="module")
def exports(tokenizer, tmp_path_factory):
    """Returns the export of a kind of task, requests and their answers."""
    made = {}

    def of(kind):
        if kind not in made:
            predictor = random_predictor(tokenizer, kind, READING)
            folder = tmp_path_factory.mktemp("export")
            module, signatures = serving_module(predictor)
            tf.saved_model.save(module, folder, signatures)
            made[kind] = folder, [*questions_and_answers(predictor, kind)]
        return made[kind]

    return of


@pytest.fixture(scope="module")
def no_python(tmp_path_factory):
    """A folder whose modules refuse to be imported."""
    folder = tmp_path_factory.mktemp("refusing")
    for name in ("tensorflow", "tensorflow_text", "keras", "keras_albert"):
        (folder / f"{name}.py").write_text("raise SystemExit(__name__)\n")
    return folder


def run(libraries, folder, requests, refusing):
    """The answers to (signature, inputs) requests."""
    if not all((libraries / name).is_file() for name in LIBRARIES):
        pytest.skip(f"{libraries} has no {LIBRARIES[0]}: made for Linux")
    requests = [
        (name, {key: as_array(name, value) for key, value in inputs.items()})
        for name, inputs in requests
    ]
    done = subprocess.run(
        [sys.executable, RUNNER, folder, libraries],
        input=pickle.dumps(requests),
        env={
            "PYTHONPATH": str(refusing),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **FORCED,
        },
        capture_output=True,
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said
    if libraries == INSTALLED and platform.machine() in X86:
        assert products(said) and not dangerous(said)
    return pickle.loads(done.stdout)


def as_array(signature, values):
    """What the C library takes: ids, or texts as bytes."""
    if signature == "token_ids":
        return np.array(values, "int32")
    array = np.array(values, object)
    flat = [x if isinstance(x, bytes) else x.encode() for x in array.flat]
    array.flat[:] = flat
    return array


def questions_and_answers(predictor, kind):
    """Requests for every signature, and the rows that must come back."""
    texts = [*TEXTS.values()]
    inputs = inputs_of(kind, texts)
    rows = answers_of(predictor, **inputs)
    yield "serving_default", inputs, rows
    for i, row in enumerate(rows):
        one = {name: [values[i]] for name, values in inputs.items()}
        yield "serving_default", one, [row]
    long = inputs_of(kind, [LONG])
    yield "serving_default", long, answers_of(predictor, **long)
    if "choice" not in kind:  # a list cannot say how many of them there are
        yield "serving_default", {name: [] for name in inputs}, []
    if "pair" in SIGNATURES[kind]:
        yield "pair", inputs, rows
    if "classify" in SIGNATURES[kind]:
        yield (
            "classify",
            {"inputs": [*map(example, texts)]},
            [
                {"classes": row["labels"], "scores": row["probabilities"]}
                for row in rows
            ],
        )
    yield "embed", {"text": texts}, embeddings_of(predictor, texts)
    yield tokenizing(predictor, texts)
    yield packed_rows(predictor, kind)


def example(text):
    """A tf.Example with a text."""
    text = text if isinstance(text, bytes) else text.encode()
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
    features = tf.train.Features(feature={"text": value})
    return tf.train.Example(features=features).SerializeToString()


def tokenizing(predictor, texts):
    rows = ids_of(predictor, texts)
    width = max(map(len, rows))
    wanted = [
        {"token_ids": row + [0] * (width - len(row)), "lengths": len(row)}
        for row in rows
    ]
    return "tokenize", {"text": texts}, wanted


def packed_rows(predictor, kind):
    """A request of token ids, as pairs where the model reads pairs."""
    encoded = predictor.tokenizer.encode_batch(WRITTEN.values())
    pairs = encoded[1:] + encoded[:1]
    packed = [
        predictor.tokenizer.pack(a, b if kind in READS_PAIRS else None, LONGEST)
        for a, b in zip(encoded, pairs, strict=True)
    ]
    width = max(len(tokens) for tokens, _ in packed)
    wanted = []
    for tokens, segments in packed:
        outputs = outputs_of(predictor, tokens, segments, width - len(tokens))
        wanted.append({name: value[0] for name, value in outputs.items()})
    rows = [tokens + [0] * (width - len(tokens)) for tokens, _ in packed]
    return "token_ids", {"token_ids": rows}, wanted


def test_refusing(no_python):
    """The processes of these tests cannot import the package or TensorFlow."""
    for name in ("tensorflow", "keras_albert"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"import {name}"],
            env={"PYTHONPATH": str(no_python)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and done.stderr.strip() == name


@pytest.mark.parametrize("libraries", LIBRARY_FOLDERS)
@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind == "answer or none"
        else pytest.param(kind, marks=pytest.mark.proof)
        for kind in KINDS
    ],
)
def test_every_signature(exports, no_python, kind, libraries):
    folder, cases = exports(kind)
    assert {name for name, _, _ in cases} == SIGNATURES[kind]
    requests = [(name, inputs) for name, inputs, _ in cases]
    answers = run(libraries, folder, requests, no_python)
    for (name, _, wanted), outputs in zip(cases, answers, strict=True):
        check_rows(outputs, wanted, name)


@pytest.mark.proof
def test_size(data_folder, tmp_path):
    """An exported ALBERT-base has each weight once."""
    tokenizer = ka.Tokenizer(data_folder / "vocab" / "30k-clean.model")
    backbone = ka.AlbertBackbone(ka.AlbertConfig(), tokenizer=tokenizer)
    model = ka.AlbertForSequenceClassification(backbone, 2)
    ka.Predictor(model).save(tmp_path / "model")
    export_run(ExportRun(model=tmp_path / "model", output=tmp_path / "served"))
    files = [*(tmp_path / "served" / "1").rglob("*")]
    size = sum(file.stat().st_size for file in files if file.is_file())
    parameters = model.count_params()
    assert parameters == 11_685_122
    assert 4 * parameters < size < 1.08 * 4 * parameters + 3e6


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="made for Linux")
def test_load(exports):
    """No wrong answer, no vague refusal, no memory lost."""
    folder, _ = exports("pairs")
    report = json.loads(output_of(sys.executable, LOAD, folder))
    assert report["requests"] == 10_000 and report["threads"] == 8
    assert report["failures"] == 0 and report["distinct"] > 200
    assert 500 < report["refused"] < 5_000
