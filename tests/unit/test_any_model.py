"""Any model to serving: fitted in Python, foreign, or only pretrained."""

import dataclasses
import functools
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from commands import read_json, refused, rows_of, run, write_rows
from served_models import close, operations, used
from small import QUICK, TEXT_CONFIG, add_noise

import keras_albert as ka
from keras_albert.checkpoints.load import head_name
from keras_albert.cli import _parse
from keras_albert.exports.config import CheckRun
from keras_albert.training.model_folder import ModelFolder

TEXTS = ["The fox sold two hens.", "A dog found nothing", "1950, Élodie"]
MASKED = ["The [MASK] sold [MASK] .", "a[MASK].b", "[MASK] of £9[MASK]", "no"]
LABELS = ("b", "a", "c")
TRACES = keras.backend.backend() == "tensorflow"


def model_of(kind, tokenizer):
    backbone = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=tokenizer)
    classifier = ka.AlbertForSequenceClassification
    return {
        "label": lambda: classifier(backbone, 3),
        "pair": lambda: classifier(backbone, 3, labels=LABELS),
        "number": lambda: classifier(
            backbone, 1, problem="regression", dropout=0.25
        ),
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


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="a worker of TensorFlow traces, as for PyTorch",
)
def test_fitted_models_are_served(tmp_path, tokenizer, few_signatures):
    """`fit`, `export`, and the served answers are the Predictor's.

    test_serving.py has the other kinds of task.
    """
    few_signatures("serving_default")
    model = add_noise(model_of("label", tokenizer))
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **QUICK,
    )
    model.fit(TEXTS, [0, 2, 1], verbose=0)
    made = ka.export(model, tmp_path / "served", labels=LABELS)
    assert made == tmp_path / "served" / "1"
    predictor = ka.Predictor(model, labels=LABELS)
    found = ask(made, text=TEXTS)
    close(found["probabilities"], predictor.probabilities(TEXTS))
    labels = [label.decode() for label in found["label"]]
    assert labels == predictor.predict(TEXTS)


