"""Any model to serving: fitted in Python, foreign, or only pretrained."""

import functools
import importlib
import importlib.util
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from served_models import answers_of, close, operations, used
from small import QUICK, TEXT_CONFIG, randomize

import keras_albert as ka
from keras_albert import cli
from keras_albert.checkpoints.load import head_of
from keras_albert.exports.config import CheckRun
from keras_albert.training.model_folder import ModelFolder

TEXTS = ["The fox sold two hens.", "A dog found nothing", "1950, Élodie"]
OTHERS = TEXTS[1:] + TEXTS[:1]
MASKED = ["The [MASK] sold [MASK] .", "a[MASK].b", "[MASK] of £9[MASK]", "no"]
LABELS = ("b", "a", "c")
TRACES = keras.backend.backend() == "tensorflow"
KINDS = ["label", "pair", "number", "several", "words", "choice", "answer"]
KINDS += ["answer or none", "vector", "mask"]
# What a predictor has to be told.
SETTINGS = {"label": {"labels": LABELS}, "pair": {"task": "pairs"}}


def model_of(kind, tokenizer):
    backbone = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=tokenizer)
    classifier = ka.AlbertForSequenceClassification
    return {
        "label": lambda: classifier(backbone, 3),
        "pair": lambda: classifier(backbone, 3, labels=LABELS),
        "number": lambda: classifier(backbone, 1, problem="regression"),
        "several": lambda: classifier(
            backbone, 3, problem="multi_label", labels=("a", "b", "ç")
        ),
        "words": lambda: ka.AlbertForTokenClassification(backbone, 3),
        "choice": lambda: ka.AlbertForMultipleChoice(backbone),
        "answer": lambda: ka.AlbertForQuestionAnswering(backbone),
        "answer or none": lambda: ka.AlbertForQuestionAnsweringV2(backbone),
        "vector": lambda: ka.AlbertForTextEmbedding(backbone, pooling="cls"),
        "mask": lambda: ka.AlbertForMaskedLM(backbone),
        "pretraining": lambda: ka.AlbertForPretraining(backbone),
        "encoder": lambda: backbone,
    }[kind]()


@pytest.fixture(scope="module", autouse=True)
def no_optimizer():
    """Graphs as they are: rewriting each takes longer than its few calls."""
    tf = pytest.importorskip("tensorflow")
    set_options = tf.config.optimizer.set_experimental_options
    set_options({"disable_meta_optimizer": True})
    yield
    set_options({"disable_meta_optimizer": False})


@pytest.fixture(scope="module")
def tokenizer(tiny_vocab):
    return ka.Tokenizer(tiny_vocab)


@functools.cache
def signatures_of(folder):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    return tf.saved_model.load(str(folder)).signatures


def ask(folder, signature="serving_default", **inputs):
    """What a SavedModel answers, as plain values by the outputs' names."""
    tf = pytest.importorskip("tensorflow")
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    found = signatures_of(folder)[signature](**tensors)
    return {name: value.numpy() for name, value in found.items()}


def inputs_of(kind):
    if kind.startswith("answer"):
        return {"question": OTHERS, "context": TEXTS}
    inputs = {"text": TEXTS}
    if kind == "pair":
        inputs["pair"] = OTHERS
    if kind == "choice":
        inputs["choices"] = [["two", "hens"]] * 3
    return inputs


def check_fills(found, expected):
    """The graph's pieces are those of `fill_mask`."""
    assert found["pieces"].shape == (4, 2, 5)
    for row, fills in enumerate(expected):
        for number in range(2):
            pieces = [x.decode() for x in found["pieces"][row, number]]
            scores = found["scores"][row, number]
            if number < len(fills):
                assert pieces == [fill.piece for fill in fills[number]]
                close(scores, [fill.probability for fill in fills[number]])
            else:
                assert pieces == [""] * 5 and not scores.any()
                assert (found["ids"][row, number] == -1).all()


