"""Depth warm start (Paper Table 11): who begins with whose weights."""

import numpy as np
import pytest
from small import CONFIG, add_noise, hidden_states, numpy

import keras_albert as ka

# Weights are copied as NumPy arrays.
pytestmark = pytest.mark.on_torch
SHALLOW = CONFIG.replace(num_hidden_layers=2)


def assert_same_weights(layer, other):
    np.testing.assert_equal(layer.get_weights(), other.get_weights())


def test_deeper_and_shared_goes_on_from_the_same_block():
    """The first two layers of five compute what the two layers did."""
    shallow = add_noise(ka.AlbertBackbone(SHALLOW))
    deep = ka.AlbertBackbone(CONFIG)
    ka.warm_start(deep, shallow)
    assert_same_weights(shallow, deep)
    np.testing.assert_allclose(
        hidden_states(shallow), hidden_states(deep)[:2], atol=1e-6
    )


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        ({}, {"num_hidden_groups": 3}),
        ({}, {"sharing": "none"}),
        ({}, {"sharing": "ffn", "num_hidden_groups": 2}),
        ({}, {"relaxed_rank": 2}),
        # Layers of their own: what was shared, and their difference.
        ({"relaxed_rank": 2}, {"sharing": "none"}),
        ({"relaxed_rank": 2}, {"relaxed_rank": 3}),
    ],
)
def test_less_sharing_at_the_same_depth_keeps_the_outputs(before, changed):
    source = add_noise(ka.AlbertBackbone(CONFIG.replace(**before)))
    model = ka.AlbertBackbone(CONFIG.replace(**changed))
    ka.warm_start(model, source)
    np.testing.assert_allclose(
        hidden_states(source),
        hidden_states(model),
        atol=1e-5 if before else 1e-6,
    )


def test_groups_start_from_the_groups_of_their_place():
    """Six groups from two: the first three from the first."""
    source = add_noise(ka.AlbertBackbone(SHALLOW.replace(num_hidden_groups=2)))
    model = ka.AlbertBackbone(
        CONFIG.replace(num_hidden_layers=6, num_hidden_groups=6)
    )
    ka.warm_start(model, source)
    biases, (first, second) = (
        [numpy(row[0].parts["attention"].query.bias) for row in encoder.shared]
        for encoder in (model.encoder, source.encoder)
    )
    np.testing.assert_array_equal(biases, [first] * 3 + [second] * 3)


def test_inner_blocks_start_from_those_of_their_place():
    """Four from two: the first two from the first."""
    source, model = (
        add_noise(ka.AlbertBackbone(SHALLOW.replace(inner_group_num=count)))
        for count in (2, 4)
    )
    ka.warm_start(model, source)
    biases, (first, second) = (
        [
            numpy(block.parts["attention"].query.bias)
            for block in each.encoder.shared[0]
        ]
        for each in (model, source)
    )
    np.testing.assert_array_equal(biases, [first, first, second, second])


def relaxed_from(config, rank):
    """A model with relaxed sharing, and the kernels of a source's layers.

    The layers of the source, whose config is given, share nothing.
    """
    source = add_noise(ka.AlbertBackbone(config.replace(sharing="none")))
    model = ka.AlbertBackbone(CONFIG.replace(relaxed_rank=rank))
    ka.warm_start(model, source)
    return model, [
        numpy(row[0].parts["attention"].value.kernel)
        for row in source.encoder.own
    ]


@pytest.mark.parametrize("rank", [2, 26, 29])
def test_relaxed_sharing_from_layers_that_differ(rank):
    """The mean of the layers, and the best approximation of the rest.

    A rank as large as the kernels loses nothing.
    """
    model, expected = relaxed_from(CONFIG, rank)
    mean = numpy(model.encoder.shared[0][0].parts["attention"].value.kernel)
    np.testing.assert_allclose(mean, np.mean(expected, axis=0), atol=1e-6)
    for row, kernel in zip(model.encoder.own, expected, strict=True):
        value = row[0].parts["attention_delta"].parts[2]
        left = np.linalg.norm(kernel - mean - numpy(value.a) @ numpy(value.b))
        lost = np.linalg.svd(kernel - mean, compute_uv=False)[rank:]
        assert left == pytest.approx(np.linalg.norm(lost), abs=1e-5)


