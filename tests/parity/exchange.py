"""Batches, weights and comparisons, for models that two libraries have."""

import keras
import numpy as np
from small import EXCHANGED

TOLERANCE = 2e-5  # absolute, float32
# What is changed in EXCHANGED.
SIZES = {
    "one_group": {},
    "two_groups": {"num_hidden_groups": 2},
    "group_a_layer": {"num_hidden_groups": 4},
    "groups_and_inner": {"num_hidden_groups": 2, "inner_group_num": 2},
    "equal_sizes": {"embedding_size": 21},
    "wide_heads": {"hidden_size": 256, "num_attention_heads": 2},
}


def random_value(rng, name, shape, width=EXCHANGED.hidden_size):
    """Wide enough that errors show; scores stay in reach of softmax."""
    value = rng.normal(scale=1.5 / width**0.5, size=shape)
    if name.endswith(("gamma", "LayerNorm.weight", "norm.weight")):
        value += 1
    return value.astype("float32")


def randomize_ours(model, width=EXCHANGED.hidden_size, seed=0):
    """Sets all weights of a model of Keras: no bias or norm stays trivial."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if "seed_generator" not in variable.path:
            value = random_value(rng, variable.path, variable.shape, width)
            variable.assign(value)
    return model


def randomize_theirs(model, seed=0):
    """Sets all weights of a model of PyTorch that are trained."""
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                width = model.config.hidden_size
                value = random_value(rng, name, weight.shape, width)
                weight.copy_(torch.from_numpy(value))
    return model.eval()


def batch(choices=None):
    """Padding in three rows, a second segment in all."""
    rng = np.random.default_rng(5)
    shape = (4, 11) if choices is None else (4, choices, 11)
    token_ids = rng.integers(1, EXCHANGED.vocab_size, shape)
    lengths = np.array([11, 7, 4, 10]).reshape(4, *[1] * (len(shape) - 1))
    places = np.arange(11)
    padding_mask = np.broadcast_to(places < lengths, shape)
    segment_ids = np.broadcast_to(places >= lengths // 2, shape) & padding_mask
    values = {
        "token_ids": token_ids * padding_mask,
        "segment_ids": segment_ids,
        "padding_mask": padding_mask,
    }
    return {k: np.array(v, "int32", order="C") for k, v in values.items()}


def arrays(outputs) -> dict[str, np.ndarray]:
    """The outputs of a model of Keras, by their names."""
    if not isinstance(outputs, dict):
        outputs = {"logits": outputs}
    return {k: keras.ops.convert_to_numpy(v) for k, v in outputs.items()}


def of_transformers(model, x, **options):
    """The outputs of a model of transformers."""
    import torch

    with torch.no_grad():
        return model(
            input_ids=torch.from_numpy(x["token_ids"]).long(),
            attention_mask=torch.from_numpy(x["padding_mask"]).long(),
            token_type_ids=torch.from_numpy(x["segment_ids"]).long(),
            **options,
        )


def heads_there(outputs) -> dict[str, np.ndarray]:
    """transformers' outputs under our names."""
    names = {
        "last_hidden_state": "sequence_output",
        "pooler_output": "pooled_output",
        "prediction_logits": "mlm",
        "sop_logits": "sop",
        "logits": "logits",
        "start_logits": "start",
        "end_logits": "end",
    }
    return {
        ours: outputs[theirs].numpy()
        for theirs, ours in names.items()
        if outputs.get(theirs) is not None
    }


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].shape == theirs[name].shape, name
        assert np.abs(ours[name] - theirs[name]).max() <= TOLERANCE, name
