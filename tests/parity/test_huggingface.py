"""transformers computes the same, in both directions, for every head.

Weights are random; see exchange.py.
"""

import json
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from commands import edit_json, read_json
from exchange import (
    SIZES,
    TOLERANCE,
    arrays,
    assert_close,
    batch,
    heads_there,
    of_transformers,
    randomize_ours,
    randomize_theirs,
)
from small import EXCHANGED, marked, same_weights

import keras_albert as ka
from keras_albert.checkpoints.huggingface_config import CONFIG_FIELDS
from keras_albert.checkpoints.names import name_table
from keras_albert.checkpoints.tokenizer_json import (
    read_tokenizer_json,
    tokenizer_json,
)
from keras_albert.checkpoints.transfer import imported, weights_of
from keras_albert.text.special_tokens import SPECIAL_PIECES

# Two libraries are compared; the golden numbers of test_tf1_golden.py hold on
# every backend.
pytestmark = pytest.mark.on_torch
torch = pytest.importorskip("torch", reason="transformers runs on PyTorch")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
)

LABELS = ("anger", "joy", "calm")
SPECIAL = [[piece, 0.0] for piece in SPECIAL_PIECES]
CONFIGS = SIZES | {
    "two_inner": {"inner_group_num": 2},
    "relu": {"hidden_act": "relu"},
    "gelu_erf": {"hidden_act": "gelu_erf"},
}


def their_model(architecture, **changes):
    sizes = {name: getattr(EXCHANGED, name) for name in CONFIG_FIELDS}
    config = transformers.AlbertConfig(
        **sizes | {"hidden_act": "gelu_new"} | changes
    )
    return randomize_theirs(
        getattr(transformers, architecture)._from_config(config)
    )


def read_there(architecture, folder, **options):
    """A model of transformers, of which no weight is missing or unexpected."""
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, **options
    )
    assert not any(info.values()), info
    return model.eval()


def assert_same_layers(ours, theirs):
    """All hidden states and outputs."""
    x = batch()
    expected = of_transformers(theirs, x, output_hidden_states=True)
    outputs = ours(x, return_hidden_states=True)
    states = arrays(dict(enumerate(outputs.pop("hidden_states"))))
    # theirs are of every inner block, the projected embedding before them.
    inner = ours.config.inner_group_num
    layers = expected.hidden_states[-inner * len(states) :][inner - 1 :: inner]
    assert len(layers) == len(states) == 4
    layers = {i: layer.numpy() for i, layer in enumerate(layers)}
    assert_close(states, layers)
    assert_close(arrays(outputs), heads_there(expected))


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in CONFIGS if name != "two_inner"),
        *marked("proof", "two_inner"),  # it is in groups_and_inner, too
    ],
)
def test_every_config_both_ways(tmp_path, name):
    """Written here and read there; then written there with other weights."""
    config = EXCHANGED.replace(**CONFIGS[name])
    ours = randomize_ours(ka.AlbertBackbone(config), config.hidden_size)
    ka.save_huggingface(ours, tmp_path / "out")
    attention = "eager" if name in ("one_group", "two_inner") else "sdpa"
    theirs = read_there(
        "AlbertModel", tmp_path / "out", attn_implementation=attention
    )
    assert_same_layers(ours, theirs)
    again = ka.load(tmp_path / "out")
    tanh = {"hidden_act": "gelu"}
    assert again.config.replace(**tanh) == config.replace(**tanh)
    is_erf = again.config.hidden_act == "gelu_erf"
    assert is_erf == (name == "gelu_erf"), "its own files say which GELU"
    assert same_weights(again, ours)
    randomize_theirs(theirs, seed=1).save_pretrained(tmp_path / "back")
    back = ka.load(tmp_path / "back")  # transformers keeps what they say
    assert back.tokenizer is None
    assert back.config.project_equal_sizes == (name == "equal_sizes")
    assert_same_layers(back, theirs)


