"""Models of this package inside other models, and beside tools, of Keras."""

import keras
import numpy as np
import pytest
from small import (
    BATCH,
    CONFIG,
    QUICK,
    add_noise,
    assert_close,
    inputs,
    marked,
    numpy,
)

import keras_albert as ka
from keras_albert.modeling.labels import class_weight_of

ROW = "token_ids", "segment_ids", "padding_mask"
HEADS = {
    "encoder": lambda backbone: backbone,
    "label": lambda backbone: ka.AlbertForSequenceClassification(backbone, 2),
    "tokens": lambda backbone: ka.AlbertForTokenClassification(backbone, 2),
    "masked": ka.AlbertForMaskedLM,
    "vector": ka.AlbertForTextEmbedding,
    "answer": ka.AlbertForQuestionAnswering,
    "answer or none": ka.AlbertForQuestionAnsweringV2,
}


@keras.saving.register_keras_serializable("tests")
class OwnHead(keras.Model):
    """A model of a user: the encoder, and a layer without `build`."""

    def __init__(self, backbone, **kwargs):
        super().__init__(**kwargs)
        self.backbone = backbone
        self.scores = keras.layers.Dense(2)

    def call(self, inputs, training=None):
        outputs = self.backbone(inputs, training=training)
        return self.scores(outputs["pooled_output"])

    def get_config(self):
        backbone = keras.saving.serialize_keras_object(self.backbone)
        return {**super().get_config(), "backbone": backbone}

    @classmethod
    def from_config(cls, config):
        read = keras.saving.deserialize_keras_object
        return cls(**config | {"backbone": read(config["backbone"])})


def test_a_model_of_a_user_is_saved_with_its_own_layers(tmp_path):
    """Keras builds it with floats in place of ids before it reads weights."""
    model = OwnHead(ka.AlbertBackbone(CONFIG))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **QUICK)
    model.fit(inputs(), np.arange(BATCH) % 2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(inputs()), numpy(model(inputs())), atol=0, rtol=0)
    steps = [numpy(m.optimizer.iterations) for m in (model, again)]
    assert len(again.optimizer.variables) == len(model.optimizer.variables)
    assert steps == [1, 1]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a graph of TensorFlow"
)
def test_a_model_of_a_user_is_exported_by_keras(tmp_path):
    """Keras traces it with floats, too, and serves what is asked for."""
    import tensorflow as tf

    model = OwnHead(ka.AlbertBackbone(CONFIG))
    expected = numpy(model(inputs()))
    ids = {n: keras.InputSpec("int32", (None, None), name=n) for n in ROW}
    model.export(tmp_path / "own", input_signature=[ids], verbose=False)
    served = tf.saved_model.load(str(tmp_path / "own"))
    assert_close(served.serve(inputs()), expected)


ON_EVERY_BACKEND = ("label", "answer or none")  # these failed on JAX or PyTorch


@pytest.mark.parametrize(
    "name",
    [
        *ON_EVERY_BACKEND,
        *marked(
            "any_backend",
            *(name for name in HEADS if name not in ON_EVERY_BACKEND),
        ),
    ],
)
def test_rows_of_an_unknown_length(name):
    """The functional model computes what the model in it computes."""
    model = HEADS[name](add_noise(ka.AlbertBackbone(CONFIG)))
    given = {n: keras.Input((None,), dtype="int32", name=n) for n in ROW}
    around = keras.Model(given, model(given))
    expected = keras.tree.map_structure(numpy, model(inputs()))
    found = keras.tree.map_structure(numpy, around(inputs()))
    keras.tree.map_structure(assert_close, found, expected)


@pytest.mark.any_backend
@pytest.mark.parametrize("extra", [{}, {"start_positions": np.zeros(BATCH)}])
def test_shapes_of_answers(extra):
    """What functional models are told is what the model returns."""

    def of(tensor):
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return tuple(tensor.shape), dtype

    backbone = ka.AlbertBackbone(CONFIG, dtype="mixed_bfloat16")
    model = HEADS["answer or none"](backbone)
    x = {k: v.astype("int32") for k, v in {**inputs(), **extra}.items()}
    symbolic = {k: keras.KerasTensor(v.shape, "int32") for k, v in x.items()}
    expected = {name: of(tensor) for name, tensor in model(x).items()}
    found = model.compute_output_spec(symbolic)
    assert {name: of(tensor) for name, tensor in found.items()} == expected


