"""Models with exits, and inference that stops before the last layer."""

import dataclasses
import inspect
import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from commands import refused, run
from keras import ops
from scipy import special
from small import (
    CONFIG as FIVE_LAYERS,
    QUICK,
    add_noise,
    inputs,
    marked,
    numpy,
    randomized,
)

import keras_albert as ka
from keras_albert import AlbertError, EarlyExit
from keras_albert.exports import check as checking
from keras_albert.exports.load import load_exported
from keras_albert.finetuning import layer_by_layer
from keras_albert.finetuning.exit_curve import check_can_measure, exit_curve
from keras_albert.finetuning.layer_by_layer import LayerByLayer
from keras_albert.modeling import encoder
from keras_albert.modeling.config import EXITS
from keras_albert.tasks.early_exit import layers_used
from keras_albert.text.special_tokens import CLS_ID, PAD_ID

LABELS = 3
CONFIG = FIVE_LAYERS.replace(num_hidden_layers=3)


def model_with(exits, problem="single_label", **changes):
    keras.utils.set_random_seed(5)
    backbone = ka.AlbertBackbone(CONFIG.replace(**changes))
    labels = 1 if problem == "regression" else LABELS
    return ka.AlbertForSequenceClassification(
        backbone, labels, problem=problem, exits=exits, dropout=0.0
    )


def with_rows_that_differ(model):
    """Sets weights, equal on all backends, so that rows differ in answers."""
    randomized(model, 0.3)
    for weight in model.weights:
        if weight.name == "gamma":
            weight.assign(np.ones(weight.shape))
    return model


def rows_of_ids(vocab_size):
    """The inputs of 16 rows, every second of which has padding."""
    rng = np.random.default_rng(1)
    ids = rng.integers(5, vocab_size, (16, 12)).astype("int32")
    ids[:, 0], ids[::2, 9:] = CLS_ID, PAD_ID
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": (ids != PAD_ID).astype("int32"),
    }


@pytest.mark.any_backend
def test_patience_by_hand():
    answers = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0]])
    logits = np.stack([1 - answers, answers], axis=-1)
    for patience, expected in ((1, [2, 3, 5]), (2, [3, 5, 5]), (5, [5, 5, 5])):
        rule = EarlyExit(patience=patience)
        assert layers_used(rule, "single_label", logits).tolist() == expected


@pytest.mark.any_backend
def test_after_how_many_layers_all_stop():
    """Of five layers. A patience of 3 lets an example stop after four."""
    for options, expected in (
        ({"patience": 3}, None),
        ({"patience": 4}, 5),
        ({"patience": 5}, 5),
        ({"layers": 2}, 2),
        ({"layers": 5}, 5),
        ({"confidence": 1.0}, None),
    ):
        assert EarlyExit(**options).layers_of_all(5) == expected


@pytest.mark.any_backend
def test_confidence_by_hand():
    """With several labels, that of the least certain of them counts."""
    probabilities = np.array(
        [[[0.6, 0.4], [0.9, 0.1]], [[0.2, 0.8], [0.5, 0.5]]]
    )
    rule = EarlyExit(confidence=0.75)
    single = layers_used(rule, "single_label", np.log(probabilities))
    assert single.tolist() == [2, 1]
    # log-odds of 0.95 and 0.1; 0.95 and 0.5 in the row that goes on
    several = np.log([[[19, 1 / 9]] * 2, [[19, 1], [19, 19]]])
    assert layers_used(rule, "multi_label", several).tolist() == [1, 2]


@pytest.mark.any_backend
def test_equal_answers_by_hand():
    """Sets of labels are compared as sets, numbers with a tolerance."""
    several = np.array([[[1, -1], [1, 1], [2, 3]], [[1, 1], [5, 1], [-1, 1]]])
    found = layers_used(EarlyExit(patience=1), "multi_label", several)
    assert found.tolist() == [3, 2]
    numbers = np.array([[[1.0], [1.4], [1.5]], [[1.0], [1.2], [2.0]]])
    rule = EarlyExit(patience=1, tolerance=0.25)
    assert layers_used(rule, "regression", numbers).tolist() == [3, 2]


