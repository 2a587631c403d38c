"""LAMB and Muon against NumPy, float64, and the schedule by hand."""

import math

import keras
import numpy as np
import pytest
from keras import ops
from small import CONFIG, numpy

import keras_albert as ka
from keras_albert.distribution.backend import optimizer_reduces_replicas
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.optimizer import (
    EXCLUDED_WEIGHTS,
    Muon,
    make_optimizer,
)

RATE = 0.01
SETTINGS = ("beta_1", "beta_2", "epsilon", "weight_decay")
DEFAULT = dict(zip(SETTINGS, (0.9, 0.999, 1e-6, 0.01), strict=True))
OTHER = dict(zip(SETTINGS, (0.7, 0.9, 0.02, 0.1), strict=True))
VALUES = {
    "dense/kernel": np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], "float32"),
    "dense/bias": np.array([0.5, -0.25], "float32"),
    "layer_norm/gamma": np.array([1.0, 1.0], "float32"),
}


def variables(prefix="model/"):
    made = []
    for name, value in VALUES.items():
        variable = keras.Variable(value, name=name.split("/")[-1])
        variable._path = prefix + name
        made.append(variable)
    return made


def step(optimizer, gradient, made):
    optimizer.apply([ops.convert_to_tensor(g) for g in gradient.values()], made)


def steps(optimizer, gradients, prefix="model/"):
    made = variables(prefix)
    optimizer.build(made)
    for gradient in gradients:
        step(optimizer, gradient, made)
    return {n: numpy(v) for n, v in zip(VALUES, made, strict=True)}


def random_gradients(count):
    rng = np.random.default_rng(1)

    def like(value):
        return rng.normal(size=value.shape).astype("float32")

    return [{n: like(v) for n, v in VALUES.items()} for _ in range(count)]


def reference(gradients, excluded, adapt=True, clip=None, settings=DEFAULT):
    """The published rule in NumPy, float64."""
    beta_1, beta_2, epsilon, decay = settings.values()
    w = {n: v.astype("float64") for n, v in VALUES.items()}
    m = {n: 0 * v for n, v in w.items()}
    v = {n: 0 * x for n, x in w.items()}
    for gradient in gradients:
        gradient = {n: g.astype("float64") for n, g in gradient.items()}
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        for n in w:
            g = gradient[n] * (min(1.0, clip / norm) if clip else 1.0)
            m[n] = beta_1 * m[n] + (1 - beta_1) * g
            v[n] = beta_2 * v[n] + (1 - beta_2) * g**2
            u = m[n] / (np.sqrt(v[n]) + epsilon)
            if n not in excluded:
                u = u + decay * w[n]
                if adapt:
                    u = u * np.linalg.norm(w[n]) / np.linalg.norm(u)
            w[n] = w[n] - RATE * u
    return w


NOT_KERNELS = {"dense/bias", "layer_norm/gamma"}


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize(
    ("clip", "settings"), [(None, DEFAULT), (1.0, DEFAULT), (None, OTHER)]
)
def test_five_steps(adapt, clip, settings):
    gradients = random_gradients(5)
    theirs = reference(gradients, NOT_KERNELS, adapt, clip, settings)
    # A model's name excludes nothing.
    ours, named = (
        steps(
            ka.Lamb(
                RATE, layer_adaptation=adapt, global_clipnorm=clip, **settings
            ),
            gradients,
            prefix,
        )
        for prefix in ("model/", "bias_study/layer_norm/")
    )
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=5e-7, atol=5e-7)
        np.testing.assert_array_equal(named[name], ours[name])


