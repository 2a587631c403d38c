"""Mixed precision: close to float32, trained with loss scaling."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from small import CONFIG, inputs, numpy, pretraining_batch, with_dropout

import keras_albert as ka

BACKEND = keras.backend.backend()
WIDE = CONFIG.replace(hidden_size=52, embedding_size=31, num_hidden_layers=12)


def as_float32(output):
    return numpy(ops.cast(output, "float32"))


@pytest.mark.parametrize(
    ("precision", "sharing"),
    [
        ("mixed_bfloat16", "none"),
        ("mixed_float16", "all"),
        pytest.param("mixed_bfloat16", "all", marks=pytest.mark.proof),
        pytest.param("mixed_float16", "none", marks=pytest.mark.proof),
    ],
)
def test_forward_is_close_to_float32(precision, sharing):
    """2e-2 of the length of the output, after twelve layers."""
    config = WIDE.replace(sharing=sharing)
    full = ka.AlbertBackbone(config)
    rng = np.random.default_rng(0)
    weights = [
        0.1 * rng.normal(size=w.shape) if w.ndim == 2 else w
        for w in full.get_weights()
    ]
    full.set_weights(weights)
    half = ka.AlbertBackbone(config, dtype=precision)
    half.set_weights(weights)
    outputs = half(inputs())
    for name, expected in full(inputs()).items():
        kind = keras.backend.standardize_dtype(outputs[name].dtype)
        assert kind == precision.removeprefix("mixed_")
        expected, found = numpy(expected), as_float32(outputs[name])
        difference = np.linalg.norm(found - expected)
        assert difference < 2e-2 * np.linalg.norm(expected)


@pytest.mark.on_torch
@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no float64 by default")
def test_float64():
    """The weights are those of float32, and so are the outputs, but closer."""
    model, wide = (
        ka.AlbertBackbone(CONFIG),
        ka.AlbertBackbone(CONFIG, dtype="float64"),
    )
    wide.set_weights(model.get_weights())
    for name, expected in model(inputs()).items():
        found = numpy(wide(inputs())[name])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, numpy(expected), atol=1e-5)
    logits = ka.AlbertForMaskedLM(wide)(pretraining_batch()[0])
    assert numpy(logits).dtype == np.float32


def test_dropout_in_half_precision():
    """Outside the fused attention kernel; masks depend on the precision."""
    model = ka.AlbertBackbone(with_dropout(0.1), dtype="mixed_bfloat16")
    still, moved = (
        as_float32(model(inputs(), training=training)["sequence_output"])
        for training in (False, True)
    )
    assert np.isfinite(moved).all()
    assert np.abs(moved - still).max() > 0.1


@functools.cache
def losses(precision, loop):
    """Of fifty LAMB steps on one batch, from the same weights."""
    keras.utils.set_random_seed(7)
    config = CONFIG.replace(num_hidden_layers=2, initializer_range=0.1)
    form = {"loop": loop, "remat": loop == "scan", "dtype": precision}
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config, **form))
    tasks = {name: ka.WeightedCrossEntropy() for name in ("mlm", "sop")}
    model.compile(ka.Lamb(0.003), tasks)
    x, y, weight = pretraining_batch()
    history = model.fit(
        x, y, sample_weight=weight, epochs=50, verbose=0, shuffle=False
    )
    assert all(w.dtype == np.float32 for w in model.get_weights())
    return np.array(history.history["loss"]), model.optimizer


@pytest.mark.parametrize(
    ("precision", "loop"),
    [
        # TensorFlow compiles the two steps for half a minute.
        pytest.param(
            *("mixed_bfloat16", "unrolled"),
            marks=[pytest.mark.proof] if BACKEND == "tensorflow" else [],
        ),
        pytest.param("mixed_bfloat16", "scan", marks=pytest.mark.proof),
        pytest.param("mixed_float16", "scan", marks=pytest.mark.proof),
        pytest.param("mixed_float16", "unrolled", marks=pytest.mark.proof),
    ],
)
def test_loss_curve_is_that_of_float32(precision, loop):
    expected, _ = losses("float32", "unrolled")
    found, optimizer = losses(precision, loop)
    assert expected[-1] < 0.8 * expected[0]
    assert np.abs(found / expected - 1).max() < 0.05
    # float16 reaches neither small gradients nor large ones without it.
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (precision == "mixed_float16")
