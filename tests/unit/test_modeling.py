"""Sizes, masks, dropout, saving, errors. A prime for every dimension."""

import keras
import numpy as np
import pytest
import small
from small import (
    BATCH,
    LENGTH,
    PREDICTIONS,
    numpy,
    run_on_another_backend,
)

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.config import VARIANTS
from keras_albert.modeling.pretraining import AlbertForPretraining
from keras_albert.training.losses import WeightedCrossEntropy
from keras_albert.training.optimizer import Lamb
from keras_albert.training.schedules import WarmupPolynomialDecay

CONFIG = small.CONFIG.replace(num_hidden_layers=3)
SHAPE = (BATCH, LENGTH)


@pytest.fixture
def inputs():
    return small.inputs()


@pytest.fixture
def pretraining_batch():
    return small.pretraining_batch()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("variant", "parameters"),
    [
        ("base_v1", 11_683_584),
        ("base_v2", 11_683_584),
        ("large_v2", 17_683_968),
        ("xlarge_v2", 58_724_864),
        ("xxlarge_v2", 222_595_584),
    ],
)
def test_parameters_of_released_sizes(variant, parameters):
    assert AlbertBackbone(VARIANTS[variant]).count_params() == parameters


@pytest.mark.any_backend
def test_parameters_of_pretraining_heads():
    backbone = AlbertBackbone(VARIANTS["base_v2"])
    assert AlbertForPretraining(backbone).count_params() == 11_813_810
    # FACTS: base without a pooler 11,092,992, MLM head 128,688, SOP 1,538.
    assert 11_683_584 + 128_688 + 1_538 == 11_813_810


def test_groups_and_inner_blocks():
    """Every further block adds 4(H^2+H) + 2HF + F + H + 4H parameters."""
    h, f = CONFIG.hidden_size, CONFIG.intermediate_size
    block = 4 * (h * h + h) + 2 * h * f + f + h + 4 * h
    one = AlbertBackbone(CONFIG).count_params()
    for groups, inner in ((3, 1), (1, 2), (3, 2)):
        config = CONFIG.replace(num_hidden_groups=groups, inner_group_num=inner)
        more = AlbertBackbone(config).count_params()
        assert more == one + (groups * inner - 1) * block


def test_no_projection_when_sizes_are_equal(inputs):
    backbone = AlbertBackbone(CONFIG.replace(embedding_size=26))
    assert backbone.embeddings.projection is None
    output = backbone(inputs)["sequence_output"]
    assert output.shape == (BATCH, LENGTH, 26)


def test_output_shapes(inputs, pretraining_batch):
    outputs = AlbertBackbone(CONFIG)(inputs, return_hidden_states=True)
    assert outputs["sequence_output"].shape == (BATCH, LENGTH, 26)
    assert outputs["pooled_output"].shape == (BATCH, 26)
    assert len(outputs["hidden_states"]) == 3
    model = AlbertForPretraining(AlbertBackbone(CONFIG))
    logits = model(pretraining_batch[0])
    assert logits["mlm"].shape == (BATCH, PREDICTIONS, 97)
    assert logits["sop"].shape == (BATCH, 2)
    everywhere = model(inputs)["mlm"]
    assert everywhere.shape == (BATCH, LENGTH, 97)
    positions = pretraining_batch[0]["masked_positions"]
    picked = np.take_along_axis(numpy(everywhere), positions[..., None], 1)
    np.testing.assert_allclose(numpy(logits["mlm"]), picked, atol=1e-5)


def test_padding_changes_nothing(inputs):
    backbone = AlbertBackbone(CONFIG)
    padded = numpy(backbone(inputs)["sequence_output"])[1, :12]
    cut = {name: value[1:2, :12] for name, value in inputs.items()}
    alone = numpy(backbone(cut)["sequence_output"])[0]
    np.testing.assert_allclose(padded, alone, atol=1e-5)


def test_narrow_ids_count_positions_in_full():
    """More positions than a uint8 can count."""
    config = CONFIG.replace(max_position_embeddings=300)
    backbone = AlbertBackbone(config)
    ids = np.random.default_rng(1).integers(5, 97, (2, 300))
    narrow, wide = (
        numpy(backbone({"token_ids": ids.astype(kind)})["pooled_output"])
        for kind in ("uint8", "int32")
    )
    np.testing.assert_array_equal(narrow, wide)