def test_relaxed_sharing_of_full_rank_has_the_same_outputs():
    """If biases and layer norms, which have no differences, are equal."""
    source = add_noise(ka.AlbertBackbone(CONFIG.replace(sharing="none")))
    first, *others = (of_halves(row) for row in source.encoder.own)
    for weights in others:
        for weight, start in zip(weights, first, strict=True):
            if weight.name != "kernel":
                weight.assign(start)
    model = ka.AlbertBackbone(CONFIG.replace(relaxed_rank=26))
    ka.warm_start(model, source)
    np.testing.assert_allclose(
        hidden_states(source), hidden_states(model), atol=1e-4
    )


def of_halves(row):
    return [w for part in row[0].parts.values() for w in part.weights]


def test_relaxed_sharing_from_equal_layers_can_learn():
    """Each direction has a factor that is not zero, as in a new model."""
    shared = add_noise(ka.AlbertBackbone(CONFIG))
    source = ka.AlbertBackbone(CONFIG.replace(sharing="none"))
    ka.warm_start(source, shared)
    model = ka.AlbertBackbone(CONFIG.replace(relaxed_rank=3))
    value = model.encoder.own[2][0].parts["attention_delta"].parts[2]
    before = numpy(value.a)
    ka.warm_start(model, source)
    np.testing.assert_array_equal(numpy(value.a), before)
    assert not numpy(value.b).any() and before.all()


def test_heads_that_the_source_lacks_keep_their_start():
    """As of released masked LMs, which have no sentence order."""
    source = add_noise(
        ka.AlbertForMaskedLM(ka.AlbertBackbone(SHALLOW, pooler=False))
    )
    model = ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG))
    before = numpy(model.sentence_pair.kernel).copy()
    assert ka.warm_start(model, source) == [
        "pooler/kernel",
        "pooler/bias",
        "sentence_pair/kernel",
        "sentence_pair/bias",
    ]
    np.testing.assert_array_equal(before, numpy(model.sentence_pair.kernel))
    assert_same_weights(source.masked_lm, model.masked_lm)
    # That for sentence order comes along, if there is one.
    other = add_noise(ka.AlbertForPretraining(ka.AlbertBackbone(SHALLOW)))
    assert ka.warm_start(model, other) == []
    assert_same_weights(other.sentence_pair, model.sentence_pair)


def shallow(change=lambda backbone: None, **settings):
    backbone = ka.AlbertBackbone(SHALLOW.replace(**settings))
    change(backbone)
    return backbone


def test_a_projection_between_equal_sizes_is_not_lost():
    config = CONFIG.replace(embedding_size=CONFIG.hidden_size)
    source = config.replace(project_equal_sizes=True)
    with pytest.raises(ka.AlbertError, match="kernel: missing in the model"):
        ka.warm_start(ka.AlbertBackbone(config), ka.AlbertBackbone(source))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: shallow(vocab_size=101), r"expected .97, 11., found .*Only"),
        (
            lambda: shallow(lambda backbone: backbone.quantize("int8")),
            "quantized.*Received: int8",
        ),
        (
            lambda: shallow(lambda backbone: backbone.enable_lora(2)),
            "without adapters. Received: LoRA in encoder/group_0",
        ),
        (
            lambda: shallow(relaxed_rank=2),
            "rank 2.*the same attention weights.*sharing='all'",
        ),
        (
            lambda: shallow(num_attention_heads=1),
            r"num_attention_heads of its source, 1\. Received: 13\. Give",
        ),
        (lambda: shallow(hidden_act="relu"), "activation of its source, relu"),
        (lambda: None, "Received: NoneType"),
    ],
)
def test_what_does_not_fit(source, message):
    model = ka.AlbertBackbone(CONFIG)
    before = model.get_weights()
    with pytest.raises(ka.AlbertError, match=message):
        ka.warm_start(model, source())
    np.testing.assert_equal(model.get_weights(), before)


def test_relaxed_sharing_begins_with_each_layer_of_the_source_once():
    """Of two layers the first serves three of five: it counts no more."""
    model, kernels = relaxed_from(SHALLOW, rank=2)
    found = numpy(model.encoder.shared[0][0].parts["attention"].value.kernel)
    np.testing.assert_allclose(found, np.mean(kernels, axis=0), atol=1e-6)