THREE = {"num_labels": 3}
HEADS = {
    "AlbertForPreTraining": {},
    "AlbertForMaskedLM": {},
    "AlbertForSequenceClassification": THREE,
    "AlbertForTokenClassification": THREE,
    "AlbertForMultipleChoice": {},
    "AlbertForQuestionAnswering": {},
}
POOLED = (
    "AlbertForPreTraining",
    "AlbertForSequenceClassification",
    "AlbertForMultipleChoice",
)


def batch_for(architecture):
    return batch(5 if architecture == "AlbertForMultipleChoice" else None)


@pytest.mark.parametrize("architecture", ["AlbertModel", *HEADS])
def test_every_head_both_ways(
    tmp_path, architecture, monkeypatch, caplog, capfd
):
    """No warning there; bit for bit the same back here."""
    pooler = architecture in POOLED
    ours = ka.AlbertBackbone(
        EXCHANGED.replace(num_hidden_groups=2), pooler=pooler
    )
    options = {}
    if architecture in HEADS:
        name = architecture.replace("PreTraining", "Pretraining")
        ours = getattr(ka, name)(ours, **HEADS[architecture])
    else:
        options["add_pooling_layer"] = False
    randomize_ours(ours)
    ka.save_huggingface(ours, tmp_path / "out")
    transformers.logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = read_there(architecture, tmp_path / "out", **options)
    transformers.logging.disable_propagation()
    assert not caplog.text
    assert "weights" not in capfd.readouterr().err.replace(
        "Loading weights", ""
    )
    x = batch_for(architecture)
    assert_close(arrays(ours(x)), heads_there(of_transformers(theirs, x)))
    again = ka.load(tmp_path / "out")
    assert type(again) is type(ours)
    assert same_weights(again, ours)
    randomize_theirs(theirs, seed=1).save_pretrained(tmp_path / "back")
    back = ka.load(tmp_path / "back")
    assert_close(arrays(back(x)), heads_there(of_transformers(theirs, x)))
    backbone = getattr(back, "backbone", back)
    assert (backbone.pooler is not None) == pooler
    assert same_weights(ka.load(tmp_path / "back", backbone=True), backbone)


@pytest.mark.parametrize(
    ("sharing", "groups"), [("attention", 2), ("ffn", 1), ("none", 2)]
)
def test_halves_shared_alone(tmp_path, sharing, groups):
    """There each layer is a group of its own, here they stay shared."""
    config = EXCHANGED.replace(sharing=sharing, num_hidden_groups=groups)
    ours = randomize_ours(ka.AlbertBackbone(config))
    ka.save_huggingface(ours, tmp_path / "out")
    theirs = read_there("AlbertModel", tmp_path / "out")
    assert theirs.config.num_hidden_groups == 4
    x = batch()
    expected = heads_there(of_transformers(theirs, x))
    assert_close(arrays(ours(x)), expected)
    again = ka.load(tmp_path / "out")
    assert again.config.replace(hidden_act="gelu") == config
    assert same_weights(again, ours)
    # Trained there, the copies go their own ways: read as separate layers.
    with torch.no_grad():
        (_, second, third, _) = theirs.encoder.albert_layer_groups
        second.albert_layers[0].attention.dense.bias += 1
        third.albert_layers[0].ffn.bias += 1
    theirs.save_pretrained(tmp_path / "trained")
    apart = ka.load(tmp_path / "trained")
    assert_close(arrays(apart(x)), heads_there(of_transformers(theirs, x)))


