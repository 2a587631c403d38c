"""Weights of the original's TF1 checkpoints, on every backend."""

import re
from pathlib import Path

import numpy as np

from keras_albert.checkpoints.names import name_table, our_name
from keras_albert.config import AlbertError
from keras_albert.modeling.backbone import AlbertModel

# Not weights of a model: optimizer slots and the step.
_SKIPPED = re.compile(r"(/adam_[mv]|/AdamWeightDecayOptimizer.*|^global_step)$")


def read_tf1(prefix: str | Path) -> dict[str, np.ndarray]:
    """All weights of a TF1 checkpoint by name, without optimizer slots.

    Args:
        prefix: path without `.index`, as `albert_base/model.ckpt-best`.

    Raises:
        AlbertError: no such checkpoint, or it cannot be read.
    """
    prefix = Path(prefix)
    if not prefix.with_name(prefix.name + ".index").is_file():
        raise AlbertError(
            f"{prefix}.index: no such file. A TF1 checkpoint is named by its "
            "path without `.index`."
        )
    try:
        import tensorflow as tf
    except ImportError:
        raise AlbertError(
            "Reading a TF1 checkpoint needs TensorFlow: "
            "pip install 'keras-albert[tensorflow]'."
        ) from None
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if not _SKIPPED.search(name)
        }
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise AlbertError(
            f"{prefix}: the checkpoint is damaged or incomplete ({reason}). "
            "Fetch it again."
        ) from None


def load_tf1(model: AlbertModel, prefix: str | Path) -> None:
    """Sets every weight of a backbone or pretraining model.

    A backbone leaves the checkpoint's heads (`cls/...`) aside; nothing else
    may be missing, left over or of another shape.

    Raises:
        AlbertError: lists every weight that does not fit; the model is then
            unchanged.
    """
    tensors = read_tf1(prefix)
    variables = {our_name(v): v for v in model.variables if _is_weight(v)}
    rows = {row.ours: row for row in name_table(model.config)}
    values, problems = {}, []
    for name, variable in variables.items():
        row = rows.get(name)
        if row is None:
            problems.append(f"{name}: no TF1 checkpoint has such a weight")
        elif row.tf1 not in tensors:
            problems.append(f"{row.tf1}: missing in the checkpoint")
        else:
            value = tensors.pop(row.tf1)
            value = value.T if row.transposed else value
            if value.shape != tuple(variable.shape):
                problems.append(
                    f"{row.tf1}: expected {tuple(variable.shape)}, "
                    f"found {value.shape}"
                )
            values[name] = value
    wants_heads = any(name.startswith("masked_lm/") for name in variables)
    for name in sorted(tensors):
        if wants_heads or not name.startswith("cls/"):
            problems.append(f"{name}: in the checkpoint, not in the model")
    if problems:
        raise AlbertError(
            f"{prefix} does not fit the model: " + "; ".join(problems) + ". "
            "Build the model from the albert_config.json beside the "
            "checkpoint."
        )
    for name, value in values.items():
        variables[name].assign(value)


def _is_weight(variable) -> bool:
    return "seed_generator" not in variable.path
