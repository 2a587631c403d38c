"""Sharing, loop forms, rematerialization, attention; the sizes of the paper."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops
from small import (
    BATCH,
    CONFIG as FIVE_LAYERS,
    LENGTH,
    add_noise,
    gradients,
    hidden_states,
    inputs,
    marked,
    numpy,
    with_dropout,
)

import keras_albert as ka
import keras_albert.modeling.backbone
import keras_albert.modeling.encoder
from keras_albert.modeling.encoder import draw_seeds
from keras_albert.modeling.layers import attention, attention_output
from keras_albert.private_apis import DrawnSeed

CONFIG = FIVE_LAYERS.replace(num_hidden_layers=3)
# Paper Table 4 and its neighbours, ALBERT-base: encoder with pooler, derived
# from the formula; the paper rounds to millions. E = 768 has no projection.
PARAMETERS = {
    64: (87_648_000, 61_645_056, 35_684_352, 9_681_408),
    128: (89_650_176, 63_647_232, 37_686_528, 11_683_584),
    256: (93_654_528, 67_651_584, 41_690_880, 15_687_936),
    768: (109_081_344, 83_078_400, 57_117_696, 31_114_752),
}
SHARING = ("none", "attention", "ffn", "all")
FORMS = list(itertools.product(("unrolled", "scan"), (False, True)))
# Every way in which layers may differ from one another.
ARCHITECTURES = {
    "all": {},
    "none": {"sharing": "none"},
    "attention, inner": {"sharing": "attention", "inner_group_num": 2},
    "groups": {"num_hidden_groups": 2},
    "ffn, relaxed": {"sharing": "ffn", "relaxed_rank": 3},
}


@pytest.mark.any_backend
def test_parameters_of_the_paper():
    """Of ALBERT in all sizes: here no weight gets a value, nor memory."""
    base = ka.VARIANTS["base_v2"]
    expected = {
        base.replace(embedding_size=size, sharing=sharing): count
        for size, row in PARAMETERS.items()
        for sharing, count in zip(SHARING, row, strict=True)
    }
    expected[ka.VARIANTS["base_v1"]] = 11_683_584
    expected[ka.VARIANTS["large_v2"]] = 17_683_968
    expected[ka.VARIANTS["xlarge_v2"]] = 58_724_864
    expected[ka.VARIANTS["xxlarge_v2"]] = 222_595_584
    with keras.StatelessScope(initialize_variables=False):
        found = {
            config: ka.AlbertBackbone(config).count_params()
            for config in expected
        }
        bare = ka.AlbertBackbone(base, pooler=False).count_params()
        whole = ka.AlbertForPretraining(ka.AlbertBackbone(base)).count_params()
    keras.utils.clear_session()  # forgets the weights without a value
    assert found == expected
    # Base without a pooler 11,092,992, MLM head 128,688, SOP 1,538.
    assert bare == 11_092_992
    assert whole == 11_683_584 + 128_688 + 1_538


@pytest.mark.parametrize(
    "sharing", ["all", "ffn", *marked("any_backend", "none", "attention")]
)
def test_what_is_shared(sharing):
    """Moving one half of the last layer's block moves the layers it serves."""
    backbone = add_noise(ka.AlbertBackbone(CONFIG.replace(sharing=sharing)))
    encoder = backbone.encoder
    for name, modes in (
        ("attention", {"all", "attention"}),
        ("feed_forward", {"all", "ffn"}),
    ):
        before = hidden_states(backbone)
        place = encoder.shared[-1] if sharing in modes else encoder.own[-1]
        half = place[0].parts[name]
        rng = np.random.default_rng(4)  # a constant LayerNorm would remove
        half.output_dense.bias.assign(rng.normal(size=26))
        alone = [sharing in modes] * (CONFIG.num_hidden_layers - 1)
        assert moved(before, hidden_states(backbone)) == [*alone, True]


@pytest.mark.parametrize(
    ("architecture", "dropout"),
    [
        ("all", 0.3),
        *marked("on_torch", ("attention, inner", 0.3)),
        pytest.param("none", 0.0, marks=pytest.mark.proof),
        pytest.param("groups", 0.0, marks=pytest.mark.proof),
        pytest.param("ffn, relaxed", 0.0, marks=pytest.mark.proof),
    ],
)
def test_forms_have_the_same_outputs_and_gradients(architecture, dropout):
    """Unrolled or scanned, rematerialized or not: one mask, one gradient.

    Were dropout's seed drawn inside what is rematerialized, TensorFlow and
    torch would draw another mask for the gradient, without a word.
    """
    config = with_dropout(
        dropout,
        num_hidden_layers=2,
        initializer_range=0.05,  # larger ones make rounding errors large
        **ARCHITECTURES[architecture],
    )
    x = inputs()
    y = {
        "sequence_output": np.zeros((BATCH, LENGTH, 26), "float32"),
        "pooled_output": np.ones((BATCH, 26), "float32"),
    }
    expected = None
    for loop, remat in FORMS:
        keras.utils.set_random_seed(11)  # of the weights and of dropout
        model = add_noise(ka.AlbertBackbone(config, loop=loop, remat=remat))
        states = model(x, training=True, return_hidden_states=True)
        found = [numpy(states[name]) for name in y]
        found += [numpy(state) for state in states["hidden_states"]]
        # Once in a graph, where rematerializing is another matter.
        in_graph = architecture == "all" and (loop, remat) == FORMS[-1]
        found += gradients(model, x, y, in_graph)
        if expected is None:
            expected = found
            # All but the keys' biases, to which a softmax is blind.
            moved = [np.abs(each).max() > 1e-5 for each in found]
            assert np.mean(moved) > 0.9
            continue
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(a, b, atol=5e-6 if dropout else 1e-6)