def test_padding_is_added_where_shapes_are_compiled(tokenizer, monkeypatch):
    """Elsewhere batches are as long as their longest text."""
    model, shapes = model_of("vector", tokenizer), []
    compute = model.predict_on_batch

    def predict_on_batch(x):
        shapes.append(x["token_ids"].shape)
        return compute(x)

    monkeypatch.setattr(model, "predict_on_batch", predict_on_batch)
    model.encode(TEXTS, batch_size=2)
    ka.Predictor(model, lengths=(24, 32)).predict(TEXTS, batch_size=2)
    _, middle, longest = sorted(len(tokenizer.encode(x)) + 2 for x in TEXTS)
    assert 8 < middle < longest <= 24
    expected = [(2, middle), (1, longest)] * 2
    if keras.backend.backend() == "jax":
        expected = [(2, 16), (2, 8 * -(-longest // 8)), (2, 24), (2, 24)]
    assert shapes == expected
    model.jit_compile = True  # as Keras decides on a machine with a GPU
    assert model.compiles_each_shape


@pytest.mark.skipif(not TRACES, reason="only TensorFlow has strategies")
def test_shapes_may_be_compiled_on_several_devices(tokenizer, monkeypatch):
    model = model_of("vector", tokenizer)
    assert not model.compiles_each_shape
    two = types.SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(type(model), "distribute_strategy", two)
    assert model.compiles_each_shape


@pytest.mark.on_torch
def test_masks_of_a_file(tmp_path, tokenizer, capsys):
    """Lines without a mask are bad rows; blank lines have no answer."""
    model = add_noise(model_of("mask", tokenizer))
    ka.Predictor(model).save(tmp_path / "model")
    text = f"{MASKED[0]}\n\nno mask\n{MASKED[0]}\n"
    (tmp_path / "lines.txt").write_text(text)
    told = {"model": tmp_path / "model", "data": tmp_path / "lines.txt"}
    said = refused(capsys, "predict", **told)
    assert "txt:3: " in said and 'has no "[MASK]". Received: ' in said
    with pytest.raises(ka.AlbertError, match=r"needs \"\[MASK\]\".*'no mask'"):
        ka.Predictor(model).predict([MASKED[0], "no mask"])
    rows = rows_of(run("predict", "--skip-bad", **told))
    assert rows[0]["prediction"] == rows[2]["prediction"] != []
    # Equal rows of a batch may differ in the last bit, and so be rounded apart.
    np.testing.assert_allclose(rows[0]["score"], rows[2]["score"], atol=2e-6)
    assert rows[1] == {"text": "", "prediction": [], "score": []}


@pytest.mark.proof
def test_masks_are_served(tmp_path, tokenizer, few_signatures):
    few_signatures("serving_default")
    model = add_noise(model_of("mask", tokenizer))
    made = ka.export(model, tmp_path / "served")
    expected = model.fill_mask(MASKED[:3])
    check_fills(ask(made, text=MASKED), [*expected, []])
    told, wanted = (
        [[[f.text for f in m] for m in row] for row in rows]
        for rows in (ka.Predictor(model).predict(MASKED[:3]), expected)
    )
    assert told == wanted


@pytest.mark.proof
def test_served_masks_are_checked(tmp_path, tokenizer, few_signatures):
    """`check` compares them, also of texts with unequal numbers of masks."""
    few_signatures("serving_default", "token_ids")
    model = add_noise(model_of("mask", tokenizer))
    model.save_to_preset(tmp_path / "model")
    ka.export(model, tmp_path / "served")
    rows = [{"text": text} for text in MASKED[:3]]
    assert len({text.count("[MASK]") for text in MASKED[:3]}) > 1
    data = write_rows(tmp_path / "rows.jsonl", rows)
    said = run("check", tmp_path / "served", tmp_path / "model", data)
    assert "3 rows: 100.00% of the predictions are the model's" in said
    assert "serving_default: 100.00% of the texts get the same answer" in said


@pytest.mark.skipif(not TRACES, reason="a worker traces, as for fitted models")
@pytest.mark.parametrize(
    "kind", ["pretraining", pytest.param("encoder", marks=pytest.mark.proof)]
)
def test_pretrained_models_are_served(tmp_path, tokenizer, kind):
    """From a `.keras` file; and servers know the operations."""
    model = add_noise(model_of(kind, tokenizer))
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
@pytest.mark.on_torch
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
    if kind in ("label", "mask", "encoder"):
        vectors = ka.Predictor.load(tmp_path / "model", task="embedding")
        assert isinstance(vectors.model, ka.AlbertForTextEmbedding)


@pytest.mark.on_torch
@pytest.mark.parametrize("given", [{"text": "text"}, {"pair": "b"}])
def test_columns_that_are_not_named_stay(tmp_path, tokenizer, given):
    trained = ka.TableColumns("body", "title", label="class")
    ka.Predictor(model_of("pair", tokenizer), columns=trained).save(tmp_path)
    options = [f"--columns.{name}={value}" for name, value in given.items()]
    use = _parse(["predict", "--model=m", "--data=d.csv", *options])
    found = ka.Predictor.load(tmp_path, **use.predictor_arguments).columns
    assert found == dataclasses.replace(trained, **given)


@pytest.mark.on_torch
def test_windows_fit_the_lengths(tokenizer):
    with pytest.raises(ka.AlbertError, match=r"windows .* 61 tokens.*\(32,\)"):
        ka.Predictor(model_of("answer", tokenizer), lengths=(32,))


def write_table(path, texts, labels):
    rows = zip(["text", *texts], ["label", *labels], strict=True)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return path


@pytest.mark.on_torch
def test_evaluate(tmp_path, tokenizer):
    """Accuracy by hand, of columns and of a table; numbers, too."""
    model = add_noise(model_of("label", tokenizer))
    predictor = ka.Predictor(model, labels=LABELS)
    predicted = predictor.predict(TEXTS)
    wrong = next(each for each in LABELS if each != predicted[0])
    columns = {"text": np.array(TEXTS), "label": [wrong, *predicted[1:]]}
    scores = predictor.evaluate(columns)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    table = write_table(tmp_path / "rows.tsv", TEXTS, columns["label"])
    assert predictor.evaluate(table) == scores
    bad = {"text": [*TEXTS, None], "label": [*columns["label"], "a"]}
    message = "^row 3: .*Received: None.*with skip_bad=True"
    with pytest.raises(ka.AlbertError, match=message):
        predictor.evaluate(bad)
    assert predictor.evaluate(bad, skip_bad=True) == scores
    # True and False are named as they are read from tables.
    two = ka.AlbertForSequenceClassification(model.backbone, 2)
    truth = ka.Predictor(two, labels=[False, True])
    labels = [answer == "true" for answer in truth.predict(TEXTS)]
    found = truth.evaluate({"text": TEXTS, "label": labels})
    assert truth.labels == ("false", "true") and found["accuracy"] == 1
    number = ka.Predictor(add_noise(model_of("number", tokenizer)))
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
        ("several", "multi_label_classification", "multilabel"),
    ],
)
@pytest.mark.on_torch
def test_transformers_and_back(tmp_path, tokenizer, kind, there, task):
    """A classifier predicts at once, converted or not, with its labels."""
    pytest.importorskip("safetensors")
    model = add_noise(model_of(kind, tokenizer))
    ka.save_huggingface(model, tmp_path / "there")
    for source, output, to in (
        ("there", "here", "keras-albert"),
        ("here", "back", "huggingface"),
    ):
        paths = {"input": tmp_path / source, "output": tmp_path / output}
        run("convert", to=to, **paths)
    loaded = ModelFolder.load(tmp_path / "here")
    assert loaded.task["task"] == task
    assert loaded.task["labels"] == (model.labels and [*model.labels])
    first, second = (
        read_json(tmp_path / name / "config.json") for name in ("there", "back")
    )
    assert first == second and first.get("problem_type") == there
    dropout = 0.25 if kind == "number" else 0.1
    assert first["classifier_dropout_prob"] == dropout
    assert loaded.model.get_config()["dropout"] == dropout
    if model.labels:
        names = {str(i): name for i, name in enumerate(model.labels)}
        assert second["id2label"] == names
        assert second["label2id"] == {v: int(k) for k, v in names.items()}
    expected = ka.Predictor(model).predict(TEXTS)
    (tmp_path / "new.txt").write_text("\n".join(TEXTS))
    for name in ("there", "here"):
        told = {"model": tmp_path / name, "data": tmp_path / "new.txt"}
        found = [row["prediction"] for row in rows_of(run("predict", **told))]
        if kind == "number":
            close(found, expected)
        else:
            assert found == expected


@pytest.mark.on_torch
def test_names_for_a_head_that_has_none(tmp_path, tokenizer):
    """By `convert`, `evaluate` and `predict`; of transformers' LABEL_0."""
    pytest.importorskip("safetensors")
    model = add_noise(model_of("label", tokenizer))
    ka.save_huggingface(model, tmp_path / "there")
    there = tmp_path / "there"
    options = "--labels", *LABELS, "--task=pairs"
    run("convert", *options, input=there, output=tmp_path / "here")
    here = ka.Predictor.load(tmp_path / "here")
    assert (here.task, here.labels) == ("pairs", LABELS)
    assert ka.load(tmp_path / "here").labels == LABELS
    predicted = ka.Predictor(model, labels=LABELS).predict(TEXTS)
    table = write_table(tmp_path / "rows.tsv", TEXTS, predicted)
    told = {"model": there, "data": table}
    said = run("evaluate", "--labels", *LABELS, **told)
    assert "accuracy 1.000" in said
    first, *_ = rows_of(run("predict", **told))
    assert first["prediction"] == str(LABELS.index(predicted[0]))


@pytest.mark.on_torch
def test_finetune_says_that_a_head_is_dropped(tmp_path, tokenizer):
    """One of another task; that of pretraining goes without a word."""
    pytest.importorskip("safetensors")
    model = model_of("pair", tokenizer)
    ka.Predictor(model, task="pairs").save(tmp_path / "pairs")
    ka.save_huggingface(model, tmp_path / "there")
    model_of("mask", tokenizer).save(tmp_path / "mask.keras")
    name = "AlbertForSequenceClassification"
    sources = "pairs", "there", "mask.keras"
    heads = [head_name(tmp_path / source) for source in sources]
    assert heads == [name, name, None]
    table = tmp_path / "train.tsv"
    write_table(table, ["a fox", "a dog"], ["fox", "dog"])
    paths = {"model": tmp_path / "there", "output": tmp_path / "out"}
    said = run("finetune", "--steps=1", train=table, **paths)
    assert f"already has a head ({name}): it is dropped, and a new" in said


@pytest.mark.any_backend
def test_both_forms_of_check():
    expected = CheckRun(Path("e"), "m", Path("d"), rows=7)
    for arguments in (
        ["--export", "e", "--model", "m", "--data", "d", "--rows=7"],
        ["e", "m", "d", "--rows", "7", "--no-skip-bad"],
        ["--rows", "7", "e", "--data=d", "m"],
    ):
        assert _parse(["check", *arguments]) == expected
    several = ["--export", "e", "--model", "m", "n", "--data", "d"]
    assert _parse(["check", *several]).model == ("m", "n")
    for arguments in (
        ["e", "m", "d", "--labels", "x", "y"],
        [
            "--labels",
            "x",
            "y",
            "--rows=7",
            "--export=e",
            "--model=m",
            "--data=d",
        ],
        ["e", "--model", "m", "--data=d", "--labels", "x", "y"],
    ):
        assert _parse(["check", *arguments]).labels == ("x", "y")
    with pytest.raises(ka.AlbertError, match="also: 'x'"):
        _parse(["check", "e", "m", "d", "x"])


@pytest.mark.on_torch
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
    with pytest.raises(ka.AlbertError, match=message):
        ka.Predictor(model, **settings)
    with pytest.raises(ka.AlbertError, match=message):
        ka.export(model, tmp_path / "served", "onnx", **settings)
    assert not any(tmp_path.iterdir())


@pytest.mark.any_backend
def test_bad_models(tmp_path, tokenizer, monkeypatch):
    """No vocabulary, no model of this package, no place, no TensorFlow."""
    bare, served = model_of("label", None), tmp_path / "served"
    masks = model_of("mask", tokenizer)
    message = "vocabulary.*has none.*tokenizer="
    with pytest.raises(ka.AlbertError, match=message):
        ka.export(bare, served, "onnx")
    assert ka.Predictor(bare, tokenizer=tokenizer).predict([]) == []
    for call, arguments, message in (
        (ka.Predictor, (keras.Sequential(),), "model of this package"),
        (ka.Predictor, ("folder",), "'folder'. Read it with"),
        (ka.export, (tmp_path / "nowhere", served, "onnx"), "no such file"),
        (ka.export, (bare, served, "pickle"), "`format` must be"),
        (ka.export, (masks, served, "onnx"), "fill masks|only a model of"),
        (bare.export, (served,), r"keras_albert\.export\(model, "),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            call(*arguments)
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    message = r"needs tensorflow-text, .*\[export\]"
    with pytest.raises(ka.AlbertError, match=message):
        ka.export(bare, served)
    assert not any(tmp_path.iterdir())
