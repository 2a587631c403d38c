"""KerasHub computes the same, in both directions, on the same backend.

Random weights, wide enough that errors show. Tolerances are absolute, float32.
"""

import keras
import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
from small import EXCHANGED

from keras_albert.checkpoints.keras_hub import PRESET_VOCAB_FILE, save_keras_hub
from keras_albert.checkpoints.load import load
from keras_albert.checkpoints.names import name_table
from keras_albert.checkpoints.transfer import imported, weights_of
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import AlbertForQuestionAnswering
from keras_albert.text.special_tokens import UNK_ID
from keras_albert.text.tokenizer import Tokenizer

# Two libraries are compared; the golden numbers of test_tf1_golden.py hold on
# every backend.
pytestmark = pytest.mark.any_backend
keras_hub = pytest.importorskip("keras_hub", reason="keras-hub is missing")

TOLERANCE = 2e-5
CONFIGS = {
    "one_group": {},
    "two_groups": {"num_hidden_groups": 2},
    "group_a_layer": {"num_hidden_groups": 4},
    "groups_and_inner": {"num_hidden_groups": 2, "inner_group_num": 2},
    "equal_sizes": {"embedding_size": 21},
    "wide_heads": {"hidden_size": 256, "num_attention_heads": 2},
    "own_halves": {"sharing": "attention"},
}


def our_config(**changes) -> AlbertConfig:
    return EXCHANGED.replace(**changes)


def their_encoder(**changes):
    config = our_config(**changes)
    return keras_hub.models.AlbertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        embedding_dim=config.embedding_size,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        num_groups=config.num_hidden_groups,
        num_inner_repetitions=config.inner_group_num,
        max_sequence_length=config.max_position_embeddings,
        num_segments=config.type_vocab_size,
    )


def randomized(model, width=EXCHANGED.hidden_size):
    """Scores stay in reach of softmax whatever the width."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "seed_generator" in variable.path:
            continue
        value = rng.normal(scale=1.5 / width**0.5, size=variable.shape)
        variable.assign(value + variable.path.endswith("gamma"))
    return model


def batch():
    """Padding in two rows, a second segment in all."""
    rng = np.random.default_rng(5)
    lengths = np.array([[11], [7], [4], [10]])
    places = np.arange(11)[None]
    padding_mask = (places < lengths).astype("int32")
    token_ids = rng.integers(1, EXCHANGED.vocab_size, (4, 11)) * padding_mask
    return {
        "token_ids": token_ids.astype("int32"),
        "segment_ids": (places >= lengths // 2).astype("int32") * padding_mask,
        "padding_mask": padding_mask,
    }


def arrays(outputs):
    if not isinstance(outputs, dict):
        outputs = {"logits": outputs}
    return {k: keras.ops.convert_to_numpy(v) for k, v in outputs.items()}


def every_position():
    return {
        **batch(),
        "mask_positions": np.tile(np.arange(11, dtype="int32"), (4, 1)),
    }


def with_our_epsilon(theirs):
    """KerasHub's masked-LM head has 1e-5 where the original has 1e-12."""
    norm = theirs.masked_lm_head._intermediate_layer_norm
    assert norm.epsilon == 1e-5
    norm.epsilon = 1e-12
    return theirs


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].shape == theirs[name].shape, name
        assert np.abs(ours[name] - theirs[name]).max() <= TOLERANCE, name


@pytest.mark.parametrize("name", [n for n in CONFIGS if n != "own_halves"])
def test_encoder_from_keras_hub(tmp_path, name):
    width = CONFIGS[name].get("hidden_size", EXCHANGED.hidden_size)
    theirs = randomized(their_encoder(**CONFIGS[name]), width)
    theirs.save_to_preset(str(tmp_path))
    ours = load(tmp_path)
    assert isinstance(ours, AlbertBackbone)
    assert ours.tokenizer is None
    assert ours.config.project_equal_sizes == (name == "equal_sizes")
    assert_close(arrays(ours(batch())), arrays(theirs(batch())))


@pytest.mark.parametrize("name", CONFIGS)
def test_encoder_to_keras_hub_and_back(tmp_path, name):
    config = our_config(**CONFIGS[name])
    ours = randomized(AlbertBackbone(config), config.hidden_size)
    save_keras_hub(ours, tmp_path / "out")
    theirs = keras_hub.models.AlbertBackbone.from_preset(str(tmp_path / "out"))
    expected = arrays(ours(batch()))
    assert_close(expected, arrays(theirs(batch())))
    again = load(tmp_path / "out")
    for output, value in arrays(again(batch())).items():
        assert np.array_equal(value, expected[output])
    if config.sharing == "all":
        assert again.config == config
        for path, value in weights_of(ours).items():
            assert np.array_equal(value, weights_of(again)[path])


