"""int8 and LoRA on shared weights, and their way through files."""

import keras
import numpy as np
import pytest
from small import BATCH, CONFIG, QUICK, add_noise, inputs, marked, numpy

import keras_albert as ka

QUERY = "encoder/group_0_block_0/attention/query"
SMOOTH = CONFIG.replace(num_hidden_layers=2, initializer_range=0.1)


def classifier(seed=0, **changes):
    return add_noise(
        ka.AlbertForSequenceClassification(
            ka.AlbertBackbone(SMOOTH.replace(**changes)), num_labels=3
        ),
        seed,
    )


@pytest.mark.parametrize(
    "kind", ["ffn", "masked_lm", *marked("any_backend", "all")]
)
def test_int8_is_close_and_small(kind):
    """A classifier with this sharing; a head that uses the quantized table."""
    if kind == "masked_lm":
        model = add_noise(ka.AlbertForMaskedLM(ka.AlbertBackbone(SMOOTH)))
    else:
        model = classifier(sharing=kind)
    expected = numpy(model(inputs()))
    model.quantize("int8")
    found = numpy(model(inputs()))
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    assert not np.array_equal(found, expected)
    kernels = [v for v in model.variables if v.name in ("kernel", "embeddings")]
    assert len(kernels) >= 11
    assert all(v.dtype == "int8" for v in kernels)


def test_int8_predicts_compiled():
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(SMOOTH, loop="scan", remat=True), num_labels=3
    )
    model.quantize("int8")
    # An activation may be rounded to the next of its 255 steps.
    np.testing.assert_allclose(
        model.predict(inputs(), verbose=0), numpy(model(inputs())), atol=1e-2
    )


@pytest.mark.any_backend
def test_one_adapter_serves_all_layers():
    """Two kernels of H x R and R x H each, however many layers."""
    model = classifier()
    model.backbone.enable_lora(rank=2)
    adapters = [v for v in model.variables if "lora" in v.path]
    assert len(adapters) == 4
    assert sum(np.prod(v.shape) for v in adapters) == 2 * (26 * 2 + 2 * 26)
    head = [
        f"{v.path.split('/')[-2]}/{v.name}"
        for v in model.trainable_variables
        if "lora" not in v.path
    ]
    assert head == ["classifier/kernel", "classifier/bias"]
    assert len(model.trainable_variables) == 4 + 2


def test_an_adapter_starts_at_nothing_and_learns():
    keras.utils.set_random_seed(3)
    model = classifier()
    expected = numpy(model(inputs()))
    model.backbone.enable_lora(rank=2, targets=("query", "intermediate"))
    np.testing.assert_allclose(numpy(model(inputs())), expected, atol=1e-6)
    frozen = [
        (v, numpy(v).copy())
        for v in model.backbone.weights
        if "lora" not in v.path
    ]
    model.compile(
        keras.optimizers.Adam(0.02),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **QUICK,
    )
    labels = np.arange(BATCH)
    history = model.fit(inputs(), labels, epochs=8, verbose=0)
    assert history.history["loss"][-1] < 0.7 * history.history["loss"][0]
    for variable, before in frozen:
        np.testing.assert_array_equal(numpy(variable), before)


ADAPTATIONS = {
    "int8": lambda model: model.quantize("int8"),
    "lora": lambda model: model.backbone.enable_lora(2, alpha=4),
    "int8 backbone": lambda model: model.backbone.quantize("int8"),
}


@pytest.mark.parametrize(
    "adaptation",
    [
        *("int8", "lora", "lora, then int8"),
        pytest.param("int8, then lora", marks=pytest.mark.proof),
        pytest.param("int8 backbone", marks=pytest.mark.proof),
    ],
)
def test_adapted_models_survive_a_file(adaptation, tmp_path):
    model = classifier(seed=2)
    for step in adaptation.split(", then "):
        ADAPTATIONS[step](model)
    rng = np.random.default_rng(6)
    for variable in model.variables:
        if "lora_kernel_b" in variable.path:  # as after training
            variable.assign(0.1 * rng.normal(size=variable.shape))
    expected = numpy(model(inputs()))
    model.save(tmp_path / "model.keras")
    again = ka.load_model(tmp_path / "model.keras")
    # Where int8 kernels meet adapters, merging rounds once more.
    both = "lora" in adaptation and "int8" in adaptation
    tolerance = 0.05 * np.abs(expected).max() if both else 1e-5
    np.testing.assert_allclose(numpy(again(inputs())), expected, atol=tolerance)
    for kind in ("int8", "lora"):
        assert [kind in str(v.dtype) + v.path for v in again.variables] == [
            kind in str(v.dtype) + v.path for v in model.variables
        ]
    assert len(again.trainable_variables) == len(model.trainable_variables)


@pytest.mark.any_backend
def test_a_file_leaves_the_compiler_to_the_backend(tmp_path):
    """Unless the caller has chosen: what is quick on one is slow on another."""
    quick = keras.Sequential().jit_compile
    for given, stored in (("auto", "auto"), (quick, "auto"), (not quick,) * 2):
        model = classifier()
        model.compile("sgd", "mse", jit_compile=given)
        assert model.get_compile_config()["jit_compile"] == stored
        model.save(tmp_path / "a.keras")
        again = keras.models.load_model(tmp_path / "a.keras")
        assert again.jit_compile == model.jit_compile
    assert ka.AlbertBackbone(CONFIG).get_compile_config() == {}