@pytest.mark.any_backend
@pytest.mark.parametrize(("sharing", "reads"), [("all", 2), ("ffn", 4)])
@pytest.mark.parametrize("loop", ["unrolled", "scan"])
def test_a_shared_half_is_read_once_a_call(sharing, reads, loop, monkeypatch):
    """Joined and cast once, however many of the three layers repeat it."""
    backbone = ka.AlbertBackbone(CONFIG.replace(sharing=sharing), loop=loop)
    count = 0
    for half in ("AttentionHalf", "FeedForwardHalf"):
        kind = getattr(keras_albert.modeling.layers, half)

        def counted(self, real=kind.tensors):
            nonlocal count
            count += 1
            return real(self)

        monkeypatch.setattr(kind, "tensors", counted)
    backbone(inputs())
    assert count == reads


def test_every_dropout_takes_its_own_seed(monkeypatch):
    """In two calls; and without dropout no seed is drawn."""
    taken = []
    real = keras.random.dropout

    def watched(x, rate, seed):
        if isinstance(seed, DrawnSeed):
            taken.append(numpy(seed.next()).astype("int64"))
        return real(x, rate, seed=seed)

    monkeypatch.setattr(keras.random, "dropout", watched)
    config = with_dropout(0.1, num_hidden_layers=2, inner_group_num=2)
    backbone = ka.AlbertBackbone(config)
    for _ in range(2):
        backbone(inputs(), training=True)
    # torch takes the sum of the two numbers of a seed.
    sums = {int(seed.sum() & 0xFFFFFFFF) for seed in taken}
    assert len(taken) == len(sums) == 2 * (2 * 2 * 3)
    assert draw_seeds(CONFIG, backbone.encoder.seed_generator, 5) is None


@pytest.mark.parametrize("loop", ["unrolled", "scan"])
def test_attention_scores(loop):
    """Asked for, they leave the outputs as they are (fused kernel or not)."""
    backbone = add_noise(
        ka.AlbertBackbone(CONFIG.replace(inner_group_num=2), loop=loop)
    )
    plain = backbone(inputs(), return_hidden_states=True)
    asked = backbone(inputs(), return_attention_scores=True)
    found, expected = (numpy(x["sequence_output"]) for x in (asked, plain))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    scores = [numpy(each) for each in asked["attention_scores"]]
    assert len(scores) == 3 * 2
    assert scores[0].shape == (BATCH, 13, LENGTH, LENGTH)
    for each in scores:
        np.testing.assert_allclose(each.sum(-1), 1, atol=1e-5)
        assert each[1, :, :, 12:].max() == 0  # padding
    assert len(plain["hidden_states"]) == 3
    np.testing.assert_array_equal(numpy(plain["hidden_states"][-1]), expected)


@pytest.mark.parametrize(
    ("architecture", "loop", "remat"),
    [
        ("all", "scan", True),
        ("attention, inner", "unrolled", True),
        *marked(
            "any_backend",
            ("none", "unrolled", False),
            ("ffn, relaxed", "scan", False),
        ),
        pytest.param("groups", "scan", True, marks=pytest.mark.proof),
        pytest.param("groups", "unrolled", False, marks=pytest.mark.proof),
    ],
)
def test_pooled_only(architecture, loop, remat):
    """The last layer at [CLS] alone gives what all of it gives."""
    backbone = add_noise(
        ka.AlbertBackbone(
            CONFIG.replace(**ARCHITECTURES[architecture]),
            loop=loop,
            remat=remat,
        )
    )
    if architecture == "none":
        backbone.quantize("int8")
    whole = backbone(inputs())
    only = backbone(inputs(), pooled_only=True)
    assert list(only) == ["pooled_output"]
    found, expected = (numpy(x["pooled_output"]) for x in (only, whole))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_pooled_only_computes_one_position(monkeypatch):
    lengths = []

    def feed_forward(config, weights, x, *others):
        lengths.append(x.shape[1])
        return x

    monkeypatch.setattr(
        keras_albert.modeling.encoder, "feed_forward", feed_forward
    )
    config = CONFIG.replace(inner_group_num=2)
    ka.AlbertBackbone(config)(inputs(), pooled_only=True)
    assert lengths == [LENGTH] * (2 * config.num_hidden_layers - 1) + [1]