@pytest.mark.parametrize(
    ("shape", "settings", "excluded"),
    [
        ((12, 9), DEFAULT, EXCLUDED_WEIGHTS),
        ((9, 12), OTHER, EXCLUDED_WEIGHTS),
        ((9, 12), OTHER, ("kernel",)),
    ],
)
def test_muon(shape, settings, excluded):
    """Five steps of a matrix in NumPy; vectors as with AdamW."""
    options = {"exclude_from_weight_decay": excluded, **settings}
    decay = 0.0 if "kernel" in excluded else settings["weight_decay"]
    rng = np.random.default_rng(0)
    weights, *gradients = rng.normal(size=(6, *shape))
    kernel = keras.Variable(weights, name="kernel")
    kernel._path = "model/dense/kernel"
    optimizer = Muon(RATE, global_clipnorm=None, **options)
    others, made, m = random_gradients(5), variables()[1:], 0.0
    optimizer.build([kernel, *made])
    for gradient, other in zip(gradients, others, strict=True):
        given = [gradient.astype("float32"), *list(other.values())[1:]]
        optimizer.apply([ops.convert_to_tensor(g) for g in given])
        m = 0.95 * m + gradient
        x = gradient + 0.95 * m
        x = x / np.linalg.norm(x)
        x = x if shape[0] < shape[1] else x.T
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        x = x if shape[0] < shape[1] else x.T
        weights = weights - RATE * (0.2 * 12**0.5 * x + decay * weights)
    np.testing.assert_allclose(numpy(kernel), weights, atol=2e-5)
    expected = steps(
        ka.Lamb(RATE, layer_adaptation=False, global_clipnorm=None, **options),
        others,
    )
    for variable, name in zip(made, list(VALUES)[1:], strict=True):
        np.testing.assert_array_equal(numpy(variable), expected[name])


def test_muon_updates_the_matrices_of_a_model():
    config = CONFIG.replace(relaxed_rank=2, num_hidden_layers=1)
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    optimizer = Muon()
    optimizer.build(model.trainable_variables)
    found = [
        "/".join(variable.path.split("/")[-2:])
        for variable, is_matrix in zip(
            model.trainable_variables, optimizer._is_matrix, strict=True
        )
        if is_matrix
    ]
    kernels = "projection query key value output intermediate output"
    kernels += " pooler dense sentence_pair"
    assert sorted(n for n in found if n.endswith("kernel")) == sorted(
        f"{name}/kernel" for name in kernels.split()
    )
    assert {n[-1] for n in found if not n.endswith("kernel")} == {"a", "b"}
    # Of the exits of several layers, all biases are one variable.
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(CONFIG), 2, exits="own"
    )
    optimizer = Muon()
    optimizer.build(model.trainable_variables)
    for variable, is_matrix in zip(
        model.trainable_variables, optimizer._is_matrix, strict=True
    ):
        if variable.path.endswith("exit_classifiers/bias"):
            assert len(variable.shape) == 2 and not is_matrix
            break
    else:
        pytest.fail("the model has no exits")


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="of PyTorch's fused kernel"
)
@pytest.mark.parametrize("stored_by_columns", ["gradient", "weights"])
def test_order_in_memory_changes_nothing(stored_by_columns):
    """PyTorch's fused kernel alone pairs numbers in the order of storage."""
    gradients = random_gradients(5)
    expected = steps(ka.Lamb(RATE, layer_adaptation=False), gradients)
    made = variables()
    if stored_by_columns == "weights":
        made[0].value.data = made[0].value.data.T.contiguous().T
    optimizer = ka.Lamb(RATE, layer_adaptation=False)
    optimizer.build(made)
    for gradient in gradients:
        given = [ops.convert_to_tensor(g) for g in gradient.values()]
        if stored_by_columns == "gradient":
            given[0] = given[0].T.contiguous().T
        optimizer.apply(given, made)
    np.testing.assert_allclose(
        numpy(made[0]), expected["dense/kernel"], rtol=5e-7, atol=5e-7
    )


def test_averages_move_whatever_keras_is_told():
    """In bfloat16, 0.9999 is 1."""
    weight = keras.Variable([1.0])
    optimizer = ka.Lamb(0.0, use_ema=True, ema_momentum=0.9999)
    gradient = ops.zeros((1,), "float32")
    try:
        keras.config.set_floatx("bfloat16")
        optimizer.apply([gradient], [weight])
        weight.assign([201.0])
        optimizer.apply([gradient], [weight])
    finally:
        keras.config.set_floatx("float32")
    (average,) = optimizer.averages
    np.testing.assert_allclose(numpy(average), [1.02], rtol=1e-5)


