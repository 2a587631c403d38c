"""Defines an export format and a checkpoint format, with what they need.

They are registered in the tables that CONTRIBUTING.md names; no other file of
the package knows them.
"""

import numpy as np
import pytest
from commands import write_rows
from small import TEXT_CONFIG, randomized, same_weights

import keras_albert as ka
from keras_albert.checkpoints import load as loading
from keras_albert.checkpoints.transfer import variables, weights_of
from keras_albert.exports import (
    check as checking,
    load as running,
    run as exporting,
)
from keras_albert.exports.config import EXPORT_WEIGHTS, CheckRun, ExportRun
from keras_albert.finetuning import config, convert as converting, model_card
from keras_albert.modeling.config import CONFIG_FILE
from keras_albert.modeling.weight_checks import check_plausible

pytestmark = pytest.mark.on_torch
LABELS = ("no", "yes")
TEXTS = ["The fox sold two hens", "a letter in London", "nothing"]
WEIGHTS_FILE = "weights.npz"


@pytest.fixture
def classifier(tiny_vocab):
    encoder = ka.AlbertBackbone(TEXT_CONFIG, tokenizer=ka.Tokenizer(tiny_vocab))
    head = ka.AlbertForSequenceClassification(encoder, 2, labels=LABELS)
    return randomized(head, scale=0.3)


def test_every_format_has_a_writer():
    assert exporting._WRITERS.keys() == EXPORT_WEIGHTS.keys()
    assert converting._WRITERS.keys() == {*config.FORMATS}


def test_an_export_format(tmp_path, classifier, monkeypatch, capsys):
    """A model is exported, compared with its export, and checked."""
    file = "program.keras"

    def write(predictor, run, folder):
        predictor.model.save(folder / file)

    def runner(path, threads):
        model = ka.load(path)

        def outputs(ids):
            x = {"token_ids": ids, "padding_mask": ids != 0}
            return {"logits": model.predict_on_batch(x)}

        return running.Exported(outputs)

    monkeypatch.setattr(checking, "MOST_CALLS", 2)
    monkeypatch.setitem(EXPORT_WEIGHTS, "program", ("float32",))
    monkeypatch.setitem(exporting._WRITERS, "program", write)
    monkeypatch.setitem(running._RUNNERS, file, runner)
    ka.Predictor(classifier).save(tmp_path / "model")
    rows = [{"text": text, "label": "yes"} for text in TEXTS]
    table = write_rows(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "program"
    run = ExportRun(str(tmp_path / "model"), output, "program", data=table)
    assert exporting.export_run(run) == output
    assert "100.00% of 3 predictions are the same" in capsys.readouterr().out
    report = checking.check(CheckRun(output, run.model, table))
    assert report["largest_difference"] < 1e-5
    with pytest.raises(ka.AlbertError, match="program stores weights as float"):
        ExportRun(run.model, output, "program", "int8", force=True)


def test_a_checkpoint_format(tmp_path, classifier, monkeypatch, capsys):
    """A model is converted there and back, and uploaded."""
    pytest.importorskip("huggingface_hub", reason="not installed")

    def write(loaded, folder):
        folder.mkdir(parents=True)
        loaded.model.config.to_json(folder / CONFIG_FILE)
        np.savez(folder / WEIGHTS_FILE, **weights_of(loaded.model))

    def find(path):
        return [path] if (path / WEIGHTS_FILE).is_file() else []

    def read(path, backbone, **form):
        tensors = np.load(path / WEIGHTS_FILE)
        sizes = ka.AlbertConfig.from_json(path / CONFIG_FILE)
        stored = sum(tensors[name].size for name in tensors)
        check_plausible(sizes, stored, str(path))
        encoder = ka.AlbertBackbone(sizes, **form)
        model = ka.AlbertForSequenceClassification(encoder, 2)
        for name, variable in variables(model).items():
            variable.assign(tensors[name])
        return encoder if backbone else model

    head = "AlbertForSequenceClassification"
    row = loading._Format(find, read, lambda path: head)
    monkeypatch.setitem(loading._FORMATS, "an archive of NumPy", row)
    monkeypatch.setitem(converting._WRITERS, "npz", write)
    monkeypatch.setattr(config, "FORMATS", (*config.FORMATS, "npz"))
    monkeypatch.setitem(model_card._LIBRARIES, "npz", "numpy")
    classifier.save(tmp_path / "mine.keras")
    there, back = tmp_path / "there", tmp_path / "back"
    source = str(tmp_path / "mine.keras")
    converting.convert(config.ConvertRun(source, there, "npz"))
    assert loading.head_name(there) == head
    assert same_weights(ka.load(there), classifier)
    converting.convert(config.ConvertRun(str(there), back))
    assert same_weights(ka.load(back), classifier)
    names = ka.push("hf://org/mine", there, to="npz", dry_run=True)
    assert names == ["README.md", CONFIG_FILE, WEIGHTS_FILE]
    card = model_card.hub_card(classifier, "npz", "hf://org/mine", None)
    assert "library_name: numpy" in card