def test_absent_inputs_are_derived(inputs):
    backbone = AlbertBackbone(CONFIG)
    inputs["segment_ids"] = np.zeros_like(inputs["segment_ids"])
    full = numpy(backbone(inputs)["pooled_output"])
    short = numpy(backbone({"token_ids": inputs["token_ids"]})["pooled_output"])
    np.testing.assert_array_equal(full, short)


def test_dropout_only_in_training(inputs):
    config = CONFIG.replace(
        hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5
    )
    backbone = AlbertBackbone(config)
    plain = AlbertBackbone(CONFIG)
    plain.set_weights(backbone.get_weights())
    still = numpy(backbone(inputs, training=False)["pooled_output"])
    np.testing.assert_array_equal(still, numpy(plain(inputs)["pooled_output"]))
    first, second = (
        numpy(backbone(inputs, training=True)["pooled_output"])
        for _ in range(2)
    )
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first - still).max() > 1e-3


@pytest.mark.parametrize(
    ("hidden", "attention"), [(0.25, 0.0), (0.0, 0.5), (0.0, 0.0)]
)
def test_dropout_has_the_rate_of_its_place(hidden, attention, monkeypatch):
    """Embeddings once; then probabilities and both outputs of each block."""
    rates = []
    real = keras.random.dropout

    def watched(x, rate, *args, **kwargs):
        rates.append((rate, tuple(x.shape[1:])))
        return real(x, rate, *args, **kwargs)

    monkeypatch.setattr(keras.random, "dropout", watched)
    backbone = AlbertBackbone(
        CONFIG.replace(
            hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention
        )
    )
    assert backbone.embeddings.dropout.rate == hidden
    backbone({"token_ids": np.ones((2, 17), int)}, training=True)
    outputs = [(hidden, (17, 26))] if hidden else []
    probabilities = [(attention, (13, 17, 17))] if attention else []
    block = probabilities + outputs + outputs
    assert rates == block * CONFIG.num_hidden_layers


def test_classifier_dropout_acts(inputs):
    model = AlbertForSequenceClassification(
        AlbertBackbone(CONFIG), num_labels=3, dropout=0.5
    )
    still = numpy(model(inputs))
    assert np.abs(numpy(model(inputs, training=True)) - still).max() > 1e-3


def test_classifier_fits_and_predicts(inputs):
    keras.utils.set_random_seed(2)
    model = AlbertForSequenceClassification(
        AlbertBackbone(CONFIG), num_labels=3, dropout=0.0
    )
    labels = np.array([0, 1, 2])
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(inputs, labels, batch_size=BATCH, epochs=25, verbose=0)
    assert (model.predict(inputs, verbose=0).argmax(-1) == labels).all()


def test_pretraining_fits(pretraining_batch):
    keras.utils.set_random_seed(2)
    model = AlbertForPretraining(AlbertBackbone(CONFIG))
    model.compile(
        optimizer=Lamb(0.01),
        loss={"mlm": WeightedCrossEntropy(), "sop": WeightedCrossEntropy()},
    )
    x, y, weight = pretraining_batch
    history = model.fit(
        x, y, sample_weight=weight, batch_size=BATCH, epochs=20, verbose=0
    )
    losses = history.history["loss"]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    "kind",
    [
        "classifier",
        pytest.param("backbone", marks=pytest.mark.proof),
        pytest.param("pretraining", marks=pytest.mark.proof),
    ],
)
def test_saved_file_on_another_backend(kind, inputs, tmp_path):
    """The same weights and outputs, read by a process of another backend."""
    backbone = AlbertBackbone(CONFIG)
    model = {
        "backbone": lambda: backbone,
        "pretraining": lambda: AlbertForPretraining(backbone),
        "classifier": lambda: AlbertForSequenceClassification(backbone, 3),
    }[kind]()
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **inputs)
    here = flat(model(inputs))
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model) and again.config == CONFIG
    np.testing.assert_array_equal(here, flat(again(inputs)))

    code = (
        "import sys, numpy as np, keras, keras_albert\n"
        "from keras import ops, tree\n"
        "model = keras_albert.load_model('model.keras')\n"
        "out = tree.flatten(model(dict(np.load('inputs.npz'))))\n"
        "np.save('there.npy', np.concatenate(\n"
        "    [ops.convert_to_numpy(o).ravel() for o in out]))\n"
    )
    run_on_another_backend(code, tmp_path)
    there = np.load(tmp_path / "there.npy")
    np.testing.assert_allclose(there, here, atol=2e-5)