# Every kind of task is exported in test_serving.py, too. On other backends a
# worker exports.
PROVEN = KINDS[1:] if TRACES else ["mask"]


@pytest.mark.parametrize(
    "kind",
    ["label", *(pytest.param(k, marks=pytest.mark.proof) for k in PROVEN)],
)
def test_fitted_models_are_served(tmp_path, tokenizer, kind, monkeypatch):
    """`fit`, `export`, and the served answers are the Predictor's."""
    pytest.importorskip("tensorflow_text")
    if TRACES:  # no time for signatures that are not asked
        serving = importlib.import_module(
            "keras_albert.exports.saved_model.signatures"
        )
        asked = {"serving_default", "fill_mask"}
        if kind == "vector":
            asked.add("embed")
        only = functools.partial(serving.serving_module, only=asked)
        monkeypatch.setattr(serving, "serving_module", only)
    model = randomize(model_of(kind, tokenizer))
    if kind == "label":
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **QUICK,
        )
        model.fit(TEXTS, [0, 2, 1], verbose=0)
    settings = SETTINGS.get(kind, {})
    made = ka.export(model, tmp_path / "served", **settings)
    assert made == tmp_path / "served" / "1"
    predictor = ka.Predictor(model, **settings)
    if kind == "mask":
        expected = model.fill_mask(MASKED[:3])
        check_fills(ask(made, text=MASKED), [*expected, []])
        told, wanted = (
            [[[f.text for f in m] for m in row] for row in rows]
            for rows in (predictor.predict(MASKED[:3]), expected)
        )
        assert told == wanted
    elif kind == "vector":
        vectors = model.encode(TEXTS, normalize=False)
        close(predictor.predict(TEXTS), vectors)
        for signature in ("serving_default", "embed"):
            close(ask(made, signature, text=TEXTS)["embedding"], vectors)
    else:
        inputs = inputs_of(kind)
        found = ask(made, **inputs)
        for row, expected in enumerate(answers_of(predictor, **inputs)):
            check_answer(found, row, expected)


