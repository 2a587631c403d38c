"""The embedding, a block and the encoder as Keras layers like any other."""

import functools
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers
from small import (
    BATCH,
    CONFIG,
    LENGTH,
    QUICK,
    add_noise,
    assert_close,
    inputs,
    marked,
    numpy,
)

import keras_albert as ka

OLD_FILE = Path(__file__).parents[1] / "data" / "before_public_layers.keras"
H = CONFIG.hidden_size


@keras.saving.register_keras_serializable("tests")
class Around(layers.Layer):
    """A layer of a user, which builds the encoder when it is called."""

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder

    def call(self, x):
        return self.encoder(x)

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder}

    @classmethod
    def from_config(cls, config):
        read = keras.saving.deserialize_keras_object
        return cls(**config | {"encoder": read(config["encoder"])})


TWO = CONFIG.replace(num_hidden_layers=2)
BFLOAT16 = "mixed_bfloat16"
SCANNED = functools.partial(ka.SharedEncoder, loop="scan")


def vectors(seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(BATCH, LENGTH, H)).astype("float32")


def built(layer):
    layer.build((None, None, H))
    return add_noise(layer)


def test_they_compose_to_the_backbone():
    """One block called L times is the encoder; the weights fit as they are."""
    backbone = add_noise(ka.AlbertBackbone(CONFIG))
    x = inputs()
    embedding, block = ka.FactorizedEmbedding(CONFIG), ka.EncoderBlock(CONFIG)
    encoder = ka.SharedEncoder(CONFIG, loop="scan")
    for layer, source in (
        (embedding, backbone.embeddings),
        (block, backbone.encoder.shared[0][0]),
        (encoder, backbone.encoder),
    ):
        layer.build()
        layer.set_weights(source.get_weights())
    embedded = embedding(x["token_ids"], x["segment_ids"])
    vector = embedded
    for _ in range(CONFIG.num_hidden_layers):
        vector = block(vector, x["padding_mask"])
    expected = numpy(backbone(x)["sequence_output"])
    assert_close(vector, expected)
    assert_close(encoder(embedded, padding_mask=x["padding_mask"]), expected)


def shapes_and_dtypes(tensors):
    return keras.tree.map_structure(
        lambda t: (tuple(t.shape), keras.backend.standardize_dtype(t.dtype)),
        tensors,
    )


@pytest.mark.parametrize(
    ("make", "returned"),
    [
        (ka.SharedEncoder, "return_hidden_states return_attention_scores"),
        (SCANNED, "return_hidden_states first_only"),
        *marked(
            "any_backend",
            (ka.EncoderBlock, "return_attention_scores"),
            (ka.SharedEncoder, "return_attention_scores first_only"),
        ),
    ],
)
def test_symbolic_outputs_are_those_of_a_call(make, returned):
    arguments = dict.fromkeys(returned.split(), True)
    layer = make(TWO.replace(inner_group_num=2), dtype=BFLOAT16)
    x = keras.KerasTensor((BATCH, LENGTH, H))
    symbolic = layer.compute_output_spec(x, **arguments)
    real = layer(vectors(), inputs()["padding_mask"], **arguments)
    assert shapes_and_dtypes(symbolic) == shapes_and_dtypes(real)
    assert layer.compute_output_shape(x.shape) == (BATCH, LENGTH, H)
    embedding = ka.FactorizedEmbedding(CONFIG, dtype=BFLOAT16)
    ids = inputs()["token_ids"]
    symbolic = embedding(keras.Input((LENGTH,), BATCH, dtype="int32"))
    assert shapes_and_dtypes(symbolic) == shapes_and_dtypes(embedding(ids))
    assert embedding.compute_output_shape((3, 5)) == (3, 5, H)


