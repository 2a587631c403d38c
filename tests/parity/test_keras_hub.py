"""KerasHub computes the same, in both directions, on the same backend.

Weights are random; see exchange.py.
"""

import functools
import shutil

import keras
import numpy as np
import pytest
from exchange import SIZES, arrays, assert_close, batch, randomize_ours
from sentencepiece import sentencepiece_model_pb2
from small import EXCHANGED, marked, numpy, same_weights

import keras_albert as ka
from keras_albert.checkpoints.keras_hub import PRESET_VOCAB_FILE
from keras_albert.checkpoints.load import head_name
from keras_albert.text.special_tokens import UNK_ID

# Two libraries are compared; the golden numbers of test_tf1_golden.py hold on
# every backend.
pytestmark = pytest.mark.on_torch
keras_hub = pytest.importorskip("keras_hub", reason="keras-hub is missing")

CLASSIFIER = functools.partial(
    ka.AlbertForSequenceClassification, num_labels=5, dropout=0.25
)
CONFIGS = SIZES | {"own_halves": {"sharing": "attention"}}


def every_position():
    places = np.tile(np.arange(11, dtype="int32"), (4, 1))
    return {**batch(), "mask_positions": places}


def with_our_epsilon(theirs):
    """KerasHub's masked-LM head has 1e-5 where the original has 1e-12."""
    norm = theirs.masked_lm_head._intermediate_layer_norm
    assert norm.epsilon == 1e-5
    norm.epsilon = 1e-12
    return theirs


LONGER = "two_groups", "wide_heads"


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in CONFIGS if name not in LONGER),
        *marked("proof", *LONGER),
    ],
)
def test_encoder_both_ways(tmp_path, name):
    """Written here and read there; then written there with other weights."""
    config = EXCHANGED.replace(**CONFIGS[name])
    ours = randomize_ours(ka.AlbertBackbone(config), config.hidden_size)
    ka.save_keras_hub(ours, tmp_path / "out")
    theirs = keras_hub.models.AlbertBackbone.from_preset(str(tmp_path / "out"))
    expected = arrays(ours(batch()))
    assert_close(expected, arrays(theirs(batch())))
    again = ka.load(tmp_path / "out")
    for output, value in arrays(again(batch())).items():
        assert np.array_equal(value, expected[output])
    if config.sharing == "all":
        assert again.config == config
        assert same_weights(again, ours)
    randomize_ours(theirs, config.hidden_size, seed=1)
    theirs.save_to_preset(str(tmp_path / "back"))
    back = ka.load(tmp_path / "back")
    assert isinstance(back, ka.AlbertBackbone) and back.tokenizer is None
    assert back.config.project_equal_sizes == (name == "equal_sizes")
    assert_close(arrays(back(batch())), arrays(theirs(batch())))


@pytest.mark.parametrize(
    ("wrap", "kind", "pooler"),
    [
        (ka.AlbertForMaskedLM, "AlbertMaskedLM", True),
        (ka.AlbertForMaskedLM, "AlbertMaskedLM", False),
        (CLASSIFIER, "AlbertTextClassifier", True),
    ],
)
def test_head_both_ways(tmp_path, wrap, kind, pooler):
    """There an encoder without a pooler has one, of zeros."""
    config = EXCHANGED.replace(num_hidden_groups=2)
    ours = randomize_ours(wrap(ka.AlbertBackbone(config, pooler=pooler)))
    ka.save_keras_hub(ours, tmp_path / "out")
    assert head_name(tmp_path / "out") == (kind if wrap is CLASSIFIER else None)
    kind = getattr(keras_hub.models, kind)
    theirs = kind.from_preset(str(tmp_path / "out"), preprocessor=None)
    x = batch()
    if wrap is ka.AlbertForMaskedLM:
        theirs, x = with_our_epsilon(theirs), every_position()
    assert_close(arrays(ours(batch())), arrays(theirs(x)))
    again = ka.load(tmp_path / "out")
    assert type(again) is type(ours) and same_weights(again, ours)
    assert (again.backbone.pooler is not None) == pooler
    encoder = ka.load(tmp_path / "out", backbone=True)
    assert isinstance(encoder, ka.AlbertBackbone)
    randomize_ours(theirs, seed=1).save_to_preset(str(tmp_path / "back"))
    back = ka.load(tmp_path / "back")
    assert_close(arrays(back(batch())), arrays(theirs(x)))
    dropouts = [each.get_config().get("dropout") for each in (ours, back)]
    assert dropouts == [getattr(theirs, "dropout", None)] * 2