def test_clips_gradients_of_several_dtypes():
    """As of a model of policy float16, whose last projection is float32."""
    gradients = [np.array([3.0, 0.0], "float32"), np.array([4.0], "float16")]
    optimizer = ka.Lamb(0.1, global_clipnorm=1.0)
    clipped = [ops.convert_to_tensor(each) for each in gradients]
    if optimizer_reduces_replicas():
        made = [keras.Variable(each) for each in gradients]
        pairs = zip(clipped, made, strict=True)
        clipped = [g for g, _ in optimizer.sum_over_replicas([*pairs])]
    else:
        clipped = optimizer.clip(clipped)
    kinds = [keras.backend.standardize_dtype(each.dtype) for each in clipped]
    assert kinds == ["float32", "float16"]
    found = np.concatenate(numpy(clipped))
    np.testing.assert_allclose(found, [0.6, 0.0, 0.8], rtol=1e-3)


def test_zero_gradient_and_zero_weight():
    zeros = {n: np.zeros_like(v) for n, v in VALUES.items()}
    moved = steps(ka.Lamb(RATE, weight_decay=0.0), [zeros])
    for name, value in VALUES.items():
        np.testing.assert_array_equal(moved[name], value)


def test_exclusions_can_differ():
    """AdamW's exclusions for decay, the trust ratio for every variable."""
    gradients = random_gradients(1)
    options = {"exclude_from_layer_adaptation": (), "global_clipnorm": None}
    ours = steps(ka.Lamb(RATE, **options), gradients)
    bias, g = VALUES["dense/bias"], gradients[0]["dense/bias"]
    u = 0.1 * g / (np.sqrt(0.001) * np.abs(g) + DEFAULT["epsilon"])
    u *= np.linalg.norm(bias) / np.linalg.norm(u)
    np.testing.assert_allclose(ours["dense/bias"], bias - RATE * u, atol=1e-7)


def test_parts_of_a_batch_are_averaged_before_all_else():
    """Clipping, both moments, decay and the schedule see updates, not parts."""
    parts = random_gradients(6)
    schedule = ka.WarmupPolynomialDecay(RATE, 3, 0)
    averaged = {"use_ema": True, "ema_momentum": 0.8}
    optimizer = ka.Lamb(schedule, gradient_accumulation_steps=2, **averaged)
    made = variables()
    optimizer.build(made)
    seen = []
    for part in parts:
        step(optimizer, part, made)
        seen.append([numpy(v).copy() for v in made])
    for untouched, before in ((0, VALUES.values()), (2, seen[1]), (4, seen[3])):
        np.testing.assert_equal(seen[untouched], [*before])
    plain, other = variables(), ka.Lamb(schedule)
    other.build(plain)
    for i in (0, 2, 4):
        mean = {n: (parts[i][n] + parts[i + 1][n]) / 2 for n in VALUES}
        step(other, mean, plain)
        for a, b in zip(seen[i + 1], plain, strict=True):
            np.testing.assert_allclose(a, numpy(b), atol=1e-6)
    assert int(numpy(optimizer.iterations)) == 3
    assert float(optimizer.learning_rate) == 0.0, "after three of three"
    last = float(numpy(schedule(2)))
    assert optimizer.last_learning_rate == pytest.approx(last)
    # 0.8 (0.8 w1 + 0.2 w2) + 0.2 w3: the first average is the first weight.
    for i, average in enumerate(optimizer.averages):
        w1, w2, w3 = (seen[step][i] for step in (1, 3, 5))
        np.testing.assert_allclose(
            numpy(average), 0.64 * w1 + 0.16 * w2 + 0.2 * w3, atol=1e-6
        )
    assert other.averages == []


