"""Folders of sentence-transformers, against the package itself."""

import json
import operator

import numpy as np
import pytest
import safetensors.numpy
from commands import edit_json, run
from keras import ops
from small import TEXT_CONFIG, add_noise, numpy

import keras_albert as ka

pytestmark = pytest.mark.on_torch
theirs_of = pytest.importorskip("sentence_transformers").SentenceTransformer

TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
CONFIG = TEXT_CONFIG.replace(num_hidden_layers=2, initializer_range=0.1)
TEXTS = ["The fox found two hens.", "a barn", "In 1911, near Prague " * 9]


def embedder(vocab, **options):
    tokenizer = ka.Tokenizer(vocab)
    backbone = add_noise(ka.AlbertBackbone(CONFIG, tokenizer=tokenizer))
    return add_noise(ka.AlbertForTextEmbedding(backbone, **options))


def converted(model, folder):
    """Their folder, as the command makes it."""
    ka.Predictor(model).save(folder / "ours")
    there = {"to": "sentence-transformers", "output": folder / "theirs"}
    run("convert", input=folder / "ours", **there)
    return folder / "theirs"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "cls", "max_tokens": 20},
        {"pooling": "max", "projection": 7, "normalize": True},
        {"pooling": "idf"},
        {"pooling": "idf", "projection": 7, "normalize": True},
    ],
)
def test_same_vectors_there_and_back(tiny_vocab, tmp_path, options):
    model = embedder(tiny_vocab, **options)
    if model.pooling == "idf":  # other weights may be below 1
        model.token_weights.assign(model.token_weights / 100)
    vectors = model.encode(TEXTS, normalize=False)
    folder = converted(model, tmp_path)
    theirs = theirs_of(str(folder), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), vectors, **TOLERANCE)
    assert theirs.max_seq_length == model.most_tokens
    again = ka.load(folder)
    assert again.pooling == model.pooling
    assert again.normalize == model.normalize
    found = again.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(found, vectors, **TOLERANCE)
    # As its newest version writes it, with other names and no spiece.model.
    theirs.save(str(tmp_path / "newest"))
    assert not [*(tmp_path / "newest").rglob("*.model")]
    newest = ka.Predictor.load(tmp_path / "newest")
    assert newest.task == "embedding"
    assert newest.sequence_length == model.most_tokens
    np.testing.assert_allclose(newest.predict(TEXTS), vectors, **TOLERANCE)
    encoder, _ = ka.load_pretrained(folder)
    assert type(encoder) is ka.AlbertBackbone


def test_an_adapter_of_the_projection_is_merged(tiny_vocab, tmp_path):
    model = embedder(tiny_vocab, projection=7)
    model.projection.enable_lora(2)
    add_noise(model)
    ka.save_sentence_transformers(model, tmp_path)
    found = theirs_of(str(tmp_path), device="cpu").encode(TEXTS)
    expected = model.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_weights_that_the_folder_does_not_have(tiny_vocab, tmp_path):
    """Pieces get that of their lower case or of unknown words; a bias is 0."""
    ka.save_sentence_transformers(
        embedder(tiny_vocab, pooling="idf", projection=7), tmp_path
    )
    path = tmp_path / "1_WordWeights" / "config.json"
    content = json.loads(path.read_text())
    pieces, known = content["vocab"], content["word_weights"]
    assert content["unknown_word_weight"] == 1
    del known[pieces[50]]
    pieces[60] = "▁The"
    known["▁the"] = 5.0
    edit_json(
        path, vocab=pieces[:-1], word_weights=known, unknown_word_weight=3.0
    )
    dense = tmp_path / "3_Dense" / "model.safetensors"
    kernel = safetensors.numpy.load_file(dense)["linear.weight"]
    safetensors.numpy.save_file({"linear.weight": kernel}, dense)
    edit_json(tmp_path / "sentence_bert_config.json", max_seq_length=512)
    model = ka.load(tmp_path)
    weights = ops.convert_to_numpy(model.token_weights)
    assert weights[[50, 60, len(pieces) - 1]].tolist() == [3, 5, 3]
    assert not numpy(model.projection.bias).any()
    assert model.max_tokens == CONFIG.max_position_embeddings == 61


