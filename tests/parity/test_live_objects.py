"""Models of transformers and KerasHub in memory: the same numbers here.

Weights are random; see exchange.py.
"""

import keras
import numpy as np
import pytest
from exchange import TOLERANCE, arrays, batch, of_transformers
from small import EXCHANGED, marked, numpy, randomized, same_weights

import keras_albert as ka
from keras_albert.text.charsmap import normalizing_model

transformers = pytest.importorskip("transformers", reason="not installed")
hub = pytest.importorskip("keras_hub", reason="not installed").models

LABELS = ("anger", "joy", "calm")
TEXTS = ["The Fox sold two - no, 2,000 (!) hens", "Élodie painted"]
QUICK = {"run_eagerly": keras.backend.backend() == "tensorflow"}
WRAPS = {
    "encoder": lambda encoder: encoder,
    "without_pooler": lambda encoder: ka.AlbertBackbone(
        encoder.config, pooler=False, tokenizer=encoder.tokenizer
    ),
    "pretraining": ka.AlbertForPretraining,
    "masked_lm": ka.AlbertForMaskedLM,
    "classifier": lambda encoder: ka.AlbertForSequenceClassification(
        encoder, num_labels=3, labels=LABELS, dropout=0.25
    ),
    "several_labels": lambda encoder: ka.AlbertForSequenceClassification(
        encoder, num_labels=3, labels=LABELS, problem="multi_label"
    ),
    "tokens": lambda encoder: ka.AlbertForTokenClassification(
        encoder, num_labels=3, labels=LABELS
    ),
    "choice": ka.AlbertForMultipleChoice,
    "answers": ka.AlbertForQuestionAnswering,
}


@pytest.fixture
def make(tiny_vocab):
    """Makes a model with random weights that takes texts."""
    tokenizer = ka.Tokenizer(tiny_vocab)

    def make_one(wrap=WRAPS["encoder"], **changes):
        config = EXCHANGED.replace(vocab_size=tokenizer.vocab_size, **changes)
        encoder = ka.AlbertBackbone(config, tokenizer=tokenizer)
        return randomized(wrap(encoder), scale=0.3)

    return make_one


def assert_close(ours, theirs):
    """Outputs, or tensors in their order: two libraries name them apart."""
    if not isinstance(theirs, list):
        theirs = [*theirs.values()]
    ours = [*arrays(ours).values()]
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - np.asarray(other)).max() <= TOLERANCE


# transformers.


# Weights go from one to the other as arrays of NumPy, on every backend.
@pytest.mark.parametrize("name", marked("on_torch", *WRAPS))
def test_transformers_both_ways(make, name):
    ours = make(WRAPS[name], num_hidden_groups=2)
    theirs, tokenizer = ka.to_transformers(ours)
    assert not theirs.training
    x = batch(choices=5 if name == "choice" else None)
    assert_close(ours(x), of_transformers(theirs, x))
    ids = tokenizer(TEXTS, padding=True, return_tensors="np")
    expected = ours.tokenizer(TEXTS)
    assert np.array_equal(ids["input_ids"], expected["token_ids"])
    assert ids["token_type_ids"].shape == ids["input_ids"].shape
    # Back, with other weights than before.
    import torch

    with torch.no_grad():
        for number, weight in enumerate(theirs.parameters()):
            weight += 0.01 * (number % 7)
    back = ka.from_transformers(theirs, ours.tokenizer)
    assert type(back) is type(ours)
    assert_close(back(x), of_transformers(theirs, x))
    for setting in ("labels", "problem"):
        assert getattr(back, setting, None) == getattr(ours, setting, None)
    assert back.tokenizer is ours.tokenizer
    assert back.config.replace(hidden_act="gelu") == ours.config


@pytest.mark.on_torch
def test_what_transformers_computes(make):
    """Its "gelu" is that of the error function; weights may be bfloat16."""
    ours = make(hidden_act="gelu_erf", sharing="attention")
    theirs, _ = ka.to_transformers(ours)
    assert theirs.config.hidden_act == "gelu"
    back = ka.from_transformers(theirs)
    assert back.config == ours.config and same_weights(back, ours)
    import torch

    x = batch()
    half = ka.from_transformers(theirs.to(torch.bfloat16))
    assert_close(half(x), of_transformers(theirs.float(), x))

    class Mine(transformers.AlbertForSequenceClassification):
        """A subclass is read as what it is."""

    mine = Mine(transformers.AlbertConfig(**theirs.config.to_dict())).eval()
    classifier = ka.from_transformers(mine)
    assert isinstance(classifier, ka.AlbertForSequenceClassification)
    assert_close(classifier(x), of_transformers(mine, x))