def test_weights_are_not_rounded_by_a_global_policy(tmp_path):
    ours = randomize_ours(ka.AlbertBackbone(EXCHANGED))
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("bfloat16")
        ka.save_keras_hub(ours, tmp_path / "out")
        again = ka.load(tmp_path / "out", dtype="float32")
        assert keras.config.dtype_policy().name == "bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    assert same_weights(again, ours)


def their_ids(tokenizer, texts):
    return [numpy(tokenizer(text)).tolist() for text in texts]


TEXTS = (
    "the fox sold two hens",
    "The FOX sold two hens, near LONDON",
    "  \t\u00c9lodie and E\u0301lodie\u3000of S\u00e3o Paulo \u00a39\n",
    "\uff34\uff48\uff45 \ufb01ne \u0130stanbul \u2468 \u1e9e \ud55c\uae00",
    "A\u0301\u0302\u0323 [CLS] \u200b<unk> \u216b",
    "",
)


@pytest.mark.parametrize("lower_case", [True, False])
def test_vocabulary(tmp_path, tiny_vocab, lower_case):
    tokenizer = ka.Tokenizer(tiny_vocab / "spiece.model", lower_case)
    config = EXCHANGED.replace(vocab_size=tokenizer.vocab_size)
    model = ka.AlbertForMaskedLM(ka.AlbertBackbone(config, tokenizer=tokenizer))
    ka.save_keras_hub(model, tmp_path / "out")
    there = str(tmp_path / "out")
    theirs = keras_hub.models.AlbertTokenizer.from_preset(there)
    expected = tokenizer.encode_batch(TEXTS)
    assert their_ids(theirs, TEXTS) == expected
    capitals_are_known = UNK_ID not in expected[1]
    assert capitals_are_known == lower_case
    again = ka.load(there).tokenizer
    assert again.model_bytes == tokenizer.model_bytes
    assert again.settings == tokenizer.settings
    there = keras_hub.models.AlbertMaskedLM.from_preset(there)
    assert there.preprocessor.sequence_length == 19


def test_a_vocabulary_that_keras_hub_replaced(tmp_path, tiny_vocab):
    """Then ours beside it is of another model, and is not taken."""
    tokenizer = ka.Tokenizer(tiny_vocab)
    config = EXCHANGED.replace(vocab_size=tokenizer.vocab_size)
    model = ka.AlbertBackbone(config, tokenizer=tokenizer)
    ka.save_keras_hub(model, tmp_path / "a")
    # KerasHub alone writes it again: capitals are still known there and here.
    theirs, encoder = (
        kind.from_preset(str(tmp_path / "a"))
        for kind in (
            keras_hub.models.AlbertTokenizer,
            keras_hub.models.AlbertBackbone,
        )
    )
    encoder.save_to_preset(str(tmp_path / "b"))
    theirs.save_to_preset(str(tmp_path / "b"))
    again = ka.load(tmp_path / "b").tokenizer
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    cased = ka.Tokenizer(tiny_vocab, lower_case=False, keep_accents=True)
    backbone = ka.AlbertBackbone(config, tokenizer=cased)
    ka.save_keras_hub(backbone, tmp_path / "cased")
    vocabulary = tmp_path / "cased" / PRESET_VOCAB_FILE
    vocabulary.with_name("spiece.model").unlink()
    read = ka.load(tmp_path / "cased").tokenizer
    for text in ("Café PARIS", "the hens"):
        assert read.encode(text) == cased.encode(text)
    other = sentencepiece_model_pb2.ModelProto.FromString(theirs.proto)
    assert other.pieces[-1].piece != "@"
    other.pieces[-1].piece = "@"
    (tmp_path / "a" / PRESET_VOCAB_FILE).write_bytes(other.SerializeToString())
    replaced = ka.load(tmp_path / "a").tokenizer
    assert replaced.encode("@")[-1] == replaced.vocab_size - 1


