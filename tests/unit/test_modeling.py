"""Masks, dropout, saving. A prime for every dimension."""

from unittest.mock import Mock

import keras
import numpy as np
import pytest
import small
from small import inputs, numpy, run_on_another_backend

import keras_albert as ka
from keras_albert.modeling.base import own_paths

CONFIG = small.CONFIG.replace(num_hidden_layers=1)


def test_positions_segments_and_padding_are_derived():
    """From ids of any integer type, however many positions there are."""
    backbone = ka.AlbertBackbone(CONFIG.replace(max_position_embeddings=300))
    ids = np.random.default_rng(1).integers(5, 97, (2, 300))
    ids[1, 280:] = 0
    full = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": (ids > 0).astype("int32"),
    }
    given = numpy(backbone(full)["pooled_output"])
    for kind in ("int32", "uint8"):  # which counts to 255
        derived = backbone({"token_ids": ids.astype(kind)})["pooled_output"]
        np.testing.assert_array_equal(numpy(derived), given)


@pytest.mark.any_backend
def test_new_weights():
    """A normal distribution, cut at twice the range, in every kernel."""
    spread = 0.04
    config = ka.AlbertConfig(
        vocab_size=900,
        embedding_size=32,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=spread,
    )
    keras.utils.set_random_seed(0)
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    large = 0
    for path, weight in own_paths(model, model.weights).items():
        value = numpy(weight)
        if path.endswith("gamma"):
            assert (value == 1).all()
        elif path.endswith(("bias", "beta", "seed_generator_state")):
            assert not value.any() or path.endswith("state")
        else:
            assert np.abs(value).max() <= 2 * spread, path
            if value.size > 2_000:  # 0.8796 of that of the uncut one
                large += 1
                assert value.std() == pytest.approx(0.88 * spread, rel=0.05)
    assert large >= 8


def test_dropout_only_in_training():
    backbone = ka.AlbertBackbone(small.with_dropout(0.5, CONFIG))
    plain = ka.AlbertBackbone(CONFIG)
    plain.set_weights(backbone.get_weights())
    still, first, second = (
        numpy(backbone(inputs(), training=training)["pooled_output"])
        for training in (False, True, True)
    )
    expected = numpy(plain(inputs())["pooled_output"])
    np.testing.assert_array_equal(still, expected)
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first - still).max() > 1e-3


def test_dropout_has_the_rate_of_its_place(monkeypatch):
    """Embeddings once; then probabilities and both outputs of each block."""
    dropout = Mock(wraps=keras.random.dropout)
    monkeypatch.setattr(keras.random, "dropout", dropout)
    probabilities = 0.5, (2, 13, 17, 17)
    outputs = [(0.25, (2 * 17, 26))] * 2
    for hidden, attention, block in (
        (0.25, 0.5, [probabilities, *outputs]),
        (0.25, 0.0, outputs),
        (0.0, 0.5, [probabilities]),
        (0.0, 0.0, []),
    ):
        config = CONFIG.replace(
            num_hidden_layers=2,
            hidden_dropout_prob=hidden,
            attention_probs_dropout_prob=attention,
        )
        backbone = ka.AlbertBackbone(config)
        assert backbone.embeddings.dropout.rate == hidden
        dropout.reset_mock()
        backbone({"token_ids": np.ones((2, 17), int)}, training=True)
        given = [call.args for call in dropout.call_args_list]
        assert [(rate, tuple(x.shape)) for x, rate in given] == block * 2


@pytest.mark.parametrize(
    "exits", [None, pytest.param("own", marks=pytest.mark.any_backend)]
)
def test_classifier_dropout_acts(exits):
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(CONFIG.replace(num_hidden_layers=2)),
        num_labels=3,
        dropout=0.5,
        exits=exits,
    )
    whole = {"return_exits": True} if exits else {}
    still, moved = (
        numpy(model(inputs(), training=t, **whole)) for t in (False, True)
    )
    # Of each layer, [B, L, C], with exits.
    assert (np.abs(moved - still).max(axis=(0, -1)) > 1e-3).all()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("classifier", marks=pytest.mark.any_backend),
        pytest.param("backbone", marks=pytest.mark.proof),
        pytest.param("pretraining", marks=pytest.mark.proof),
    ],
)
def test_saved_file_on_another_backend(kind, tmp_path):
    """The same weights and outputs, read by a process of another backend."""
    backbone = ka.AlbertBackbone(CONFIG)
    model = {
        "backbone": lambda: backbone,
        "pretraining": lambda: ka.AlbertForPretraining(backbone),
        "classifier": lambda: ka.AlbertForSequenceClassification(backbone, 3),
    }[kind]()
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **inputs())
    here = flat(model(inputs()))
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model) and again.config == CONFIG
    np.testing.assert_array_equal(here, flat(again(inputs())))

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


def test_compiled_file_goes_on_training(tmp_path):
    """Optimizer state, schedule and losses are in the file."""
    batch = small.pretraining_batch()
    model = ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG))
    losses = {name: ka.WeightedCrossEntropy() for name in ("mlm", "sop")}
    schedule = ka.WarmupPolynomialDecay(0.01, 20, 4)
    model.compile(ka.Lamb(schedule), losses, **small.QUICK)
    for _ in range(3):
        model.train_on_batch(*batch)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    again.run_eagerly = small.QUICK["run_eagerly"]
    for each in (model, again):
        each.train_on_batch(*batch)
    assert int(again.optimizer.iterations) == 4
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def flat(outputs):
    return np.concatenate(
        [numpy(o).ravel() for o in keras.tree.flatten(outputs)]
    )