def test_pooled_only_gradients():
    """Of every weight, of what stands on the pooled output."""

    class Pooled(ka.AlbertBackbone):
        def call(self, inputs, training=None):
            outputs = super().call(
                inputs, training=training, pooled_only=self.only
            )
            return {"pooled_output": outputs["pooled_output"]}

    config = CONFIG.replace(num_hidden_layers=2, inner_group_num=2)
    found = []
    for Pooled.only in (False, True):
        keras.utils.set_random_seed(11)
        model = add_noise(Pooled(config))
        y = {"pooled_output": np.ones((BATCH, 26), "float32")}
        found.append(gradients(model, inputs(), y))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.mean([np.abs(each).max() > 1e-5 for each in found[1]]) > 0.9


def test_attention_by_hand():
    """One head, two tokens, identity projections: softmax(x x^T / sqrt(2))."""
    identity = ops.eye(2)
    weights = {
        "qkv": {
            "kernel": ops.concatenate([identity] * 3, axis=1),
            "bias": ops.zeros(6),
        },
        "output": {"kernel": identity, "bias": ops.zeros(2)},
        "layer_norm": {"gamma": ops.ones(2), "beta": ops.zeros(2)},
    }
    x = np.array([[[1.0, 2.0], [3.0, -1.0]]], "float32")
    bias = np.zeros((1, 1, 1, 2), "float32")
    scores = x[0] @ x[0].T / np.sqrt(2)
    probs = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    summed = x[0] + probs @ x[0]
    centred = summed - summed.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
    config = CONFIG.replace(hidden_size=2, num_attention_heads=1)
    for fused in (True, False):
        tokens = ops.array(x)
        context, found = attention(
            config, weights, tokens, ops.array(bias), fused=fused
        )
        output = attention_output(config, weights, tokens, context)
        np.testing.assert_allclose(numpy(output)[0], expected, atol=1e-5)
        assert (found is None) == fused
    np.testing.assert_allclose(numpy(found)[0, 0], probs, atol=1e-6)


def test_a_row_of_padding_alone_stays_finite():
    x = inputs()
    x["padding_mask"][2] = 0
    found = ka.AlbertBackbone(CONFIG)(x)["sequence_output"]
    assert np.isfinite(numpy(found)).all()


def test_relaxed_sharing_starts_as_plain_sharing():
    plain = add_noise(ka.AlbertBackbone(CONFIG))
    relaxed = ka.AlbertBackbone(CONFIG.replace(relaxed_rank=2))
    shared = {name_of(v): v for v in plain.weights}
    own = []
    for weight in relaxed.weights:
        if name_of(weight) in shared:
            weight.assign(shared[name_of(weight)])
        else:
            own.append(weight)
    # A and B of four H x H, one H x F and one F x H kernel in each layer.
    h, f, rank = 26, 37, 2
    a_layer = rank * (4 * (h + h) + (h + f) + (f + h))
    assert sum(np.prod(w.shape) for w in own) == 3 * a_layer
    np.testing.assert_array_equal(*outputs(plain, relaxed))
    # The difference belongs to its layer alone.
    before = hidden_states(relaxed)
    last = [w for w in own if "layer_2_" in w.path and w.name == "b"]
    assert len(last) == 6
    for weight in last:
        weight.assign(numpy(weight) + 0.1)
    assert moved(before, hidden_states(relaxed)) == [False, False, True]


def test_relaxed_kernel_is_the_sum():
    """x (W + A B) + b, by a model without sharing that has the sums."""
    relaxed = add_noise(ka.AlbertBackbone(CONFIG.replace(relaxed_rank=2)))
    plain = ka.AlbertBackbone(CONFIG.replace(sharing="none"))
    values = {name_of(w): numpy(w) for w in relaxed.weights}
    for weight in plain.weights:
        name = name_of(weight)
        if not name.startswith("encoder/"):
            weight.assign(values[name])
            continue
        layer, half, part, kind = name.removeprefix("encoder/").split("/")
        value = values[f"encoder/group_0_block_0/{half}/{part}/{kind}"]
        if kind == "kernel":
            delta = f"encoder/{layer}/{half}_delta/{part}"
            value = value + values[f"{delta}/a"] @ values[f"{delta}/b"]
        weight.assign(value)
    np.testing.assert_allclose(*outputs(relaxed, plain), atol=2e-5)


def test_pooled_only_needs_a_pooler():
    with pytest.raises(ka.AlbertError, match="pooler=True"):
        ka.AlbertBackbone(CONFIG, pooler=False)(inputs(), pooled_only=True)


def outputs(*models):
    return [numpy(m(inputs())["sequence_output"]) for m in models]


def moved(before, after):
    """Which layers have other outputs than before."""
    return [
        np.abs(a - b).max() > 1e-3 for a, b in zip(before, after, strict=True)
    ]


def name_of(weight):
    return weight.path.split("/", 1)[1]