SEVERAL_LABELS = functools.partial(CLASSIFIER, problem="multi_label")


@pytest.mark.parametrize(
    ("changes", "head", "message"),
    [
        ({"hidden_act": "relu"}, None, "tanh form of gelu only"),
        ({"hidden_act": "gelu_erf"}, None, "tanh form of gelu only"),
        ({"hidden_dropout_prob": 0.1}, None, r"one dropout.*0\.1 and 0\.0"),
        ({"num_hidden_groups": 3}, None, "multiple of num_hidden_gro.*4 and 3"),
        ({}, ka.AlbertForPretraining, r"model\.backbone"),
        ({}, ka.AlbertForQuestionAnswering, r"model\.backbone"),
        ({}, SEVERAL_LABELS, r"model\.backbone"),
    ],
)
def test_what_keras_hub_has_not(tmp_path, changes, head, message):
    model = ka.AlbertBackbone(EXCHANGED.replace(**changes))
    if head:
        model = head(model)
    with pytest.raises(ka.AlbertError, match=message):
        ka.save_keras_hub(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_damaged_presets(tmp_path):
    model = ka.AlbertForMaskedLM(ka.AlbertBackbone(EXCHANGED))
    ka.save_keras_hub(model, tmp_path / "out")
    weights = (tmp_path / "out" / "model.weights.h5").read_bytes()
    config = (tmp_path / "out" / "config.json").read_bytes()
    half = weights[: len(weights) // 2]
    wider = config.replace(b'"vocabulary_size": 61', b'"vocabulary_size": 67')
    bert = b'{"class_name": "BertBackbone", "registered_name": "x"}'
    task = b'{"class_name": "BertMaskedLM"}'
    for name, content, message in (
        ("model.weights.h5", half, "cannot read this preset"),
        ("config.json", b'{"class_name": ', r"config\.json: not a JSON file"),
        ("config.json", bert, "Received: BertBackbone"),
        ("config.json", wider, "cannot read this preset"),
        ("task.json", task, "Received: BertMaskedLM"),
    ):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "out", folder)
        (folder / name).write_bytes(content)
        with pytest.raises(ka.AlbertError, match=message):
            ka.load(folder, backbone=name == "config.json")
    assert isinstance(ka.load(folder, backbone=True), ka.AlbertBackbone)


def test_huge_sizes(tmp_path):
    """They are held against the weights before KerasHub builds anything."""
    encoder = ka.AlbertBackbone(EXCHANGED)
    model = ka.AlbertForSequenceClassification(encoder, num_labels=2)
    ka.save_keras_hub(model, tmp_path / "out")
    for name, key, value in (
        ("config.json", "vocabulary_size", 61),
        ("config.json", "num_layers", 4),
        ("task.json", "hidden_dim", 21),
        ("task.json", "num_classes", 2),
    ):
        path = tmp_path / "out" / name
        content = path.read_text()
        forged = content.replace(f'"{key}": {value}', f'"{key}": 2100000000')
        assert forged != content
        path.write_text(forged)
        with pytest.raises(ka.AlbertError, match=rf"{name}: .*2100000000"):
            ka.load(tmp_path / "out")
        path.write_text(content)
    assert ka.load(tmp_path / "out").num_labels == 2