def test_masked_lm(tmp_path):
    theirs = randomized(
        keras_hub.models.AlbertMaskedLM(their_encoder(num_hidden_groups=2))
    )
    theirs.save_to_preset(str(tmp_path / "theirs"))
    ours = load(tmp_path / "theirs")
    assert isinstance(ours, AlbertForMaskedLM)
    expected = arrays(with_our_epsilon(theirs)(every_position()))
    assert_close(arrays(ours(batch())), expected)
    save_keras_hub(ours, tmp_path / "ours")
    again = keras_hub.models.AlbertMaskedLM.from_preset(
        str(tmp_path / "ours"), preprocessor=None
    )
    found = arrays(with_our_epsilon(again)(every_position()))
    for name, value in found.items():
        assert np.array_equal(value, expected[name])
    encoder = load(tmp_path / "ours", backbone=True)
    assert isinstance(encoder, AlbertBackbone)


def test_masked_lm_without_pooler(tmp_path):
    """There it has one, of zeros; back here it has none."""
    ours = randomized(
        AlbertForMaskedLM(AlbertBackbone(our_config(), pooler=False))
    )
    save_keras_hub(ours, tmp_path / "out")
    theirs = keras_hub.models.AlbertMaskedLM.from_preset(
        str(tmp_path / "out"), preprocessor=None
    )
    assert_close(
        arrays(ours(batch())),
        arrays(with_our_epsilon(theirs)(every_position())),
    )
    again = load(tmp_path / "out")
    assert again.backbone.pooler is None
    for path, value in weights_of(ours).items():
        assert np.array_equal(value, weights_of(again)[path])


def test_classifier(tmp_path):
    theirs = randomized(
        keras_hub.models.AlbertTextClassifier(
            their_encoder(), num_classes=5, dropout=0.25
        )
    )
    theirs.save_to_preset(str(tmp_path / "theirs"))
    ours = load(tmp_path / "theirs")
    assert isinstance(ours, AlbertForSequenceClassification)
    assert ours.get_config()["dropout"] == 0.25
    assert_close(arrays(ours(batch())), arrays(theirs(batch())))
    save_keras_hub(ours, tmp_path / "ours")
    again = keras_hub.models.AlbertTextClassifier.from_preset(
        str(tmp_path / "ours"), preprocessor=None
    )
    assert again.dropout == 0.25
    assert_close(arrays(again(batch())), arrays(theirs(batch())))


def test_every_weight_counts():
    """Each weight there, changed, changes what is computed here."""
    sizes = {"num_hidden_groups": 2, "num_hidden_layers": 2}
    theirs = randomized(keras_hub.models.AlbertMaskedLM(their_encoder(**sizes)))
    tensors = {
        variable.path: keras.ops.convert_to_numpy(variable)
        for variable in theirs.variables
        if "seed_generator" not in variable.path
    }
    ours = AlbertForMaskedLM(AlbertBackbone(our_config(**sizes)))
    imported(ours, tensors, "keras_hub", "theirs")

    def outputs():
        pooled = ours.backbone(batch())["pooled_output"]
        return arrays({"logits": ours(batch()), "pooled": pooled})

    before = outputs()
    rng = np.random.default_rng(3)
    for name, value in tensors.items():
        change = rng.normal(scale=0.5, size=value.shape).astype("float32")
        changed = {**tensors, name: value + change}
        imported(ours, changed, "keras_hub", "mutated")
        difference = max(
            np.abs(value - before[key]).max()
            for key, value in outputs().items()
        )
        if name.endswith("key/bias"):
            # It adds the same to all scores of a query: softmax drops it.
            assert difference <= TOLERANCE
            table = name_table(ours.config)
            row = next(row for row in table if row.keras_hub == name)
            here = weights_of(ours)[row.ours]
            assert np.array_equal(here, changed[name].reshape(here.shape))
        else:
            assert difference > 1e-3, name


def their_ids(tokenizer, texts):
    return [
        np.asarray(keras.ops.convert_to_numpy(tokenizer(text))).tolist()
        for text in texts
    ]


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
    tokenizer = Tokenizer(tiny_vocab / "spiece.model", lower_case)
    config = our_config(vocab_size=tokenizer.vocab_size)
    encoder = AlbertBackbone(config, tokenizer=tokenizer)
    for name, ours, their_class in (
        ("encoder", encoder, None),
        (
            "masked_lm",
            AlbertForMaskedLM(encoder),
            keras_hub.models.AlbertMaskedLM,
        ),
        (
            "classifier",
            AlbertForSequenceClassification(encoder, num_labels=2),
            keras_hub.models.AlbertTextClassifier,
        ),
    ):
        folder = tmp_path / name
        save_keras_hub(ours, folder)
        theirs = keras_hub.models.AlbertTokenizer.from_preset(str(folder))
        expected = tokenizer.encode_batch(TEXTS)
        assert their_ids(theirs, TEXTS) == expected
        capitals_are_known = UNK_ID not in expected[1]
        assert capitals_are_known == lower_case
        again = load(folder).tokenizer
        assert again.model_bytes == tokenizer.model_bytes
        assert again.settings == tokenizer.settings
        if their_class is not None:
            preprocessor = their_class.from_preset(str(folder)).preprocessor
            assert preprocessor.sequence_length == 19