def test_a_frozen_encoder_from_a_file_can_be_trained(tmp_path):
    model = ka.AlbertForSequenceClassification(ka.AlbertBackbone(CONFIG), 3)
    count = len(model.trainable_weights)
    model.backbone.trainable = False
    assert len(model.trainable_weights) == 2
    model.save(tmp_path / "a.keras")
    again = keras.models.load_model(tmp_path / "a.keras")
    assert not again.backbone.trainable and again.trainable
    assert len(again.trainable_weights) == 2
    again.backbone.trainable = True
    assert len(again.trainable_weights) == count
    with pytest.raises(ka.AlbertError, match="while its `trainable` is False"):
        model.backbone.enable_lora(2)


def test_frozen_parts_stay_frozen_in_a_file(tmp_path):
    whole, part, adapted, free, served = (classifier() for _ in range(5))
    whole.backbone.trainable = part.backbone.embeddings.trainable = False
    adapted.backbone.enable_lora(2)
    adapted.backbone.pooler.kernel.trainable = True  # beside the adapters
    free.backbone.enable_lora(2)
    for weight in free.weights:
        weight.trainable = True
    served.backbone.enable_lora(2)
    served.backbone.trainable = False
    for model in (whole, part, adapted, free, served):
        model.save(tmp_path / "model.keras")
        again = ka.load_model(tmp_path / "model.keras")
        found = [v.path for v in again.trainable_variables]
        assert found == [v.path for v in model.trainable_variables]
        assert (len(found) == len(model.weights)) == (model is free)


@pytest.mark.parametrize("part", ["encoder", "all"])
def test_a_frozen_encoder_with_adapters_can_be_trained_again(tmp_path, part):
    model = ka.AlbertBackbone(SMOOTH)
    model.enable_lora(2)
    (model.encoder if part == "encoder" else model).trainable = False
    model.save(tmp_path / "model.keras")
    again = ka.load_model(tmp_path / "model.keras")
    assert not again.encoder.trainable
    assert again.trainable == model.trainable == (part == "encoder")
    frozen = len(again.trainable_weights)
    for each in (model, again):
        (each.encoder if part == "encoder" else each).trainable = True
    found, expected = (
        [v.path for v in each.trainable_weights] for each in (again, model)
    )
    assert found == expected and len(found) > frozen


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "make", [ka.FactorizedEmbedding, ka.SharedEncoder, ka.EncoderBlock]
)
@pytest.mark.parametrize("frozen", ["all", "one", "none"])
def test_frozen_layers_of_a_model_of_ones_own(tmp_path, make, frozen):
    """How many weights of the layer are frozen."""
    layer = make(CONFIG)
    shape = () if make is ka.FactorizedEmbedding else (CONFIG.hidden_size,)
    dtype = "float32" if shape else "int32"
    x = keras.Input((None, *shape), dtype=dtype)
    model = keras.Model(x, keras.layers.Dense(3)(layer(x)[:, 0]))
    if frozen == "one":
        layer.weights[0].trainable = False
    elif frozen == "all":
        layer.trainable = False
    found = [v.trainable for v in model.weights]
    assert (
        found.count(False)
        == {
            "all": len(layer.weights),
            "one": 1,
            "none": 0,
        }[frozen]
    )
    model.save(tmp_path / "model.keras")
    for again in (
        keras.models.load_model(tmp_path / "model.keras"),
        keras.models.clone_model(model),
    ):
        assert [v.trainable for v in again.weights] == found
        assert again.layers[1].trainable == (frozen != "all")
    with pytest.raises(ka.AlbertError, match=r"x\.trainable = False"):
        make(CONFIG, trainable=False)


@pytest.mark.any_backend
def test_alpha_scales_an_adapter():
    """The kernel gets alpha / rank times the product of both factors."""
    backbone = ka.AlbertBackbone(SMOOTH)
    before = numpy(backbone.leaves()[QUERY].kernel).copy()
    backbone.enable_lora(rank=2, alpha=6)
    query = backbone.leaves()[QUERY]
    rng = np.random.default_rng(0)
    factors = [
        rng.normal(size=variable.shape).astype("float32")
        for variable in (query.lora_kernel_a, query.lora_kernel_b)
    ]
    query.lora_kernel_a.assign(factors[0])
    query.lora_kernel_b.assign(factors[1])
    np.testing.assert_allclose(
        numpy(query.kernel), before + 3 * factors[0] @ factors[1], atol=1e-5
    )


@pytest.mark.any_backend
def test_quantization_settings_that_a_file_would_lose():
    settings = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    )
    with pytest.raises(ka.AlbertError, match="must have its default values"):
        ka.AlbertBackbone(CONFIG).quantize(config=settings)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("config", "mode", "message"),
    [
        (SMOOTH, "int4", "'int8'. Received: mode='int4'"),
        (SMOOTH.replace(relaxed_rank=2), "int8", "Received: relaxed_rank=2"),
    ],
)
def test_what_cannot_be_quantized(config, mode, message):
    model = ka.AlbertBackbone(config)
    with pytest.raises(ka.AlbertError, match=message):
        model.quantize(mode)
    model(inputs())


@pytest.mark.any_backend
def test_relaxed_sharing_in_another_model_cannot_be_quantized():
    relaxed = {"relaxed_rank": 2}
    together = ka.AlbertEnsemble([classifier(), classifier(**relaxed)])
    with pytest.raises(ka.AlbertError, match="Received: relaxed_rank=2"):
        together.quantize("int8")
    together(inputs())
    # Keras's own method, which asks no model of this package.
    x = keras.Input((None, SMOOTH.hidden_size))
    encoder = ka.SharedEncoder(SMOOTH.replace(**relaxed))
    own = keras.Model(x, encoder(x))
    own.quantize("int8")
    with pytest.raises(ka.AlbertError, match="relaxed sharing cannot be quan"):
        own(np.zeros((2, 5, SMOOTH.hidden_size), "float32"))