@pytest.mark.any_backend
def test_tokenizers_of_transformers(tmp_path, make, tiny_vocab):
    """They are taken where their SentencePiece model is at hand."""
    ours = make()
    theirs, tokenizer = ka.to_transformers(ours)
    with pytest.raises(ka.AlbertError, match=r"without it.*albert\.Tokenizer"):
        ka.from_transformers(theirs, tokenizer)
    ours.tokenizer = ka.Tokenizer(tiny_vocab / "spiece.model", False, True)
    ka.save_huggingface(ours, tmp_path / "there")
    for kind in ("AutoTokenizer", "AlbertTokenizer"):
        read = getattr(transformers, kind).from_pretrained(tmp_path / "there")
        back = ka.from_transformers(theirs, read)
        assert back.tokenizer.settings == ours.tokenizer.settings
        assert back.tokenizer.model_bytes == ours.tokenizer.model_bytes
    read.add_tokens(["hens"])
    with pytest.raises(ka.AlbertError, match="must have the pieces of"):
        ka.from_transformers(theirs, read)


@pytest.mark.any_backend
def test_tokenizers_of_wordpiece(tmp_path, make):
    theirs, _ = ka.to_transformers(make())
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, "a"]))
    read = transformers.BertTokenizer.from_pretrained(tmp_path)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer
    )
    for tokenizer in (read, fast):
        with pytest.raises(ka.AlbertError, match=r"WordPiece.*Leave `tok"):
            ka.from_transformers(theirs, tokenizer)


@pytest.mark.any_backend
def test_what_is_not_of_transformers(make):
    config = transformers.BertConfig(
        vocab_size=7,
        hidden_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
    )
    for model, received in (
        (transformers.BertModel(config), "BertModel of transformers"),
        (make(ka.AlbertForMaskedLM), "AlbertForMaskedLM of keras_albert"),
        ("albert/albert-base-v2", "str of builtins"),
    ):
        with pytest.raises(ka.AlbertError, match=f"Received: {received}"):
            ka.from_transformers(model)
    theirs, _ = ka.to_transformers(make())
    theirs.config.layer_norm_eps = 1e-5
    with pytest.raises(ka.AlbertError, match="the AlbertModel: `layer_norm"):
        ka.from_transformers(theirs)
    with pytest.raises(ka.AlbertError, match="a model of this package"):
        ka.to_transformers(theirs)
    with pytest.raises(ka.AlbertError, match=r"\.from_transform.* instead"):
        ka.load(theirs)


# KerasHub.


@pytest.mark.parametrize(
    "name",
    marked(
        "any_backend", "classifier", "encoder", "without_pooler", "masked_lm"
    ),
)
def test_keras_hub_both_ways(make, name):
    ours = make(WRAPS[name], num_hidden_groups=2)
    theirs = ka.to_keras_hub(ours)
    x = their_x = batch()
    if name == "masked_lm":
        places = np.tile(np.arange(11, dtype="int32"), (4, 1))
        their_x = {**x, "mask_positions": places}
    found, expected = ours(x), theirs(their_x)
    if isinstance(expected, dict):
        if name == "without_pooler":  # there it has one, of zeros
            assert not np.any(numpy(expected.pop("pooled_output")))
        expected = {key: expected[key] for key in found}
    assert_close(found, arrays(expected))
    back = ka.from_keras_hub(theirs)
    assert type(back) is type(ours) and same_weights(back, ours)
    assert back.config == ours.config
    assert back.get_config().get("dropout") == ours.get_config().get("dropout")
    if hasattr(theirs, "preprocessor"):
        ids = back.tokenizer(TEXTS)["token_ids"]
        assert np.array_equal(ids, ours.tokenizer(TEXTS)["token_ids"])
    if name == "classifier":
        assert_close(ours(TEXTS), [theirs.predict(TEXTS, verbose=0)])