def check_answer(found, row, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.atleast_1d(value)
        served = np.atleast_1d(found[name][row])[: len(value)]
        if served.dtype.kind in "OS":
            assert [text.decode() for text in served] == [*value]
        else:
            close(served, value)


@pytest.mark.skipif(not TRACES, reason="in a worker: see above")
@pytest.mark.parametrize(
    "kind",
    ["pretraining", pytest.param("encoder", marks=pytest.mark.proof)],
)
def test_pretrained_models_are_served(tmp_path, tokenizer, kind):
    """From a `.keras` file; and servers know the operations."""
    model = randomize(model_of(kind, tokenizer))
    model.save(tmp_path / "model.keras")
    made = ka.export(tmp_path / "model.keras", tmp_path / "served")
    encoder = getattr(model, "backbone", model)
    vectors = ka.AlbertForTextEmbedding(encoder).encode(TEXTS, normalize=False)
    close(ask(made, "embed", text=TEXTS)["embedding"], vectors)
    if kind == "encoder":
        close(ask(made, text=TEXTS)["embedding"], vectors)
        return
    expected = model.fill_mask(MASKED[:3]) + [[]]
    check_fills(ask(made, text=MASKED), expected)
    x = model.preprocess(MASKED)
    check_fills(ask(made, "token_ids", token_ids=x["token_ids"]), expected)
    # Texts that are cut, malformed, empty; masks that white space surrounds.
    odd = ["[MASK]" + " hens" * 90, "", " [MASK]\u3000[MASK]", "[MASK][MASK]."]
    check_fills(
        ask(made, text=odd),
        [model.fill_mask(odd[:1])[0], [], *model.fill_mask(odd[2:])],
    )
    broken = ask(made, text=[b"\xffa [MA\xffSK]"])["pieces"]
    assert (broken == ask(made, text=["a [MASK]"])["pieces"]).all()
    graph = signatures_of(made)["fill_mask"].graph.as_graph_def()
    assert used(graph) <= operations("2.12")


@pytest.mark.skipif(not TRACES, reason="on TensorFlow: a single backend's")
@pytest.mark.parametrize(
    "kind", ["onnx", pytest.param("litert", marks=pytest.mark.proof)]
)
def test_vectors_on_devices(tmp_path, tokenizer, kind, capsys):
    """`check` finds the vectors of ids to be the model's."""
    pytest.importorskip({"litert": "ai_edge_litert"}.get(kind, "onnxruntime"))
    model = randomize(model_of("encoder", tokenizer))
    made = ka.export(model, tmp_path / "device", kind)
    model.save(tmp_path / "model.keras")
    (tmp_path / "data.txt").write_text("\n".join(TEXTS))
    names = "model.keras", "data.txt"
    cli.main(["check", str(made), *(str(tmp_path / name) for name in names)])
    assert "100.00% of the predictions" in capsys.readouterr().out
    with pytest.raises(ka.AlbertError, match=r"fill masks|only a model of"):
        ka.export(model_of("mask", tokenizer), tmp_path / "masks", kind)


@pytest.mark.parametrize(
    ("kind", "task", "labels"),
    [
        ("label", "classification", ("0", "1", "2")),
        ("pair", "classification", LABELS),
        ("number", "regression", None),
        ("several", "multilabel", ("a", "b", "ç")),
        ("words", "tokens", ("0", "1", "2")),
        ("choice", "choice", None),
        ("answer", "qa", None),
        ("answer or none", "qa", ("answer", "no answer")),
        ("vector", "embedding", None),
        ("encoder", "embedding", None),
        ("mask", "fill_mask", None),
        ("pretraining", "fill_mask", None),
    ],
)
@pytest.mark.any_backend
def test_what_a_head_is_for(tmp_path, tokenizer, kind, task, labels):
    """Found, kept in a folder, and read back."""
    predictor = ka.Predictor(model_of(kind, tokenizer))
    assert (predictor.task, predictor.labels) == (task, labels)
    assert predictor.lengths == (32, 61)
    assert (predictor.reading is not None) == (task == "qa")
    if task == "qa":
        assert predictor.reading.windows.sequence_length == 61
    predictor.save(tmp_path / "model")
    again = ka.Predictor.load(tmp_path / "model")
    assert again.settings() == predictor.settings()
    assert type(again.model) is type(predictor.model)
    if kind == "label":  # its classes have numbers for names: not kept
        assert again.model.labels is None
    vectors = ka.Predictor.load(tmp_path / "model", task="embedding")
    assert isinstance(vectors.model, ka.AlbertForTextEmbedding)


def write_table(path, texts, labels):
    rows = zip(["text", *texts], ["label", *labels], strict=True)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return path


@pytest.mark.any_backend
def test_evaluate(tmp_path, tokenizer):
    """Accuracy by hand, of columns and of a table; numbers, too."""
    model = randomize(model_of("label", tokenizer))
    predictor = ka.Predictor(model, labels=LABELS)
    predicted = predictor.predict(TEXTS)
    wrong = next(each for each in LABELS if each != predicted[0])
    columns = {"text": np.array(TEXTS), "label": [wrong, *predicted[1:]]}
    scores = predictor.evaluate(columns)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    table = write_table(tmp_path / "rows.tsv", TEXTS, columns["label"])
    assert predictor.evaluate(table) == scores
    number = ka.Predictor(randomize(model_of("number", tokenizer)))
    exact = number.predict(TEXTS)
    found = number.evaluate({"text": TEXTS, "label": [x + 2 for x in exact]})
    assert found["root_mean_squared_error"] == pytest.approx(2, abs=1e-5)
    pretrained = ka.Predictor(model_of("mask", tokenizer))
    for asked, rows, message in (
        (predictor, {"text": TEXTS, "label": ["a"]}, "equally long"),
        (predictor, {"text": TEXTS, "label": [*"aza"]}, "unknown label 'z'"),
        (pretrained, {"text": TEXTS}, "was only pretrained"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            asked.evaluate(rows)


@pytest.mark.parametrize(
    ("kind", "there", "task"),
    [
        ("pair", "single_label_classification", "classification"),
        ("number", "regression", "regression"),
        pytest.param(
            *("several", "multi_label_classification", "multilabel"),
            marks=pytest.mark.proof,
        ),
        pytest.param("words", None, "tokens", marks=pytest.mark.proof),
    ],
)
@pytest.mark.any_backend
def test_transformers_and_back(tmp_path, tokenizer, kind, there, task, capsys):
    """A classifier predicts at once, converted or not, with its labels."""
    pytest.importorskip("safetensors")
    model = randomize(model_of(kind, tokenizer))
    if kind == "words":
        model.labels = LABELS
    ka.save_huggingface(model, tmp_path / "there")
    for source, output, to in (
        ("there", "here", "keras-albert"),
        ("here", "back", "huggingface"),
    ):
        cli.main(
            ["convert", "--input", str(tmp_path / source), "--to", to]
            + ["--output", str(tmp_path / output)]
        )
    loaded = ModelFolder.load(tmp_path / "here")
    assert loaded.task["task"] == task
    assert loaded.task["labels"] == (model.labels and [*model.labels])
    first, second = (
        json.loads((tmp_path / name / "config.json").read_text())
        for name in ("there", "back")
    )
    assert first == second and first.get("problem_type") == there
    if model.labels:
        names = {str(i): name for i, name in enumerate(model.labels)}
        assert second["id2label"] == names
        assert second["label2id"] == {v: int(k) for k, v in names.items()}
    expected = ka.Predictor(model).predict(TEXTS)
    (tmp_path / "new.txt").write_text("\n".join(TEXTS))
    for name in ("there", "here"):
        capsys.readouterr()
        data = f"--data={tmp_path / 'new.txt'}"
        cli.main(["predict", "--model", str(tmp_path / name), data])
        lines = capsys.readouterr().out.splitlines()
        found = [json.loads(line)["prediction"] for line in lines]
        if kind == "number":
            close(found, expected)
        else:
            assert found == expected


@pytest.mark.any_backend
def test_names_for_a_head_that_has_none(tmp_path, tokenizer, capsys):
    """By `convert`, `evaluate` and `predict`; of transformers' LABEL_0."""
    pytest.importorskip("safetensors")
    model = randomize(model_of("label", tokenizer))
    ka.save_huggingface(model, tmp_path / "there")
    cli.main(
        ["convert", "--input", str(tmp_path / "there"), "--labels", *LABELS]
        + ["--task", "pairs", "--output", str(tmp_path / "here")]
    )
    here = ka.Predictor.load(tmp_path / "here")
    assert (here.task, here.labels) == ("pairs", LABELS)
    assert ka.load(tmp_path / "here").labels == LABELS
    predicted = ka.Predictor(model, labels=LABELS).predict(TEXTS)
    table = write_table(tmp_path / "rows.tsv", TEXTS, predicted)
    data = ["--model", str(tmp_path / "there"), "--data", str(table)]
    cli.main(["evaluate", *data, "--labels", *LABELS])
    assert "accuracy 1.000" in capsys.readouterr().out
    cli.main(["predict", *data])
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert line["prediction"] == str(LABELS.index(predicted[0]))


@pytest.mark.any_backend
def test_finetune_says_that_a_head_is_dropped(tmp_path, tokenizer, capsys):
    """One of another task; that of pretraining goes without a word."""
    pytest.importorskip("safetensors")
    model = model_of("pair", tokenizer)
    ka.Predictor(model, task="pairs").save(tmp_path / "pairs")
    ka.save_huggingface(model, tmp_path / "there")
    model_of("mask", tokenizer).save(tmp_path / "mask.keras")
    name = "AlbertForSequenceClassification"
    sources = "pairs", "there", "mask.keras"
    heads = [head_of(tmp_path / source) for source in sources]
    assert heads == [name, name, None]
    table = tmp_path / "train.tsv"
    write_table(table, ["a fox", "a dog"], ["fox", "dog"])
    cli.main(
        ["finetune", "--model", str(tmp_path / "there"), "--train", str(table)]
        + ["--output", str(tmp_path / "out"), "--steps", "1"]
    )
    said = capsys.readouterr().out
    assert f"already has a head ({name}): it is dropped, and a new" in said


@pytest.mark.any_backend
def test_both_forms_of_check():
    expected = CheckRun(Path("e"), "m", Path("d"), rows=7)
    for arguments in (
        ["--export", "e", "--model", "m", "--data", "d", "--rows=7"],
        ["e", "m", "d", "--rows", "7", "--no-skip-bad"],
        ["--rows", "7", "e", "--data=d", "m"],
    ):
        assert cli._parse(["check", *arguments]) == expected
    with pytest.raises(ka.AlbertError, match="also: 'x'"):
        cli._parse(["check", "e", "m", "d", "x"])


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("label", {"task": "poems"}, "`task` must be one of classification"),
        ("label", {"task": "regression"}, r"\(single_label\): expected one of"),
        (
            "mask",
            {"task": "qa"},
            "MaskedLM: expected one of embedding, similarity, fill",
        ),
        ("label", {"labels": ["a", "b"]}, "a list of 3 different names"),
        ("label", {"labels": ["a", "b", "a"]}, "a list of 3 different names"),
        ("number", {"labels": ["a"]}, "regression has no labels"),
        ("answer", {"labels": ["a"]}, "model that answers questions"),
        ("label", {"lengths": (64, 8)}, "`lengths` must be ascending"),
        ("label", {"lengths": (8, 62)}, "max_position_embeddings=61"),
        ("label", {"reading": 1}, "`reading` is for qa"),
        ("words", {"long_texts": "max"}, "`long_texts` is for .*'tokens'"),
        ("label", {"threshold": 0.3}, "`threshold` is for .* with 3 labels"),
        ("label", {"tokenizer": "spiece.model"}, "must be a Tokenizer"),
    ],
)
def test_bad_settings(tmp_path, tokenizer, kind, settings, message):
    model = model_of(kind, tokenizer)
    with pytest.raises(ka.AlbertError, match=message) as error:
        ka.Predictor(model, **settings)
    assert "\n" not in str(error.value)
    with pytest.raises(ka.AlbertError, match=message):
        ka.export(model, tmp_path / "served", "onnx", **settings)
    assert not any(tmp_path.iterdir())


@pytest.mark.any_backend
def test_bad_models(tmp_path, tokenizer, monkeypatch):
    """No vocabulary, no model of this package, no place, no TensorFlow."""
    bare, served = model_of("label", None), tmp_path / "served"
    message = "vocabulary.*has none.*tokenizer="
    with pytest.raises(ka.AlbertError, match=message):
        ka.export(bare, served, "onnx")
    assert ka.Predictor(bare, tokenizer=tokenizer).predict([]) == []
    for call, arguments, message in (
        (ka.Predictor, (keras.Sequential(),), "model of this package"),
        (ka.Predictor, ("folder",), "'folder'. Read it with"),
        (ka.export, (tmp_path / "nowhere", served, "onnx"), "no such file"),
        (ka.export, (bare, served, "pickle"), "`format` must be"),
        (bare.export, (served,), r"keras_albert\.export\(model, "),
    ):
        with pytest.raises(ka.AlbertError, match=message) as told:
            call(*arguments)
        assert "\n" not in str(told.value)
    found = importlib.util.find_spec

    def find_spec(name, *rest):
        return None if name == "tensorflow_text" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(ka.AlbertError, match=r"tensorflow-text .*\[export\]"):
        ka.export(bare, served)
    assert not any(tmp_path.iterdir())