def test_ids_of_floats_are_refused():
    given = {n: keras.Input((None,), dtype="float32", name=n) for n in ROW}
    with pytest.raises(ka.AlbertError, match=r"must be integers.*float32"):
        ka.AlbertBackbone(CONFIG)(given)
    floats = {name: ids.astype("float32") for name, ids in inputs().items()}
    with pytest.raises(Exception, match=r"must be integers.*float32"):
        OwnHead(ka.AlbertBackbone(CONFIG))(floats)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a format of TensorFlow"
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sharing": "none"},
        {"relaxed_rank": 2},
        {"num_hidden_groups": 5, "inner_group_num": 2},
    ],
)
def test_checkpoints_of_tensorflow_have_all_weights(tmp_path, changes):
    import tensorflow as tf

    config = CONFIG.replace(**changes)
    model, other = (
        ka.AlbertEnsemble(
            [
                ka.AlbertForSequenceClassification(
                    ka.AlbertBackbone(config), 2, exits="own", name="same"
                )
                for _ in range(2)
            ]
        )
        for _ in range(2)
    )
    add_noise(model)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "model"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    for expected, found in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(numpy(found), numpy(expected))


@pytest.mark.any_backend
def test_weights_of_classes_by_name():
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(CONFIG.replace(hidden_dropout_prob=0.0)),
        2,
        labels=("no", "yes"),
        dropout=0.0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
    x, y = inputs(), np.array([0, 1, 1])

    def loss_with(weights):
        history = model.fit(x, y, class_weight=weights, verbose=0).history
        return history["loss"][0]

    logits = keras.ops.convert_to_numpy(model(x))
    of_rows = np.logaddexp(*logits.T) - logits[np.arange(3), y]
    expected = pytest.approx(np.mean(of_rows * [0.5, 3.0, 3.0]), rel=1e-5)
    assert loss_with({"no": 0.5, "yes": 3.0}) == expected
    assert loss_with({0: 0.5, 1: 3.0}) == expected
    for weights, message in (
        ({"no": 1.0, "maybe": 2.0}, "one of 'no', 'yes'. Received: 'maybe'"),
        ({0: 1.0, 2: 3.0}, r"weight for 2\. Expected numbers from 0 to 1"),
        ({0: 1.0, 1: float("nan")}, "finite number. Received: nan for 1"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            loss_with(weights)
    ignoring = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    model.compile(keras.optimizers.SGD(0.0), ignoring, run_eagerly=True)
    assert class_weight_of(model, {-1: 0.0, "yes": 2.0}) == {-1: 0.0, 1: 2.0}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "make",
    [
        HEADS["tokens"],
        HEADS["masked"],
        lambda backbone: ka.AlbertForSequenceClassification(
            backbone, 2, problem="multi_label", labels=("no", "yes")
        ),
    ],
)
def test_weights_of_classes_of_several_labels(make):
    model = make(ka.AlbertBackbone(CONFIG))
    with pytest.raises(ka.AlbertError, match=r"has one class\..*sample_weight"):
        model.fit(inputs(), np.zeros(BATCH), class_weight={"no": 1, "yes": 2})


def test_made_while_another_layer_is_built(tmp_path):
    """Keras then puts the name of that layer in front of all paths."""
    with keras.name_scope("outer"):
        model = HEADS["label"](add_noise(ka.AlbertBackbone(CONFIG)))
    assert model.backbone.path.startswith("outer/")
    plain = HEADS["label"](ka.AlbertBackbone(CONFIG))
    assert model.leaves().keys() == plain.leaves().keys()
    model.backbone.embeddings.word.trainable = False
    ka.save_huggingface(model, tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    for again in (
        ka.load(tmp_path / "folder"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert_close(again(inputs()), numpy(model(inputs())), atol=1e-6)
    frozen = again.non_trainable_weights
    assert [each.path.split("/", 1)[1] for each in frozen] == [
        "embeddings/word_embeddings/embeddings"
    ]


def test_labels_of_several_outputs():
    model = HEADS["answer"](ka.AlbertBackbone(CONFIG))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **QUICK)
    labels = {name: [0] * BATCH for name in ("start", "end")}
    weights = {"start": [1.0] * BATCH, "end": [0.0] * BATCH}
    found = model.evaluate(
        inputs(), labels, sample_weight=weights, verbose=0, return_dict=True
    )
    assert found["end_loss"] == 0 < found["start_loss"]
    with pytest.raises(ka.AlbertError, match="Give a dict of start and end"):
        model.evaluate(inputs(), [*labels.values()])


@pytest.mark.any_backend
def test_what_is_for_models_of_this_package_alone():
    model = OwnHead(ka.AlbertBackbone(CONFIG))
    for use in (
        lambda: ka.export(model, "never"),
        lambda: ka.save_huggingface(model, "never"),
    ):
        with pytest.raises(
            ka.AlbertError, match=r"OwnHead\..*its own method, model\.save"
        ):
            use()