# Equal outputs of random weights show the same, unless a weight does little.
@pytest.mark.proof
@pytest.mark.parametrize("architecture", ["AlbertModel", *HEADS])
def test_every_weight_counts(tmp_path, architecture):
    """Each weight there, changed, changes what is computed here."""
    sizes = {"num_hidden_layers": 2, "num_hidden_groups": 2}
    sizes |= HEADS.get(architecture, {})
    theirs = their_model(architecture, **sizes)
    theirs.save_pretrained(tmp_path)
    ours = ka.load(tmp_path)
    x = batch_for(architecture)
    before = arrays(ours(x))
    tensors = {
        name: value.numpy()
        for name, value in theirs.state_dict().items()
        if not name.startswith("predictions.decoder")
    }
    if architecture == "AlbertModel":
        tensors = {f"albert.{name}": v for name, v in tensors.items()}
    rng = np.random.default_rng(3)
    for name, value in tensors.items():
        if architecture != "AlbertModel" and name.startswith("albert."):
            continue  # AlbertModel's turn
        change = rng.normal(scale=0.5, size=value.shape).astype("float32")
        changed = {**tensors, name: value + change}
        imported(ours, changed, "huggingface", "mutated")
        difference = max(
            np.abs(value - before[key]).max()
            for key, value in arrays(ours(x)).items()
        )
        if name.endswith("key.bias"):
            # It adds the same to all scores of a query: softmax drops it.
            assert difference <= TOLERANCE
            table = name_table(ours.config)
            row = next(row for row in table if row.huggingface == name)
            here = weights_of(ours)[row.ours]
            assert np.array_equal(here, changed[name])
        else:
            assert difference > 1e-3, name


def test_labels_and_problem(tmp_path):
    for problem in ("single_label", "multi_label", "regression"):
        ours = ka.AlbertForSequenceClassification(
            ka.AlbertBackbone(EXCHANGED),
            num_labels=3,
            problem=problem,
            dropout=0.25,
            labels=LABELS,
        )
        ka.save_huggingface(ours, tmp_path / problem)
        config = transformers.AutoConfig.from_pretrained(tmp_path / problem)
        there = config.problem_type.removesuffix("_classification")
        assert there == problem
        assert config.id2label == dict(enumerate(LABELS))
        assert config.label2id["joy"] == 1
        assert config.classifier_dropout_prob == 0.25
        again = ka.load(tmp_path / problem)
        assert again.labels == LABELS
        assert again.problem == problem
        assert again.get_config()["dropout"] == 0.25


def test_labels_from_transformers(tmp_path):
    model = their_model("AlbertForSequenceClassification", num_labels=1)
    model.save_pretrained(tmp_path / "regression")
    ours = ka.load(tmp_path / "regression")
    assert (ours.problem, ours.num_labels) == ("regression", 1)
    assert ours.labels is None
    model = their_model(
        "AlbertForTokenClassification", id2label=dict(enumerate(LABELS))
    )
    model.save_pretrained(tmp_path / "tokens")
    assert ka.load(tmp_path / "tokens").labels == LABELS


def test_shards_and_pickles(tmp_path):
    theirs = their_model("AlbertForPreTraining")
    x = batch()
    expected = heads_there(of_transformers(theirs, x))
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_close(arrays(ka.load(tmp_path / "shards")(x)), expected)
    # As written years ago: a pickle, with names that are now computed.
    folder = tmp_path / "pickle"
    theirs.config.save_pretrained(folder)
    edit_json(folder / "config.json", architectures=["AlbertForPreTraining"])
    weights = {}
    for name, value in theirs.state_dict().items():
        name = name.replace("Norm.weight", "Norm.gamma")
        weights[name.replace("Norm.bias", "Norm.beta")] = value
    weights["albert.embeddings.position_ids"] = torch.arange(19)[None]
    torch.save(weights, folder / "pytorch_model.bin")
    assert_close(arrays(ka.load(folder)(x)), expected)
    (folder / "pytorch_model.bin").unlink()
    names, places = sorted(weights), {}
    for i, file in enumerate(("pytorch_model-1.bin", "pytorch_model-2.bin")):
        torch.save({n: weights[n] for n in names[i::2]}, folder / file)
        places |= dict.fromkeys(names[i::2], file)
    (folder / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )
    assert_close(arrays(ka.load(folder)(x)), expected)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.proof)]
)
def test_half_precision_files(tmp_path, dtype):
    theirs = their_model("AlbertModel").to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    ours = ka.load(tmp_path)
    x = batch()
    expected = heads_there(of_transformers(theirs.float(), x))
    assert_close(arrays(ours(x)), expected)