@pytest.mark.parametrize(
    ("exits", "sharing"),
    [
        *(("own", "ffn"), ("shared", "all")),
        *marked("on_torch", ("own", "all"), ("shared", "ffn")),
    ],
)
def test_a_layer_at_a_time(exits, sharing, monkeypatch):
    """Rows that stop get the logits of their layer, within 1e-5.

    The others are computed as if nothing had left the batch. The batch has 153
    tokens, and fewer after the first rows have left.
    """
    model = model_with(exits, sharing=sharing)
    x = inputs()
    x = {name: np.concatenate([value] * 3) for name, value in x.items()}
    rng = np.random.default_rng(0)
    x["token_ids"] = rng.integers(5, 97, x["token_ids"].shape).astype("int32")
    of_layers = numpy(model(x, return_exits=True))
    rows, count = np.arange(len(of_layers)), CONFIG.num_hidden_layers
    by_layer = LayerByLayer(model, EarlyExit(patience=count))
    # Four of the nine rows stop after the first layer.
    certain = np.sort(special.softmax(of_layers[:, 0], axis=-1).max(-1))
    half = EarlyExit(confidence=float(certain[4:6].mean()))
    rules = EarlyExit(patience=1), half, EarlyExit(layers=2)
    for rule, few in itertools.product(rules, (0, 100, 999)):
        monkeypatch.setattr(layer_by_layer, "FEW_TOKENS", few)
        expected = layers_used(rule, "single_label", of_layers)
        compute = by_layer.with_rule(rule)
        found = compute.with_layers(model, x)
        np.testing.assert_array_equal(found["layers"], expected)
        assert (compute.rows, compute.layers) == (len(rows), expected.sum())
        np.testing.assert_allclose(
            found["logits"], of_layers[rows, expected - 1], atol=1e-5
        )
        assert (expected == 1).sum() == 4 or rule is not half
    # Nothing stops early with a patience of L.
    np.testing.assert_allclose(by_layer(model, x), numpy(model(x)), atol=1e-5)
    assert by_layer.layers == count * len(rows)
    empty = {name: value[:0] for name, value in x.items()}
    assert by_layer(model, empty).shape == (0, LABELS)


@pytest.mark.on_torch
@pytest.mark.usefixtures("eagerly")
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="it calls a function once a shape"
)
def test_a_layer_is_completed_for_those_that_go_on(monkeypatch):
    """Rows and tokens for which the rest of a layer is computed."""
    monkeypatch.setattr(layer_by_layer, "FEW_TOKENS", 0)
    model = with_rows_that_differ(model_with("own"))
    x = rows_of_ids(CONFIG.vocab_size)
    sizes, exact = [], encoder.attention_output

    def recorded(config, weights, x, *others):
        sizes.append(tuple(x.shape[:2]))
        return exact(config, weights, x, *others)

    monkeypatch.setattr(encoder, "attention_output", recorded)
    by_layer = LayerByLayer(model, EarlyExit(patience=1))
    used = by_layer.with_layers(model, x)["layers"]
    after = [int((used > layer).sum()) for layer in range(3)]
    assert after[0] == after[1] == 16 > after[2] > 0
    assert sizes == [(16, 1), (16, 12), (16, 1), (after[2], 12), (after[2], 1)]
    sizes.clear()
    by_layer.with_rule(EarlyExit(layers=2))(model, x)
    assert sizes == [(16, 12), (16, 1)]


def test_weights_that_change():
    """A model that has been compiled may get weights, or adapters."""
    model, x = model_with("own"), inputs()
    by_layer = LayerByLayer(model, EarlyExit(layers=CONFIG.num_hidden_layers))
    by_layer(model, x)
    for change, moves in (
        (lambda: add_noise(model), True),
        (lambda: model.backbone.enable_lora(2), False),  # B starts as zeros
        (lambda: add_noise(model, seed=1), True),
    ):
        before = numpy(model(x))
        change()
        now = numpy(model(x))
        np.testing.assert_allclose(by_layer(model, x), now, atol=1e-5)
        assert (abs(now - before).max() > 0.1) == moves
    model.quantize("int8")
    with pytest.raises(AlbertError, match="a model in int8"):
        by_layer(model, x)