def functional():
    """Ids and a number for each text, through our layers and Keras's."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = keras.Input((None,), dtype="bool", name="mask")
    number = keras.Input((1,), name="number")
    x = ka.FactorizedEmbedding(TWO)(ids)
    x = ka.EncoderBlock(TWO)(x, padding_mask=mask)
    relaxed = TWO.replace(sharing="attention", relaxed_rank=2)
    x, states = ka.SharedEncoder(relaxed, loop="scan", remat=True)(
        x, mask, return_hidden_states=True
    )
    x = layers.GlobalAveragePooling1D()(x + states[0])
    output = layers.Dense(2)(layers.Concatenate()([x, number]))
    return keras.Model([ids, mask, number], output)


def test_functional_model_trained_saved_and_read(tmp_path):
    model = functional()
    model.compile("adam", "mse", **QUICK)
    ids = inputs()["token_ids"]
    x = [ids, ids != 0, np.array([[0.5], [-1.0], [2.0]], "float32")]
    y = np.ones((BATCH, 2), "float32")
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    model.save(tmp_path / "model.keras")
    for load in (keras.models.load_model, ka.load_model):
        again = load(tmp_path / "model.keras")
        np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


@pytest.mark.any_backend
def test_quantized_layers_come_back(tmp_path):
    ids = keras.Input((LENGTH,), dtype="int32")
    x = ka.EncoderBlock(CONFIG)(ka.FactorizedEmbedding(CONFIG)(ids))
    model = add_noise(keras.Model(ids, x))
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = inputs()["token_ids"]
    np.testing.assert_allclose(numpy(again(x)), numpy(model(x)), atol=1e-5)
    assert again.layers[-1].attention.query.quantization_mode == "int8"


@pytest.mark.parametrize("make", [ka.EncoderBlock, ka.SharedEncoder])
def test_masks(make):
    """Padding is not read, whether an argument or Keras's mask names it."""
    layer, mask = built(make(TWO)), inputs()["padding_mask"]
    x = vectors()
    moved = np.where(mask[..., None] == 1, x, vectors(2))
    kept = mask == 1
    given, same = (numpy(layer(each, mask))[kept] for each in (x, moved))
    np.testing.assert_allclose(given, same, atol=1e-6)
    read = [numpy(layer(each))[kept] for each in (x, moved)]
    assert np.abs(read[0] - read[1]).max() > 1e-3
    masked = layers.Masking()(x * mask[..., None].astype("float32"))
    implied = layer(masked)
    np.testing.assert_allclose(numpy(implied)[kept], given, atol=1e-6)
    np.testing.assert_array_equal(
        numpy(keras.src.backend.get_keras_mask(implied)), kept
    )
    # Beside another tensor, too.
    together = np.ones_like(mask)
    found = numpy(layer(masked, example_ids=together))[kept]
    np.testing.assert_allclose(found, given, atol=1e-6)


def test_a_block_passes_on_what_it_is_asked():
    """Dropout only in training; examples that share a row stay apart."""
    layer = built(ka.EncoderBlock(CONFIG.replace(hidden_dropout_prob=0.5)))
    x = vectors()
    still, moved = (numpy(layer(x, training=t)) for t in (False, True))
    assert np.abs(moved - still).max() > 1e-3
    ids = np.ones((BATCH, LENGTH), "int32")
    ids[:, 7:] = 2
    together = layer(x, example_ids=ids)
    for part in (slice(0, 7), slice(7, None)):
        assert_close(together[:, part], numpy(layer(x[:, part])))


@pytest.mark.any_backend
def test_file_from_before():
    """Paths inside `.keras` files are what they were."""
    model = ka.load_model(OLD_FILE)
    assert type(model) is ka.AlbertForPretraining
    ids = np.array([[2, 5, 12, 7, 3], [2, 9, 3, 0, 0]])
    outputs = model({"token_ids": ids})
    expected = np.array([3.0564086, 1.6023104, 2.2297363, 1.293449, 1.3263829])
    assert_close(numpy(outputs["mlm"])[:, :, :3].sum((0, 2)), expected)
    expected = np.array([[0.78698456, 0.6404128], [0.7894589, 0.5997758]])
    assert_close(outputs["sop"], expected)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (ka.EncoderBlock, [np.zeros((2, 3, 5))], r"=26\]. .*: \(2, 3, 5\)"),
        (ka.SharedEncoder, [keras.Input((5,))], r"=26\]. .*: \(None, 5\)"),
        (
            *(ka.SharedEncoder, [vectors(), np.ones((3, 4), int)]),
            r"`padding_mask` must have .*\(3, 17\)\. Received: \(3, 4\)",
        ),
        (
            *(ka.EncoderBlock, [vectors(), np.ones((3, 17))]),
            "`padding_mask` must be integers",
        ),
        (ka.FactorizedEmbedding, [np.full((2, 3), 97)], "0 to 96.*: 97"),
        (ka.FactorizedEmbedding, [keras.Input((24,))], "=23 tokens. .*: 24"),
    ],
)
def test_bad_inputs(make, inputs, message):
    with pytest.raises(ka.AlbertError, match=message):
        make(CONFIG)(*inputs)


@pytest.mark.any_backend
def test_bad_settings():
    with pytest.raises(ka.AlbertError, match=r"must be an AlbertConfig.*dict"):
        ka.EncoderBlock({})
    with pytest.raises(ka.AlbertError, match="Received: loop='for'"):
        ka.SharedEncoder(CONFIG, loop="for")


def test_int8_inside_of_a_layer_of_a_user(tmp_path):
    """The paths of its weights begin with the name of that layer."""
    model = keras.Sequential(
        [keras.Input((LENGTH, H)), Around(ka.SharedEncoder(CONFIG))]
    )
    model.quantize("int8")
    expected = numpy(model(vectors()))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(vectors()), expected, atol=1e-6)