def test_the_gelu_of_transformers(tiny_vocab, tmp_path):
    """A config of theirs says "gelu" and means the exact one."""
    model = embedder(tiny_vocab)
    folder = converted(model, tmp_path)
    edit_json(folder / "config.json", hidden_act="gelu")
    theirs = theirs_of(str(folder), device="cpu")
    found = ka.load(folder).encode(TEXTS, normalize=False)
    np.testing.assert_allclose(found, theirs.encode(TEXTS), **TOLERANCE)


def test_folders_that_cannot_be_read(tiny_vocab, tmp_path):
    folder = tmp_path / "theirs"
    ka.save_sentence_transformers(embedder(tiny_vocab, projection=7), folder)

    def refused(name, change, words):
        before = (folder / name).read_text()
        content = json.loads(before)
        change(content)
        (folder / name).write_text(json.dumps(content))
        with pytest.raises(ka.AlbertError, match=words):
            ka.load(folder)
        (folder / name).write_text(before)

    kind = "sentence_transformers.models."
    for change, words in (
        (lambda steps: steps.pop(1), "Received: Transformer, Dense"),
        (lambda steps: steps[2].update(type=kind + "LSTM"), "LSTM"),
        (lambda steps: steps[2].update(path="../away"), "in this order"),
        (lambda steps: steps.reverse(), "Received: Dense, Pooling"),
        (lambda steps: steps[0].update(path="0"), "must be in 0"),
    ):
        refused("modules.json", change, words)
    prompts = folder / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"query": "q: "}}')
    refused(
        prompts.name,
        operator.methodcaller("update", default_prompt_name="query"),
        r"puts the prompt 'query' \('q: '\) before",
    )
    ka.load(folder)  # a prompt that is not put before all texts
    for changes, words in (
        ({"pooling_mode_cls_token": True}, "Received: mean, cls"),
        ({"pooling_mode": "lasttoken"}, "mean, cls, max. Received: lasttoken"),
        ({"pooling_mode": ["mean", "cls"]}, "Received: mean, cls"),
        ({"pooling_mode_mean_tokens": False}, "Received: none"),
    ):
        change = operator.methodcaller("update", changes)
        refused("1_Pooling/config.json", change, words)
    refused(
        "2_Dense/config.json",
        lambda dense: dense.update(activation_function="torch.Tanh"),
        "without activation.*torch.Tanh",
    )
    refused(
        "2_Dense/config.json",
        lambda dense: dense.update(use_residual=True),
        "use_residual",
    )
    dense = folder / "2_Dense" / "model.safetensors"
    written = safetensors.numpy.load_file(dense)
    for tensors in ({}, {**written, "linear.bias": np.zeros(3, "float32")}):
        safetensors.numpy.save_file(tensors, dense)
        with pytest.raises(ka.AlbertError, match="2_Dense: expected linear"):
            ka.load(folder)
    rare = tmp_path / "rare"
    ka.save_sentence_transformers(embedder(tiny_vocab, pooling="idf"), rare)
    folder = rare
    for change, words in (
        (lambda weights: weights.pop("vocab"), "KeyError.'vocab'"),
        (lambda weights: weights["vocab"].extend("ab" * 99), "at most 1"),
        (lambda weights: weights.update(unknown_word_weight="x"), "ValueErr"),
        (lambda weights: weights.update(unknown_word_weight=None), "TypeErr"),
        (lambda weights: weights["word_weights"].update(a=[1, 2]), "TypeErr"),
        (
            lambda weights: weights["word_weights"].update(a=float("inf")),
            "finite",
        ),
    ):
        refused("1_WordWeights/config.json", change, words)
    refused(
        "2_Pooling/config.json",
        lambda pooling: pooling.update(
            pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True
        ),
        "a mean of vectors. Received: max pooling",
    )
    for pooling in ("weighted_layers", "idf_first_last"):
        other = embedder(tiny_vocab, pooling=pooling)
        with pytest.raises(ka.AlbertError, match=f"Received: {pooling}"):
            ka.save_sentence_transformers(other, tmp_path / "bare")
    bare = ka.AlbertBackbone(CONFIG)
    with pytest.raises(ka.AlbertError, match="no vocabulary"):
        ka.save_sentence_transformers(bare, tmp_path / "bare")
    assert not (tmp_path / "bare").exists()