def test_mixed_precision():
    """Each layer rounds as the whole model does."""
    keras.utils.set_random_seed(5)
    backbone = ka.AlbertBackbone(CONFIG, dtype="mixed_bfloat16")
    model = randomized(
        ka.AlbertForSequenceClassification(backbone, LABELS, exits="own"), 0.1
    )
    of_layers = numpy(model(inputs(), return_exits=True))
    for layer in (1, 2):
        found = LayerByLayer(model, EarlyExit(layers=layer))(model, inputs())
        np.testing.assert_allclose(
            found, of_layers[:, layer - 1], atol=0.02 * of_layers.std()
        )
    if keras.backend.backend() == "tensorflow":  # in the graph of an export
        import tensorflow as tf

        from keras_albert.tasks.early_exit_graph import early_outputs

        @tf.function
        def graph():
            return early_outputs(model, EarlyExit(layers=2), inputs())

        np.testing.assert_allclose(
            graph()["logits"].numpy(), found, atol=0.02 * of_layers.std()
        )
        # What TensorFlow makes of products of two dtypes runs on CPUs alone.
        written = str(graph.get_concrete_function().graph.as_graph_def())
        assert "MatMul" in written and "SparseMatMul" not in written


@pytest.mark.on_torch
def test_a_curve(with_texts, monkeypatch):
    """Scores and layers by hand; a regression has a tolerance of its own.

    What stops early takes one second, and what does not takes four.
    """
    monkeypatch.setattr("keras_albert.finetuning.exit_curve.TIMES", 1)
    outputs, clock = ka.Predictor.outputs, [0]
    time = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("keras_albert.finetuning.exit_curve.time", time)

    def of_arrays(self, *args, compute=None, **options):
        """NumPy cannot read what is on a GPU, as it can what is on the CPU."""

        def arrays(model, x):
            found = compute(model, x)
            assert isinstance(found, np.ndarray)
            return found

        clock[0] += 4 if compute is None else 1
        is_plain = inspect.isfunction(compute)
        return outputs(
            self, *args, compute=arrays if is_plain else compute, **options
        )

    monkeypatch.setattr(ka.Predictor, "outputs", of_arrays)
    tokenizer = with_texts.tokenizer
    texts = ["the fox", "a barn in the village", "the old house", "a hen"]
    for problem, name, rules in (
        ("single_label", "accuracy", 2 + 6 + 3),
        ("regression", "pearson", 2 + 3),
    ):
        model = with_rows_that_differ(
            model_with("shared", problem, vocab_size=160)
        )
        predictor = ka.Predictor(model, tokenizer=tokenizer)
        label = [0.0, 1.0, 2.0, 1.0]
        if problem == "single_label":
            label = ["0", "1", "2", "1"]
        table = predictor.read({"text": texts, "label": label}, labelled=True)
        features = predictor.features(table)
        points = exit_curve(predictor, features, batch_size=3)
        assert len(points) == rules
        for point in points:  # the rules by which nothing stops are not timed
            whole = (point.name, point.value) in {
                ("patience", 2),
                ("layers", 3),
            }
            assert point.time == (1 if whole else 0.25)
        # A tenth of the range of the labels.
        tolerance = None if problem == "single_label" else pytest.approx(0.2)
        assert points[0].rule.tolerance == tolerance
        x, _, _ = features.batch(np.arange(4), 4, 23)
        logits = numpy(model(x, return_exits=True))
        for point in points:
            used = layers_used(point.rule, problem, logits)
            assert point.layers == used.mean()
            found = logits[range(4), used - 1]
            if problem == "single_label":
                expected = np.mean(found.argmax(-1) == [0, 1, 2, 1])
            else:
                expected = np.corrcoef(found[:, 0], label)[0, 1]
            assert point.score == pytest.approx(expected, abs=1e-4), name


def test_without_exits_nothing_changes():
    """With and without exits, the logits of the last layer are the same."""
    plain, own = model_with(None), model_with("own")
    own.backbone.set_weights(plain.backbone.get_weights())
    own.classifier.set_weights(plain.classifier.get_weights())
    np.testing.assert_array_equal(numpy(own(inputs())), numpy(plain(inputs())))


