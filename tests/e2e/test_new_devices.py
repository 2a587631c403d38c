"""Defines a kind of devices, with what a new kind needs and nothing else.

It is registered in the two tables that CONTRIBUTING.md names; no other file of
the package knows it.
"""

import dataclasses

import keras
import pytest
from commands import write_rows

import keras_albert as ka
from keras_albert.distribution import backend, config as device_config
from keras_albert.distribution.devices import OneDevice
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.run import finetune


class TwoOfOne(OneDevice):
    """Says that it is two devices, and notes what the run asks of it."""

    replicas = 2

    def __init__(self):
        self.asked = []

    def prepare(self, model):
        self.asked.append("prepare")

    def fit(self, model, batches, callbacks, **options):
        self.asked.append("fit")
        super().fit(model, batches, callbacks, **options)

    def close(self):
        self.asked.append("close")


@pytest.mark.on_torch
def test_a_kind_of_devices(tmp_path, pretrained_folder, monkeypatch):
    """A model is fine-tuned on it, in batches that it can divide."""
    devices = TwoOfOne()
    kinds = backend._KINDS[keras.backend.backend()]
    monkeypatch.setitem(kinds, "two", lambda config, accumulate: devices)
    values = (*device_config.DISTRIBUTIONS, "two")
    monkeypatch.setattr(device_config, "DISTRIBUTIONS", values)
    rows = [{"text": text, "label": text[-1]} for text in ["the a", "the b"]]
    table = write_rows(tmp_path / "rows.jsonl", rows * 8)
    run = FinetuneRun(
        model=str(pretrained_folder),
        train=table,
        validation=table,
        output=tmp_path / "model",
        batch_size=8,
        epochs=1,
        distribution="two",
    )
    finetune(run)
    assert devices.asked == ["prepare", "fit", "close"]
    assert ka.Predictor.load(tmp_path / "model").labels == ("a", "b")
    odd = dataclasses.replace(run, batch_size=7, output=tmp_path / "odd")
    with pytest.raises(ka.AlbertError, match=r"a multiple of 2.*batch_size=7"):
        finetune(odd)
    assert devices.asked[3:] == ["close"]