@pytest.fixture
def their_tokenizer(tiny_vocab):
    proto = normalizing_model(ka.Tokenizer(tiny_vocab))
    return hub.AlbertTokenizer(proto=proto)


@pytest.fixture
def preprocessor(their_tokenizer):
    return hub.AlbertTextClassifierPreprocessor(
        their_tokenizer, sequence_length=19
    )


@pytest.mark.any_backend
@pytest.mark.proof
def test_a_task_of_keras_hub_around_our_encoder(tmp_path, make, preprocessor):
    """With its preprocessor it learns, is saved, and comes back."""
    encoder = make()
    task = hub.AlbertTextClassifier(
        encoder, num_classes=3, preprocessor=preprocessor
    )
    task.compile(optimizer="sgd", **QUICK)
    before = task.predict(TEXTS, verbose=0)
    task.fit(TEXTS, np.array([2, 0]), verbose=0)
    after = task.predict(TEXTS, verbose=0)
    assert not np.allclose(before, after)
    ours = ka.from_keras_hub(task)
    assert ours.backbone is encoder
    assert_close(ours(TEXTS), [after])
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras", compile=False)
    assert_close(again.predict(TEXTS, verbose=0), [after])
    # KerasHub would have our encoder write its part of the preset.
    with pytest.raises(ka.AlbertError, match=r"task\.save.*to_keras_hub"):
        task.save_to_preset(str(tmp_path / "theirs"))
    ka.to_keras_hub(ours).save_to_preset(str(tmp_path / "preset"))
    again = hub.AlbertTextClassifier.from_preset(str(tmp_path / "preset"))
    assert_close(again.predict(TEXTS, verbose=0), [after])


@pytest.mark.any_backend
def test_preprocessors_of_keras_hub_with_our_models(
    make, their_tokenizer, preprocessor
):
    tf = pytest.importorskip("tensorflow", reason="tf.data is TensorFlow's")
    model = make(WRAPS["classifier"])
    assert_close(model(preprocessor(TEXTS)), arrays(model(TEXTS)))
    model.compile(
        optimizer="sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **QUICK,
    )
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, [2, 0])).batch(2)
    history = model.fit(rows.map(preprocessor), verbose=0).history
    assert np.isfinite(history["loss"]).all()
    masked = make(ka.AlbertForMaskedLM)
    x, _, _ = hub.AlbertMaskedLMPreprocessor(
        their_tokenizer, sequence_length=19, mask_selection_length=5
    )(TEXTS)
    x["masked_positions"] = x.pop("mask_positions")
    assert masked(x).shape == (2, 5, masked.config.vocab_size)


@pytest.mark.any_backend
def test_what_is_not_of_keras_hub(make):
    for model in (make(), keras.Sequential(), "albert_base_en_uncased"):
        with pytest.raises(ka.AlbertError, match="expected a model of KerasHu"):
            ka.from_keras_hub(model)
    encoder = ka.to_keras_hub(make())
    with pytest.raises(ka.AlbertError, match=r"\.from_keras_hub.* instead"):
        ka.load(encoder)
    with pytest.raises(ka.AlbertError, match="Use the model itself, or"):
        ka.load(make())
    task = hub.AlbertTextClassifier(
        encoder, num_classes=3, activation="softmax"
    )
    with pytest.raises(ka.AlbertError, match="`activation` must be linear"):
        ka.from_keras_hub(task)


# The names that KerasHub has on the class.


@pytest.mark.any_backend
def test_presets(tmp_path, make):
    model = make(WRAPS["classifier"])
    model.save_to_preset(tmp_path / "mine")
    again = ka.AlbertForSequenceClassification.from_preset(tmp_path / "mine")
    assert same_weights(again, model) and again.labels == LABELS
    encoder = ka.AlbertBackbone.from_preset(str(tmp_path / "mine"), remat=True)
    assert type(encoder) is ka.AlbertBackbone
    assert same_weights(encoder, model.backbone) and encoder.encoder.remat
    message = (
        "mine: expected an AlbertForMaskedLM. "
        "Received: an AlbertForSequenceClassification"
    )
    with pytest.raises(ka.AlbertError, match=message):
        ka.AlbertForMaskedLM.from_preset(tmp_path / "mine")
    with pytest.raises(ka.AlbertError, match="not empty"):
        model.save_to_preset(tmp_path / "mine")