def test_clips_the_true_norm_of_repeated_lookups():
    """Ten lookups of one row: gradient 10 in each of 4 places, norm 20.

    Unsummed slices would have norm sqrt(40); after clipping to 1 each place
    has 0.5, and SGD-like m = 0.05.
    """
    model = keras.Sequential([keras.layers.Embedding(3, 4)])
    model.build((None, 10))
    optimizer = ka.Lamb(RATE, global_clipnorm=1.0)
    model.compile(optimizer, loss=lambda y, p: ops.sum(p) + 0.0 * ops.sum(y))
    model.train_on_batch(np.ones((1, 10), "int32"), np.zeros((1, 1)))
    momentum = np.asarray(optimizer._momentums[0].numpy())
    np.testing.assert_allclose(momentum[1], 0.05, rtol=1e-5)
    np.testing.assert_array_equal(momentum[[0, 2]], 0.0)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ka.Lamb, {"exclude_from_layer_adaptation": ("gamma",)}),
        (ka.Lamb, {"layer_adaptation": False}),
        (Muon, {"exclude_from_weight_decay": ("beta",)}),
    ],
)
def test_optimizer_round_trip(kind, options):
    original = kind(
        ka.WarmupPolynomialDecay(0.002, 20, 4),
        weight_decay=0.02,
        **options,
    )
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(original))
    assert type(copy) is kind
    assert copy.get_config() == original.get_config()


@pytest.mark.any_backend
def test_a_rate_that_fell_to_zero_is_read_again():
    saved = keras.optimizers.serialize(ka.Lamb(0.0))
    assert float(keras.optimizers.deserialize(saved).learning_rate) == 0


@pytest.mark.any_backend
def test_what_keras_would_do_wrongly_is_refused_or_said():
    for kind in (ka.Lamb, Muon):
        with pytest.raises(ka.AlbertError, match=r"give patterns .*'gamma'"):
            kind().exclude_from_weight_decay(var_names=["gamma"])
    options = {"use_ema": True, "ema_overwrite_frequency": 3}
    ka.Lamb(**options)
    with pytest.warns(UserWarning, match="quency=3 or gradient_accumul"):
        ka.Lamb(**options, gradient_accumulation_steps=2)


@pytest.mark.any_backend
def test_the_config_reaches_the_optimizer():
    same = {"beta_1": 0.8, "beta_2": 0.97, "epsilon": 1e-3}
    same |= {"weight_decay": 0.05, "ema_momentum": 0.6}
    config = OptimizerConfig(optimizer="adamw", clip_norm=0.7, **same)
    made = make_optimizer(config, 0.3, accumulate=4).get_config()
    assert made["learning_rate"] == pytest.approx(0.3)
    expected = same | {
        "global_clipnorm": 0.7,
        "layer_adaptation": False,
        "use_ema": True,
        "gradient_accumulation_steps": 4,
    }
    assert {name: made[name] for name in expected} == expected
    plain = make_optimizer(OptimizerConfig(), 0.3)
    assert plain.layer_adaptation and not plain.use_ema
    assert plain.gradient_accumulation_steps is None
    assert type(make_optimizer(OptimizerConfig("muon"), 0.3)) is Muon


@pytest.mark.any_backend
def test_schedule_by_hand():
    """As published: the jump down from the ramp at the end of warm-up."""
    schedule = ka.WarmupPolynomialDecay(0.00176, 125_000, 3_125)
    for step, rate in (
        (0, 0.0),
        (1, 0.00176 / 3_125),
        (3_124, 0.00176 * 3_124 / 3_125),
        (3_125, 0.001716),
        (62_500, 0.00088),
        (124_999, 0.00176 / 125_000),
        (125_000, 0.0),
        (130_000, 0.0),
    ):
        assert float(schedule(step)) == pytest.approx(rate, rel=1e-4, abs=1e-9)


@pytest.mark.any_backend
def test_schedule_without_warmup_and_power():
    schedule = ka.WarmupPolynomialDecay(1.0, 10, power=2.0)
    assert float(schedule(0)) == 1.0
    again = ka.WarmupPolynomialDecay.from_config(schedule.get_config())
    assert float(again(5)) == pytest.approx(0.25)
    with pytest.raises(ka.AlbertError, match="warmup_steps=10, steps=10"):
        ka.WarmupPolynomialDecay(1.0, 10, 10)


def test_loss_of_nothing_is_zero():
    logits, labels = np.ones((2, 3, 5)), np.zeros((2, 3), int)
    loss = ka.WeightedCrossEntropy()(labels, logits, np.zeros((2, 3)))
    assert float(loss) == 0
