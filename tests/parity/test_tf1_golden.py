"""The original implementation's numbers, from its own checkpoint.

golden.npz was written by google-research/albert (TF 1.15) on random weights:
4 layers, H=32, E=16, V=120. Tolerances are absolute, float32.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
from small import QUICK

import keras_albert as ka
from keras_albert.checkpoints.names import name_table
from keras_albert.checkpoints.tf1 import read_tf1
from keras_albert.modeling.base import own_paths
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.optimizer import make_optimizer

pytestmark = pytest.mark.usefixtures("rewritten_graphs")
FORWARD_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-6
TRAINING_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder():
    return Path(__file__).parents[1] / "data" / "tf1_golden"


@pytest.fixture(scope="module")
def golden(folder):
    return dict(np.load(folder / "golden.npz"))


@pytest.fixture
def model(folder):
    config = ka.AlbertConfig.from_json(folder / "albert_config.json")
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    ka.load_tf1(model, folder / "model.ckpt-best")
    return model


def batch(golden, index):
    """(x, y, sample_weight) of one of the three batches."""
    prefix = f"batch{index}/"
    part = {
        name.removeprefix(prefix): value
        for name, value in golden.items()
        if name.startswith(prefix)
    }
    return (
        {
            "token_ids": part["input_ids"],
            "segment_ids": part["segment_ids"],
            "padding_mask": part["input_mask"],
            "masked_positions": part["pos"],
        },
        {"mlm": part["ids"], "sop": part["sop"][:, 0]},
        {"mlm": part["w"], "sop": np.ones(len(part["sop"]), "float32")},
    )


def log_probs(logits):
    logits = keras.ops.log_softmax(logits)
    return keras.ops.convert_to_numpy(logits)


def difference(ours, theirs):
    ours = keras.ops.convert_to_numpy(ours)
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs).max()


def test_every_layer(model, golden):
    x, _, _ = batch(golden, 0)
    x.pop("masked_positions")
    outputs = model.backbone(x, return_hidden_states=True)
    word_vectors = model.backbone.embeddings.word(x["token_ids"])
    assert difference(word_vectors, golden["forward/emb"]) == 0
    expected = {
        "sequence_output": golden["forward/seq"],
        "pooled_output": golden["forward/pool"],
    }
    for name, value in expected.items():
        assert difference(outputs[name], value) <= FORWARD_TOLERANCE, name
    layers = golden["forward/layers"]
    assert len(outputs["hidden_states"]) == len(layers)
    for ours, theirs in zip(outputs["hidden_states"], layers, strict=True):
        assert difference(ours, theirs) <= FORWARD_TOLERANCE


def test_log_probabilities_and_losses(model, golden):
    x, y, weight = batch(golden, 0)
    logits = model(x)
    mlm = log_probs(logits["mlm"]).reshape(-1, model.config.vocab_size)
    assert difference(mlm, golden["forward/mlm_log_probs"]) <= FORWARD_TOLERANCE
    sop = log_probs(logits["sop"])
    assert difference(sop, golden["forward/sop_log_probs"]) <= FORWARD_TOLERANCE
    for name in ("mlm", "sop"):
        loss = ka.WeightedCrossEntropy()(y[name], logits[name], weight[name])
        golden_loss = golden[f"forward/{name}_loss"]
        assert difference(loss, golden_loss) <= FORWARD_TOLERANCE


def test_gradients(model, golden):
    """The change of one plain SGD step, rate 1, is the gradient."""
    weights = own_paths(model, model.trainable_variables)
    before = {name: weight.numpy() for name, weight in weights.items()}
    x, y, weight = batch(golden, 0)
    compile_for_pretraining(model, keras.optimizers.SGD(1.0))
    model.train_on_batch(x, y, weight)
    after = {name: weight.numpy() for name, weight in weights.items()}
    for row in rows(model):
        theirs = golden[f"grad/{row.tf1}"]
        theirs = row.here(theirs, "tf1", before[row.ours].shape)
        ours = before[row.ours] - after[row.ours]
        # The subtraction rounds: half a unit in the last place of the weight.
        rounding = np.abs(before[row.ours]).max() * 2**-23
        assert difference(ours, theirs) <= GRADIENT_TOLERANCE + rounding, row


def test_twelve_lamb_steps(model, golden):
    """Losses before each step, and the weights after the last."""
    config = OptimizerConfig(learning_rate=2e-3)
    schedule = ka.WarmupPolynomialDecay(2e-3, steps=20, warmup_steps=4)
    compile_for_pretraining(model, make_optimizer(config, schedule))
    model.jit_compile = QUICK["jit_compile"]
    losses = []
    for step in range(12):
        x, y, weight = batch(golden, step % 3)
        found = model.train_on_batch(x, y, weight, return_dict=True)
        model.reset_metrics()
        names = ("loss", "mlm_loss", "sop_loss")
        losses.append([float(found[name]) for name in names])
    assert difference(np.array(losses), golden["train/losses"]) <= (
        TRAINING_TOLERANCE
    )
    ours = own_paths(model, model.trainable_variables)
    for row in rows(model):
        theirs = golden[f"train/final/{row.tf1}"]
        theirs = row.here(theirs, "tf1", ours[row.ours].shape)
        assert difference(ours[row.ours], theirs) <= TRAINING_TOLERANCE, row


def rows(model):
    """Of the weights that the model has; the table has all heads."""
    names = own_paths(model, model.trainable_variables).keys()
    found = [row for row in name_table(model.config) if row.ours in names]
    assert {row.ours for row in found} == names
    return found


def test_truncated_checkpoint(folder, tmp_path):
    for path in folder.glob("model.ckpt-best*"):
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ka.AlbertError, match="damaged or incomplete"):
        read_tf1(tmp_path / "model.ckpt-best")
    with pytest.raises(ka.AlbertError, match="no such file"):
        read_tf1(tmp_path / "other.ckpt")
