"""Files that an earlier version wrote are read as that version read them."""

import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest
from commands import table_of

import keras_albert as ka
from keras_albert.cli import main
from keras_albert.storage import read_json
from keras_albert.training.checkpointing import Checkpoints
from keras_albert.training.config import CHECKPOINTS_FOLDER

FILES = Path(__file__).parents[1] / "data" / "before_the_layout.tar.xz"
# Python 3.11.2 and 3.11.3 lack the filter, without which 3.13 warns.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
# Numbers of another processor, whose kernels round otherwise.
TOLERANCE = 1e-5
SPEEDS = {"tokens_per_second", "model_flops_utilization"}
PRETRAIN = (
    ["pretrain", "--data=shards", "--validation=shards"]
    + ["--validation-steps=1", "--config=config.json", "--steps=8"]
    + ["--warmup-steps=2", "--batch-size=2", "--validate-every=4"]
    + ["--optimizer.learning-rate=0.005", "--output=interrupted"]
    + ["--examples.sequence-length=64"]
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, **SAFELY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.any_backend
def test_a_model_folder(folder):
    predictor = ka.Predictor.load(folder / "finetuned")
    found = predictor.probabilities(["the fox sold tea.", "a hen in london"])
    expected = np.load(folder / "probabilities.npy")
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.any_backend
def test_a_checkpoint(folder):
    """Orbax wrote it at step 7: near the weights of the model of step 4."""
    path = folder / "interrupted" / CHECKPOINTS_FOLDER
    origin = read_json(path / "step-00000007" / "manifest.json")["origin"]
    found = Checkpoints(path, 1, origin).newest()
    model = ka.load_model(folder / "interrupted" / "model.keras")
    assert found.step == 7
    assert len(found.state["trainable"]) == len(model.trainable_variables)
    for i, variable in enumerate(model.trainable_variables):
        weight = found.state["trainable"][str(i)]
        np.testing.assert_allclose(
            weight, keras.ops.convert_to_numpy(variable), atol=0.04
        )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="a run goes on on the backend that it was begun on: TensorFlow",
)
@pytest.mark.usefixtures("eagerly")
def test_an_interrupted_run(folder, capsys):
    """The run ended at step 7, with a checkpoint that Orbax wrote."""
    main(PRETRAIN)
    assert "going on from step 7 of 8" in "".join(capsys.readouterr())
    files = "whole_log.csv", "interrupted/log.csv"
    logs = [table_of(folder / name) for name in files]
    assert [row["step"] for row in logs[1]] == ["4", "8"]
    for row, other in zip(*logs, strict=True):
        for name in row.keys() - SPEEDS:
            # Means over a few examples: a rounded logit may change none.
            expected = pytest.approx(float(other[name]), rel=1e-3, abs=1e-4)
            assert float(row[name]) == expected, name