def pieces_of(tokenizer):
    """The pieces, scores and types of a vocabulary, and its character map."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model_bytes)
    return SimpleNamespace(
        pieces=[(each.piece, each.score, each.type) for each in model.pieces],
        charsmap=model.normalizer_spec.precompiled_charsmap,
    )


@pytest.mark.parametrize(
    ("lower_case", "keep_accents"),
    [(True, False), (False, False), (False, True)],
)
def test_vocabulary(tmp_path, tiny_vocab, lower_case, keep_accents):
    tokenizer = ka.Tokenizer(
        tiny_vocab / "spiece.model", lower_case, keep_accents
    )
    config = EXCHANGED.replace(vocab_size=tokenizer.vocab_size)
    ours = ka.AlbertForMaskedLM(ka.AlbertBackbone(config, tokenizer=tokenizer))
    ka.save_huggingface(ours, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    # Punctuation that stands alone, the vocabulary's user-defined pieces.
    texts = ["The fox sold two - no, 2,000 (!) hens . . .", "a \x1c``letter''"]
    # Marks that are kept: after emoji, and vowel signs. One that is dropped.
    texts[1] += " 1️⃣ ‼️ हिन्दी ที่ é São"
    expected = tokenizer(texts)
    found = theirs(texts, padding=True, return_tensors="np")
    assert np.array_equal(found["input_ids"], expected["token_ids"])
    assert np.array_equal(found["attention_mask"], expected["padding_mask"])
    pair = theirs(*texts)
    expected = tokenizer(texts[:1], texts[1:])
    assert pair["input_ids"] == expected["token_ids"][0].tolist()
    assert pair["token_type_ids"] == expected["segment_ids"][0].tolist()
    assert theirs.mask_token_id == 4
    assert theirs.model_max_length == 19
    again = ka.load(tmp_path / "out").tokenizer
    assert again.lower_case == lower_case
    assert again.model_bytes == tokenizer.model_bytes
    # As transformers writes it again.
    theirs.save_pretrained(tmp_path / "again")
    settings = read_json(tmp_path / "again" / "tokenizer_config.json")
    assert settings["do_lower_case"] == lower_case
    # Read from there, since transformers writes no spiece.model. It gives a
    # score of its own to pieces that are split again, and ours is lost.
    own = transformers.AlbertTokenizer.from_pretrained(tmp_path / "out")
    own.save_pretrained(tmp_path / "own")
    original = pieces_of(tokenizer)
    for folder, lost in (("again", set(tokenizer.resplits)), ("own", set())):
        path = tmp_path / folder / "tokenizer.json"
        found = pieces_of(read_tokenizer_json(path))
        assert found.charsmap == original.charsmap != b""
        for i, (piece, score, kind) in enumerate(original.pieces):
            score = -100.0 if i in lost else pytest.approx(score, abs=1e-5)
            assert found.pieces[i] == (piece, score, kind), folder
    shutil.copy(tmp_path / "again" / "tokenizer.json", tmp_path / "out")
    (tmp_path / "out" / "spiece.model").unlink()
    again = ka.load(tmp_path / "out").tokenizer
    assert again.settings == tokenizer.settings
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)


def test_vocabulary_as_released(tmp_path, tokenizer, golden):
    """Every id of texts in which the released pieces are at work."""
    model = ka.AlbertBackbone(
        EXCHANGED.replace(vocab_size=tokenizer.vocab_size)
    )
    model.tokenizer = tokenizer
    ka.save_huggingface(model, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    # A typed <unk> is a special token there.
    texts = [row["text"].replace("<unk>", "") for row in golden]
    expected = tokenizer.encode_batch(texts)
    assert theirs(texts, add_special_tokens=False)["input_ids"] == expected
    # The released vocabulary, as transformers itself converts it.
    own = transformers.AlbertTokenizer.from_pretrained(tmp_path / "out")
    for found in (theirs, own):
        found.save_pretrained(tmp_path / "saved")
        read = read_tokenizer_json(tmp_path / "saved" / "tokenizer.json")
        assert read.settings == tokenizer.settings
        assert read.encode_batch(texts) == expected


def test_pieces_that_are_split_again(tmp_path, tiny_vocab):
    """transformers takes 100 from their scores, and this package has none."""
    content = json.loads(tokenizer_json(ka.Tokenizer(tiny_vocab)))
    content["model"]["vocab"][-2:] = [
        ["\u25812,", -113.5],
        ["\u25817,", -100.0],
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    read = read_tokenizer_json(path)
    assert read.resplits.keys() == {158, 159}
    scores = [score for _, score, _ in pieces_of(read).pieces[-2:]]
    assert scores == [-13.5, -100.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "BPE"}, None),
        ({"vocab": [["<unk>", 0.0], ["a", -1.0]]}, None),
        ({"vocab": [["<pad>"]]}, "not what Hugging Face's tokenizers write"),
        ({"vocab": None}, "not what Hugging Face's tokenizers write"),
        ({"type": None, "vocab": {"<pad>": 0}}, None),
        (
            {"vocab": [*SPECIAL, ["a", -1.0], ["a", -2.0]]},
            "tokenizer.json: not",
        ),
        (
            {"vocab": [*SPECIAL, ["\ud800", -1.0]]},
            "tokenizer.json: not.*Unicode",
        ),
    ],
)
def test_other_vocabularies(tmp_path, tiny_vocab, changes, message):
    """A model without vocabulary takes ids, so that only damage is an error."""
    content = json.loads(tokenizer_json(ka.Tokenizer(tiny_vocab)))
    path = tmp_path / "tokenizer.json"
    del content["model"]["type"]  # older files have none
    path.write_text(json.dumps(content))
    assert read_tokenizer_json(path).vocab_size == 160
    content["model"] |= changes
    if content["model"].get("type", "") is None:
        del content["model"]["type"]
    path.write_text(json.dumps(content))
    if message is None:
        assert read_tokenizer_json(path) is None
        return
    with pytest.raises(ka.AlbertError, match=message):
        read_tokenizer_json(path)


@pytest.mark.parametrize(
    "wrap",
    [
        ka.AlbertForQuestionAnsweringV2,
        ka.AlbertForTextEmbedding,
        lambda encoder: ka.AlbertForPretraining(encoder, sentence_task="nsp"),
    ],
)
def test_models_that_transformers_has_not(tmp_path, wrap):
    model = wrap(ka.AlbertBackbone(EXCHANGED))
    with pytest.raises(ka.AlbertError, match=r"model\.backbone"):
        ka.save_huggingface(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    ka.save_huggingface(model.backbone, tmp_path / "out")
    assert isinstance(ka.load(tmp_path / "out"), ka.AlbertBackbone)


def test_sentence_tasks_there(tmp_path):
    encoder = ka.AlbertBackbone(EXCHANGED)
    model = randomize_ours(ka.AlbertForPretraining(encoder, sentence_task=None))
    ka.save_huggingface(model, tmp_path / "out")
    theirs = read_there("AlbertForMaskedLM", tmp_path / "out")
    x = batch()
    expected = heads_there(of_transformers(theirs, x))["logits"]
    assert_close({"mlm": expected}, arrays(model(x)))
    # The original's sentence order has no dropout; theirs would be 0.1.
    model = ka.AlbertForPretraining(ka.AlbertBackbone(EXCHANGED))
    ka.save_huggingface(model, tmp_path / "order")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "order")
    assert config.classifier_dropout_prob == 0


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(["NFKD"], False), (["StripAccents"], False), (["NFKC"], True)],
)
def test_which_steps_drop_accents(tiny_vocab, tmp_path, steps, kept):
    content = json.loads(tokenizer_json(ka.Tokenizer(tiny_vocab)))
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": kind} for kind in steps],
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert read_tokenizer_json(path).keep_accents is kept
