"""Uploads to a stand-in for the Hugging Face Hub, and what comes back.

The programs are started anew where huggingface_hub reads its environment.
"""

import os
import sys

import numpy as np
import pytest
from commands import output_of, refused, run
from hub import TOKEN, running
from small import TEXT_CONFIG, randomized, same_weights

import keras_albert as ka
from keras_albert.finetuning.config import PushRun
from keras_albert.python_api import FinishedRun

# Files are read and written as NumPy arrays.
pytestmark = pytest.mark.on_torch
huggingface_hub = pytest.importorskip("huggingface_hub", reason="not installed")
OURS = ["README.md", "albert_config.json", "model.keras"]
OURS += ["spiece.json", "spiece.model", "task.json"]


@pytest.fixture(scope="module")
def hub():
    with running() as hub:
        yield hub


@pytest.fixture
def to_stand_in(hub, monkeypatch, tmp_path):
    """huggingface_hub of this process talks to the stand-in."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    path = template[template.index("/{repo_id}") :]
    for name, value in (
        ("ENDPOINT", hub.url),
        ("HUGGINGFACE_CO_URL_TEMPLATE", hub.url + path),
        ("HF_HUB_CACHE", str(tmp_path / "cache")),
        ("HF_TOKEN_PATH", str(tmp_path / "none")),
    ):
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def classifier(tiny_vocab):
    encoder = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=ka.Tokenizer(tiny_vocab))
    labels = ("anger", "joy", "calm")
    head = ka.AlbertForSequenceClassification(encoder, 3, labels=labels)
    return randomized(head, scale=0.3)


def test_a_model_there_and_back(hub, to_stand_in, classifier, capsys):
    """Model, vocabulary, task, labels and card; then another over it."""
    target = "hf://org/mine"
    assert ka.push(target, classifier, private=True) == OURS
    assert f"6 files, 0.3 MB went to {target}" in capsys.readouterr().out
    assert hub.private["org/mine"]
    assert same_weights(ka.load(target), classifier)
    texts = ["The fox sold two hens", "Élodie"]
    expected = ka.Predictor(classifier).predict(texts)
    assert ka.Predictor.load(target).predict(texts) == expected
    card = hub.commits["org/mine"][-1]["README.md"].decode()
    start = "---\nlibrary_name: keras-albert\npipeline_tag: text"
    assert card.startswith(start)
    assert 'ka.load("hf://org/mine")' in card and "`calm`" in card
    hub.tag("org/mine", "v1")
    with pytest.raises(ka.AlbertError, match=r"not empty, it has.*overwrite"):
        ka.push(target, classifier)
    # In the other format: no file of the first is left, but in the history.
    other = randomized(ka.AlbertForMaskedLM(classifier.backbone), scale=0.2)
    files = ka.push(target, other, to="huggingface", overwrite=True)
    assert set(hub.commits["org/mine"][-1]) == {".gitattributes", *files}
    assert "model.safetensors" in files and "model.keras" not in files
    card = hub.commits["org/mine"][-1]["README.md"].decode()
    assert "library_name: transformers\npipeline_tag: fill-mask" in card
    assert isinstance(ka.load(target), ka.AlbertForMaskedLM)
    # The labels of a Predictor, in place of the model's own.
    named = ka.Predictor(classifier, labels=("x", "y", "z"))
    ka.push(target, named, to="huggingface", overwrite=True)
    assert ka.Predictor.load(target).labels == ("x", "y", "z")
    first, same = ka.load(f"{target}@v1").classifier, classifier.classifier
    assert np.array_equal(first.get_weights()[0], same.get_weights()[0])
    with pytest.raises(ka.AlbertError, match=r"@v9: cannot be downloaded"):
        ka.load(f"{target}@v9")


def test_the_card_of_a_folder(
    hub, to_stand_in, classifier, tmp_path, monkeypatch
):
    """It goes along, with the fields that the Hub reads; once."""
    ka.Predictor(classifier, labels=("a", "b", "c")).save(tmp_path / "mine")
    text = 'About it.\n\nka.Predictor.load("this folder").predict(texts)\n'
    (tmp_path / "mine" / "README.md").write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    ka.push("hf://org/card", "~/mine")
    assert not hub.private["org/card"]
    card = hub.commits["org/card"][-1]["README.md"].decode()
    assert card.startswith("---\nlibrary_name") and "About it." in card
    assert 'ka.Predictor.load("hf://org/card").predict' in card
    assert ka.Predictor.load("hf://org/card").labels == ("a", "b", "c")
    (tmp_path / "mine" / "README.md").write_text("---\nlicense: mit\n---\n")
    finished = FinishedRun(tmp_path / "mine", {}, [])  # as `ka.finetune` gives
    for number, model in enumerate((str(tmp_path / "mine"), finished)):
        target = f"hf://org/card-{number}"
        assert ka.push(target, model) == OURS
        card = hub.commits[f"org/card-{number}"][-1]["README.md"]
        assert card.startswith(b"---\nlicense")


def test_a_dry_run_asks_nobody(hub, classifier, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    before = len(hub.asked)
    predictor = ka.Predictor(classifier)
    assert ka.push("hf://org/dry", predictor, dry_run=True) == OURS
    said = capsys.readouterr().out
    assert "spiece.model" in said and "would go to hf://org/dry" in said
    classifier.save(tmp_path / "mine.keras")
    told = {"input": tmp_path / "mine.keras", "output": "hf://org/dry"}
    run("push", "--dry-run", to="huggingface", **told)
    assert "tokenizer.json" in capsys.readouterr().out
    assert len(hub.asked) == before


def test_refusals(to_stand_in, classifier, monkeypatch, tmp_path, capsys):
    for target, message in (
        ("org/mine", r"expected hf://organization/name.*'org/mine'"),
        ("hf://mine", r"expected hf://organization/name.*'hf://mine'"),
        ("hf://org/mine@v1", r"without a revision.*'hf://org/mine@v1'"),
        ("hf://org/my--model", r"hf://org/my--model: .*my--model"),
        ("hf://others/mine", r"hf://others/mine: cannot be uploaded \(.*403"),
    ):
        with pytest.raises(ka.AlbertError, match=message):
            ka.push(target, classifier)
    with pytest.raises(ka.AlbertError, match="`to` must be one of"):
        PushRun("mine", "hf://org/mine", "pickle")
    with pytest.raises(ka.AlbertError, match="a model of this package"):
        ka.push("hf://org/mine", None)
    ensemble = ka.AlbertForPretraining(classifier.backbone, sentence_task="nsp")
    with pytest.raises(ka.AlbertError, match="transformers has no class"):
        ka.push("hf://org/mine", ensemble, to="huggingface")
    with monkeypatch.context() as patch:
        patch.delenv("HF_TOKEN")
        with pytest.raises(ka.AlbertError, match=r"no token.*`hf auth login`"):
            ka.push("hf://org/mine", classifier)
        patch.setenv("HF_TOKEN", "hf_stolen")
        with pytest.raises(ka.AlbertError, match=r"uploaded.*401.*the token"):
            ka.push("hf://org/new", classifier)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ka.AlbertError, match=r"keras-albert\[hugging"):
            ka.push("hf://org/mine", classifier, dry_run=True)
    said = refused(capsys, "push", input=tmp_path, output="mine")
    assert "expected hf://organization/name" in said


@pytest.mark.proof  # two processes that import Keras and the Hub's library
def test_command_and_offline_cache(tmp_path, classifier):
    """Settings by the environment; the second load has only the cache."""
    classifier.save(tmp_path / "mine.keras")
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    load = "import keras_albert as ka; print(ka.load('hf://org/cli').labels)"
    push = "import sys; from keras_albert.cli import main; main(sys.argv[1:])"
    command = ["push", "--input", "mine.keras", "--output", "hf://org/cli"]
    with running() as hub:
        env["HF_ENDPOINT"] = hub.url
        both = [sys.executable, "-c", f"{push}; {load}", *command]
        said = output_of(*both, env=env, cwd=tmp_path)
        assert "6 files, 0.3 MB went to hf://org/cli" in said
        assert "('anger', 'joy', 'calm')" in said
    env["HF_HUB_OFFLINE"] = "1"
    said = output_of(sys.executable, "-c", load, env=env)
    assert "('anger', 'joy', 'calm')" in said