@pytest.mark.parametrize("exits", ["own", "shared"])
def test_the_loss_by_hand(exits):
    """Layer l of L has the weight l / (1 + ... + L) (Zhou et al., eq. 6).

    Rows have weights, which are 0 for those that fill up a batch.
    """
    model = model_with(exits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], **QUICK)
    x, y = inputs(), np.array([0, 2, 1])
    logits = numpy(model(x, return_exits=True))
    each = -special.log_softmax(logits, axis=-1)[range(3), :, y]
    weight = np.array([2.0, 0, 1]) if exits == "own" else np.ones(3)
    expected = (each * weight[:, None]).mean(0) @ [1, 2, 3] / 6
    before = model.get_weights()
    found = model.train_on_batch(x, y, weight, return_dict=True)
    assert found["loss"] == pytest.approx(expected, abs=1e-5)
    # The metric is that of the last layer.
    right = (logits[:, -1].argmax(-1) == y).mean()
    assert found["accuracy"] == pytest.approx(right)
    # Each classifier is trained.
    if exits == "own":
        paths = [weight.path for weight in model.weights]
        index = paths.index(model.exit_classifiers.kernel.path)
        change = abs(model.get_weights()[index] - before[index])
        assert (change.max(axis=(1, 2)) > 0).all()


def test_a_drawn_layer():
    """The loss of a step is that of one layer, and every layer is drawn."""
    model = model_with("drawn")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, **QUICK)
    x, y = inputs(), np.array([0, 2, 1])
    logits = numpy(model(x, return_exits=True))
    of_layers = [
        float(numpy(loss(y, ops.convert_to_tensor(logits[:, i]))))
        for i in range(3)
    ]
    drawn = set()
    for _ in range(16):
        model.reset_metrics()
        found = float(model.train_on_batch(x, y))
        drawn.add(int(np.argmin(np.abs(np.subtract(of_layers, found)))))
        assert min(np.abs(np.subtract(of_layers, found))) < 1e-5
    assert drawn == {0, 1, 2}


@pytest.mark.on_torch
@pytest.mark.parametrize("exits", EXITS)
def test_saved(exits, tmp_path):
    model = model_with(exits)
    model.save(tmp_path / "model.keras")
    loaded = ka.load_model(tmp_path / "model.keras")
    assert loaded.exits == exits
    np.testing.assert_array_equal(
        numpy(loaded(inputs(), return_exits=True)),
        numpy(model(inputs(), return_exits=True)),
    )


@pytest.fixture(scope="module")
def with_texts(tokenizer):
    """A model with exits and a vocabulary."""
    model = model_with(
        "own", vocab_size=tokenizer.vocab_size, max_position_embeddings=40
    )
    with_rows_that_differ(model).tokenizer = tokenizer
    return model


@pytest.mark.parametrize("options", [{"patience": 2}, {"layers": 3}])
def test_a_rule_by_which_nothing_stops(with_texts, monkeypatch, options):
    """Then every number is exactly that of the plain model of three layers."""
    plain = ka.Predictor(with_texts)
    rule = EarlyExit(**options)
    ruled = dataclasses.replace(plain, early_exit=rule)
    # No layer is computed alone, which would round otherwise.
    monkeypatch.setattr(LayerByLayer, "__call__", None)
    texts = ["the fox", "a barn in the village", "the old house near London"]
    expected = plain.probabilities(texts)
    np.testing.assert_array_equal(ruled.probabilities(texts), expected)
    computed = ruled.layer_by_layer
    assert (computed.rows, computed.layers) == (3, 9)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("saved_model", EarlyExit(confidence=0.7)),
        ("litert", EarlyExit(patience=1)),
        ("onnx", EarlyExit(confidence=0.7)),
    ],
)
def test_exported(with_texts, tmp_path, form, rule):
    """A graph stops each row where `Predictor` does, with its logits.

    A SavedModel and LiteRT are traced from the same functions.
    """
    x = rows_of_ids(with_texts.config.vocab_size)
    expected = LayerByLayer(with_texts, rule).with_layers(with_texts, x)
    predictor = ka.Predictor(with_texts, early_exit=rule)
    ka.export(predictor, tmp_path / "served", format=form)
    exported = load_exported(tmp_path / "served")
    assert exported.model.early_exit == rule
    found = exported.model.run(x["token_ids"])
    np.testing.assert_array_equal(found["layers"], expected["layers"])
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    assert len(set(found["layers"])) > 1, "rows stop at different layers"
    with pytest.raises(AlbertError, match=r"EarlyExit\(confidence=\.\.\.\)"):
        ka.export(predictor, tmp_path / "never", format=form, confidence=0.7)