def test_a_vocabulary_that_keras_hub_replaced(tmp_path, tiny_vocab):
    """Then ours beside it is of another model, and is not taken."""
    tokenizer = Tokenizer(tiny_vocab)
    config = our_config(vocab_size=tokenizer.vocab_size)
    save_keras_hub(AlbertBackbone(config, tokenizer=tokenizer), tmp_path / "a")
    # KerasHub alone writes it again: capitals are still known there and here.
    theirs = keras_hub.models.AlbertTokenizer.from_preset(str(tmp_path / "a"))
    encoder = keras_hub.models.AlbertBackbone.from_preset(str(tmp_path / "a"))
    encoder.save_to_preset(str(tmp_path / "b"))
    theirs.save_to_preset(str(tmp_path / "b"))
    again = load(tmp_path / "b").tokenizer
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    other = sentencepiece_model_pb2.ModelProto.FromString(theirs.proto)
    assert other.pieces[-1].piece != "@"
    other.pieces[-1].piece = "@"
    (tmp_path / "a" / PRESET_VOCAB_FILE).write_bytes(other.SerializeToString())
    replaced = load(tmp_path / "a").tokenizer
    assert replaced.encode("@")[-1] == replaced.vocab_size - 1


def refused(model, tmp_path, message):
    with pytest.raises(AlbertError, match=message):
        save_keras_hub(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "tanh form of gelu only"),
        ({"hidden_act": "gelu_erf"}, "tanh form of gelu only"),
        ({"hidden_dropout_prob": 0.1}, r"one dropout.*0\.1 and 0\.0"),
        ({"num_hidden_groups": 3}, "multiple of num_hidden_groups.*4 and 3"),
    ],
)
def test_configs_that_keras_hub_has_not(tmp_path, changes, message):
    model = AlbertBackbone(our_config(**changes))
    refused(model, tmp_path, message)


def test_models_that_keras_hub_has_not(tmp_path):
    encoder = AlbertBackbone(our_config())
    for model in (
        AlbertForPretraining(encoder),
        AlbertForQuestionAnswering(encoder),
        AlbertForSequenceClassification(
            encoder, num_labels=2, problem="multi_label"
        ),
    ):
        refused(model, tmp_path, r"model\.backbone")


def test_damaged_presets(tmp_path):
    def preset(name):
        save_keras_hub(
            AlbertForMaskedLM(AlbertBackbone(our_config())), tmp_path / name
        )
        return tmp_path / name

    folder = preset("weights")
    content = (folder / "model.weights.h5").read_bytes()
    (folder / "model.weights.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(AlbertError, match="cannot read this preset"):
        load(folder)
    folder = preset("json")
    (folder / "config.json").write_text('{"class_name": ')
    with pytest.raises(AlbertError, match=r"config\.json: not a JSON file"):
        load(folder)
    folder = preset("task")
    (folder / "task.json").write_text('{"class_name": "BertMaskedLM"}')
    with pytest.raises(AlbertError, match="Received: BertMaskedLM"):
        load(folder)
    assert isinstance(load(folder, backbone=True), AlbertBackbone)
    folder = preset("other")
    (folder / "config.json").write_text(
        '{"class_name": "BertBackbone", "registered_name": "x"}'
    )
    with pytest.raises(AlbertError, match="Received: BertBackbone"):
        load(folder)
    folder = preset("sizes")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"vocabulary_size": 61', '"vocabulary_size": 67')
    )
    with pytest.raises(AlbertError, match="cannot read this preset"):
        load(folder, backbone=True)


def test_huge_sizes(tmp_path):
    """They are held against the weights before KerasHub builds anything."""
    encoder = AlbertBackbone(our_config())
    model = AlbertForSequenceClassification(encoder, num_labels=2)
    save_keras_hub(model, tmp_path / "out")
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
        with pytest.raises(AlbertError, match=rf"{name}: .*2100000000"):
            load(tmp_path / "out")
        path.write_text(content)
    assert load(tmp_path / "out").num_labels == 2