def test_compiled_file_goes_on_training(pretraining_batch, tmp_path):
    """Optimizer state, schedule and losses are in the file."""
    x, y, weight = pretraining_batch
    model = AlbertForPretraining(AlbertBackbone(CONFIG))
    model.compile(
        optimizer=Lamb(WarmupPolynomialDecay(0.01, 20, 4)),
        loss={"mlm": WeightedCrossEntropy(), "sop": WeightedCrossEntropy()},
    )
    for _ in range(3):
        model.train_on_batch(x, y, weight)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.train_on_batch(x, y, weight)
    assert int(again.optimizer.iterations) == 4
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def flat(outputs):
    return np.concatenate(
        [numpy(o).ravel() for o in keras.tree.flatten(outputs)]
    )


def test_logits_stay_float32(inputs):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        backbone = AlbertBackbone(CONFIG)
        pretraining = AlbertForPretraining(backbone)(inputs)
        classes = AlbertForSequenceClassification(backbone, 3)(inputs)
    finally:
        keras.config.set_dtype_policy("float32")
    for logits in (*pretraining.values(), classes):
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": np.full(SHAPE, 97)}, "0 to 96.*Received: 97"),
        ({"token_ids": np.full(SHAPE, -1)}, "Received: -1"),
        (
            {"token_ids": np.ones(SHAPE)},
            "integers. Received: float64",
        ),
        ({"segment_ids": np.full(SHAPE, 2)}, "type_vocab_size=2"),
        (
            {"masked_positions": np.full((BATCH, 2), LENGTH)},
            "length=17.*: 17",
        ),
        ({"padding_mask": np.ones((BATCH, 16), int)}, r"Received: \(3, 16\)"),
        ({"token_ids": np.ones(17, int)}, r"\[batch, sequence\]"),
    ],
)
def test_bad_inputs(inputs, changed, message):
    backbone = AlbertBackbone(CONFIG)
    classifier = AlbertForSequenceClassification(backbone, 3)
    classifier.compile("sgd", "mse")
    wrong = {**inputs, **changed}
    with pytest.raises(AlbertError, match=message):
        backbone(wrong)
    with pytest.raises(AlbertError, match=message):
        classifier(wrong)


def test_ids_out_of_range_in_the_loops(inputs):
    model = AlbertForSequenceClassification(AlbertBackbone(CONFIG), 3)
    model.compile("sgd", "mse")
    inputs["token_ids"][2, 16] = 97
    labels = np.zeros(BATCH, int)
    for call in (
        lambda: model.fit(inputs, labels),
        lambda: model.evaluate(inputs, labels),
        lambda: model.predict(inputs),
        lambda: model.train_on_batch(inputs, labels),
        lambda: model.test_on_batch(inputs, labels),
        lambda: model.predict_on_batch(inputs),
    ):
        with pytest.raises(AlbertError, match="Received: 97"):
            call()


def test_too_long():
    with pytest.raises(AlbertError, match=r"=23 tokens\. Received: 24"):
        AlbertBackbone(CONFIG)({"token_ids": np.ones((1, 24), int)})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AlbertBackbone({"hidden_size": 3}), "Received: dict"),
        (lambda: AlbertForPretraining(CONFIG), "Received: AlbertConfig"),
        (
            lambda: AlbertForSequenceClassification(AlbertBackbone(CONFIG), 1),
            "Received: 1",
        ),
        (lambda: AlbertBackbone(CONFIG)(np.ones((1, 3), int)), "ndarray"),
        (
            lambda: AlbertBackbone(CONFIG)(
                {
                    "token_ids": np.ones((1, 3), int),
                    "attention_mask": np.ones((1, 3), int),
                }
            ),
            r"also: \['attention_mask'\]",
        ),
        (
            lambda: AlbertBackbone(CONFIG)({"ids": np.ones((1, 3), int)}),
            r"Received: \['ids'\]",
        ),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(AlbertError, match=message):
        build()