@pytest.mark.any_backend
@pytest.mark.proof
@pytest.mark.parametrize("exits", ["own", "shared"])
def test_exported_in_bfloat16(tokenizer, tmp_path, exits):
    """The classifiers compute in float32, whatever the encoder does."""
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 40}
    model = with_rows_that_differ(model_with(exits, **sizes))
    model.tokenizer = tokenizer
    predictor = ka.Predictor(model, early_exit=EarlyExit(layers=2))
    ids = rows_of_ids(tokenizer.vocab_size)["token_ids"]
    found = []
    for compute in ("float32", "bfloat16"):
        output = tmp_path / compute
        ka.export(predictor, output, weights="bfloat16", compute=compute)
        found.append(load_exported(output).model.run(ids)["logits"])
    error = np.sqrt(np.mean((found[1] - found[0]) ** 2))
    assert 0 < error < 0.05 * found[0].std()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        ("single_label", EarlyExit(layers=2)),
        ("multi_label", EarlyExit(patience=1)),
        ("multi_label", EarlyExit(confidence=0.55)),
        ("regression", EarlyExit(patience=1, tolerance=0.2)),
    ],
)
def test_graphs_of_every_problem(problem, rule, monkeypatch):
    """TensorFlow's and ONNX's, also with two blocks a layer and no rows."""
    model = with_rows_that_differ(
        model_with("shared", problem, inner_group_num=2)
    )
    x = rows_of_ids(model.config.vocab_size)
    ids = x["token_ids"]
    expected = LayerByLayer(model, rule).with_layers(model, x)
    assert len(set(expected["layers"])) > 1 or rule.layers
    pytest.importorskip("onnx")
    from keras_albert.exports.onnx.heads import onnx_model

    session = pytest.importorskip("onnxruntime").InferenceSession(
        onnx_model(model, False, False, rule).SerializeToString()
    )
    names = ["logits", "layers"]
    found = [session.run(names, {"token_ids": ids})]
    empty = session.run(names, {"token_ids": ids[:0]})
    assert [each.shape for each in empty] == [(0, model.num_labels), (0,)]
    if keras.backend.backend() == "tensorflow":
        from keras_albert.tasks import early_exit_graph

        for rows_leave, few in ((True, 0), (True, 999), (False, 0)):
            monkeypatch.setattr(early_exit_graph, "FEW_TOKENS", few)
            outputs = early_exit_graph.early_outputs(model, rule, x, rows_leave)
            found.append([outputs[name].numpy() for name in names])
    for logits, layers in found:
        np.testing.assert_array_equal(layers, expected["layers"])
        np.testing.assert_allclose(logits, expected["logits"], atol=1e-5)


@pytest.mark.any_backend
def test_an_export_is_checked_with_its_rule(
    with_texts, tmp_path, capsys, monkeypatch, few_signatures
):
    """`check` computes the model with the rule that the graph has.

    A row that rounding moves to another layer is not compared.
    """
    few_signatures("serving_default", "token_ids")  # which are compared
    model, texts = tmp_path / "model", tmp_path / "texts.txt"
    ka.Predictor(with_texts).save(model)
    texts.write_text("the fox\na barn in the village\nan old house\n")
    for options in (["--layers=2"], ["--confidence=0.7", "--format=onnx"]):
        served = tmp_path / options[0]
        run("export", *options, model=model, output=served)
        out = run("check", served, model, texts)
        assert "3 rows: 100.00% of the predictions" in out
        assert "100.00% of the rows stop after the same layer" in out
    plain = ka.AlbertForSequenceClassification(
        with_texts.backbone, with_texts.num_labels, labels=with_texts.labels
    )
    ka.Predictor(plain).save(tmp_path / "plain")
    error = refused(capsys, "check", served, tmp_path / "plain", texts)
    assert "stops early" in error and "plain has no exits" in error
    exact = LayerByLayer.with_layers

    def move(rows, least):
        def with_layers(self, model, x):
            found = exact(self, model, x)
            found["layers"][:rows] += 1
            found["logits"][:rows] += 9
            return found

        monkeypatch.setattr(LayerByLayer, "with_layers", with_layers)
        monkeypatch.setattr(checking, "LEAST_SAME", least)

    move(1, 0.5)
    run("check", served, model, texts)
    assert "66.67% of the rows stop" in capsys.readouterr().out
    for rows, least, words in ((1, 0.9, "67% of the"), (3, 0.5, " 0% of the")):
        move(rows, least)
        error = refused(capsys, "check", served, model, texts)
        assert f"{words} rows stop after the same layer" in error


@pytest.mark.on_torch
def test_a_converted_model(with_texts, tmp_path, capsys):
    """transformers has one classifier, and KerasHub too: said, or refused."""
    own, shared = with_texts, model_with("shared", vocab_size=160)
    shared.tokenizer = own.tokenizer
    rule = EarlyExit(patience=1)
    for name, model in (("own", own), ("shared", shared)):
        ka.Predictor(model, early_exit=rule).save(tmp_path / name)
    told = {"to": "huggingface", "output": tmp_path / "there"}
    run("convert", input=tmp_path / "shared", **told)
    assert "stops early was left out" in capsys.readouterr().out
    same = ka.load(tmp_path / "there").get_weights()
    np.testing.assert_equal(same, shared.get_weights())
    told["output"] = tmp_path / "not there"
    error = refused(capsys, "convert", input=tmp_path / "own", **told)
    assert "no weights like exit_classifiers" in error


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sharing": "ffn"}, "'ffn'"), ({"num_hidden_groups": 3}, "groups=3")],
)
def test_an_export_of_layers_that_differ(
    changes, message, with_texts, tmp_path
):
    model = model_with("shared", **changes, vocab_size=160)
    predictor = ka.Predictor(
        model, tokenizer=with_texts.tokenizer, early_exit=EarlyExit(layers=1)
    )
    with pytest.raises(AlbertError, match=rf"share all weights.*{message}"):
        ka.export(predictor, tmp_path / "served")


@pytest.mark.any_backend
def test_no_curve_of_texts_in_windows(with_texts):
    model = model_with("shared", vocab_size=160)
    tokenizer = with_texts.tokenizer
    predictor = ka.Predictor(model, tokenizer=tokenizer, long_texts="mean")
    with pytest.raises(AlbertError, match=r"long_texts='mean'.*long_texts='c"):
        check_can_measure(predictor)


@pytest.mark.any_backend
def test_rules_that_do_not_fit():
    for options in ({}, {"patience": 1, "layers": 2}, {"tolerance": 1.0}):
        with pytest.raises(AlbertError, match="exactly one of patience"):
            EarlyExit(**options)
    for options, words in (
        ({"patience": 0}, "patience"),
        ({"confidence": 1.5}, "at most 1. Received: confidence=1.5"),
        ({"layers": True}, "layers"),
        ({"patience": 1, "tolerance": 0.0}, "tolerance"),
        ({"layers": 1, "tolerance": 0.1}, "needs `patience`. Received: layers"),
    ):
        with pytest.raises(AlbertError, match=words):
            EarlyExit(**options)
    number = model_with("shared", problem="regression")
    two = ka.AlbertEnsemble([number, model_with("shared", "regression")])
    one, half = EarlyExit(patience=1), EarlyExit(confidence=0.5)
    for model, rule, words in (
        (model_with(None), one, "finetune --exits own"),
        (ka.AlbertForMultipleChoice(number.backbone), one, "MultipleChoice"),
        (model_with("own"), EarlyExit(layers=4), "has 3 layers.*layers=4"),
        (model_with("own"), EarlyExit(patience=4), "has 3 layers.*patience=4"),
        (model_with("own"), EarlyExit(patience=1, tolerance=1.0), "Leave it"),
        (number, half, "no probability.*confidence=0.5"),
        (number, one, "needs `tolerance`"),
        (number, {"patience": 1}, "must be a rule.*'patience': 1"),
        (two, one, "2 models.*average weights"),
    ):
        with pytest.raises(AlbertError, match=words):
            LayerByLayer(model, rule)
    ids = keras.Input((8,), dtype="int32")
    with pytest.raises(AlbertError, match="part of a functional model"):
        number({"token_ids": ids})
    with pytest.raises(AlbertError, match="`return_exits` needs"):
        model_with(None)(inputs(), return_exits=True)
    with pytest.raises(AlbertError, match="single layer"):
        model_with("own", num_hidden_layers=1)
