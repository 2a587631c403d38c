"""Exports weights to, and imports them from, other formats by the name table.

A "dialect" is a key of `names.DIALECTS`, that is, another checkpoint format.
"""

import keras
import numpy as np
from keras import ops

from keras_albert.checkpoints.names import (
    DIALECTS,
    HEADS,
    PROJECTION,
    check_groups,
    name_table,
)
from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, own_paths
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.weight_checks import (
    check_no_lora_or_int8,
    check_not_quantized,
)
from keras_albert.private_apis import adapted_kernel

EXPORT_ENCODER = "Export its encoder: model.backbone, or `convert --backbone`."

# Most names in an error message: with a wrong config no weight fits.
SHOWN = 40


def weights_of(model: AlbertModel) -> dict[str, np.ndarray]:
    """The float32 values of all weights, by their names in this package.

    LoRA adapters are merged. Raises AlbertError if the model is quantized.
    """
    check_not_quantized(model)
    values = {k: _array(value) for k, value in variables(model).items()}
    for path, layer in model.leaves().items():
        if layer.lora_enabled:
            values[f"{path}/kernel"] = _array(adapted_kernel(layer))
    return values


def variables(model: AlbertModel) -> dict:
    """The Keras variables by name, without seed generators and adapters."""
    chosen = (
        variable
        for variable in model.variables
        if "seed_generator" not in variable.path
        and not variable.path.rsplit("/", 1)[1].startswith("lora_")
    )
    return own_paths(model, chosen)


def exported(model: AlbertModel, dialect: str) -> dict[str, np.ndarray]:
    """The weights of a model with the names and shapes of another format.

    Raises AlbertError if the other format lacks one of them.
    """
    config = model.config
    check_groups(config, dialect)
    if config.relaxed_rank:
        raise AlbertError(
            f"{DIALECTS[dialect]} has no place for the layers' own low-rank "
            "differences. Expected relaxed_rank=0. Received: relaxed_rank="
            f"{config.relaxed_rank}. Keep the model in the `.keras` format."
        )
    values = weights_of(model)
    left_over = set(values)
    tensors = {}
    for row in _rows(config, dialect):
        if row.ours in values:
            left_over.discard(row.ours)
            tensors[getattr(row, dialect)] = np.ascontiguousarray(
                row.there(values[row.ours], dialect, config.num_attention_heads)
            )
    if left_over:
        raise AlbertError(
            f"{DIALECTS[dialect]} has no weights like {listed(left_over)} of "
            f"this {type(model).__name__}. {EXPORT_ENCODER}"
        )
    if not config.has_projection and dialect != "tf1":
        tensors |= _identity_projection(config, dialect)
    return tensors


def imported(
    model: AlbertModel,
    tensors: dict[str, np.ndarray],
    dialect: str,
    source: str,
    *,
    ignore_heads: bool = False,
) -> None:
    """Sets all weights of a model from those of another format.

    If a weight is missing, unused, of another shape or not finite, an
    AlbertError lists all of them, and the model is unchanged. With
    `ignore_heads`, weights of heads that the model does not have are ignored;
    `source` is for messages.
    """
    config = model.config
    check_groups(config, dialect)
    check_no_lora_or_int8(model)
    targets = variables(model)
    values: dict[str, np.ndarray] = {}
    problems, used, known = [], set(), set()
    for row in _rows(config, dialect):
        name = getattr(row, dialect)
        known.add(row.ours)
        if row.ours not in targets:
            continue
        used.add(name)
        shape = tuple(targets[row.ours].shape)
        expected = row.shape_there(shape, dialect, config.num_attention_heads)
        problem = problem_of(tensors.get(name), expected)
        if problem is None:
            value = row.here(tensors[name], dialect, shape)
            first = values.setdefault(row.ours, value)
            if not np.array_equal(value, first):
                problem = "differs from another layer's, the model shares them"
        if problem:
            problems.append(f"{name}: {problem}")
    problems += [
        f"{name}: {DIALECTS[dialect]} has no such weight"
        for name in sorted(targets.keys() - known)
    ]
    heads = {getattr(row, dialect) for row in HEADS}
    problems += [
        f"{name}: in the checkpoint, not in the model"
        for name in sorted(tensors.keys() - used)
        if not (ignore_heads and name in heads)
    ]
    if problems:
        raise AlbertError(
            f"{source} does not fit the model: "
            f"{listed(problems, '; ')}. Build the model from the config that "
            "belongs to the weights."
        )
    for name, value in values.items():
        targets[name].assign(value)


def problem_of(value: np.ndarray | None, shape: tuple[int, ...]) -> str | None:
    """Why a value of the checkpoint cannot be used; None if it can."""
    if value is None:
        return "missing in the checkpoint"
    if value.shape != shape:
        return f"expected {shape}, found {value.shape}"
    if not np.isfinite(value).all():
        return "not finite, the training diverged"
    return None


def copies_agree(
    tensors: dict[str, np.ndarray], config: AlbertConfig, dialect: str
) -> bool:
    """Whether all copies of each weight that `config` shares are equal."""
    first: dict[str, np.ndarray] = {}
    for row in _rows(config, dialect):
        value = tensors.get(getattr(row, dialect))
        if value is not None and not np.array_equal(
            first.setdefault(row.ours, value), value
        ):
            return False
    return True


def read_projection(
    tensors: dict[str, np.ndarray], config: AlbertConfig, dialect: str
) -> tuple[dict[str, np.ndarray], AlbertConfig]:
    """Tells an added identity projection from one that was trained.

    If embeddings and layers have the same size, this package only has a
    projection with `project_equal_sizes`, while other formats always have one.
    Returns the tensors, without an identity projection, and their config.
    """
    if config.embedding_size != config.hidden_size:
        return tensors, config
    identity = _identity_projection(config, dialect)
    if all(
        name in tensors and np.array_equal(tensors[name], value)
        for name, value in identity.items()
    ):
        return {k: v for k, v in tensors.items() if k not in identity}, config
    return tensors, config.replace(project_equal_sizes=True)


def encoder_with_pooler(backbone: AlbertBackbone) -> AlbertBackbone:
    """The encoder itself, or a copy with a pooler and without adapters.

    In a copy LoRA adapters are merged, and a missing pooler has random weights.
    Raises AlbertError if the encoder is quantized.
    """
    values = weights_of(backbone)
    adapted = any(layer.lora_enabled for layer in backbone.leaves().values())
    if backbone.pooler is not None and not adapted:
        return backbone
    config = backbone.config
    copy = AlbertBackbone(
        config,
        loop=backbone.encoder.loop,
        remat=backbone.encoder.remat,
        tokenizer=backbone.tokenizer,
        dtype=backbone.dtype_policy,
    )
    for name, variable in variables(copy).items():
        if name in values:
            variable.assign(values[name])
    if backbone.pooler is not None:
        return copy
    # The seed is fixed, so that fine-tuning runs are repeatable.
    start = keras.initializers.TruncatedNormal(
        stddev=config.initializer_range, seed=0
    )
    copy.pooler.kernel.assign(start(copy.pooler.kernel.shape))
    return copy


def _identity_projection(
    config: AlbertConfig, dialect: str
) -> dict[str, np.ndarray]:
    """An identity projection, for formats that always have a projection."""
    kernel, bias = (getattr(row, dialect) for row in PROJECTION)
    return {
        kernel: np.eye(config.hidden_size, dtype="float32"),
        bias: np.zeros(config.hidden_size, "float32"),
    }


def _rows(config: AlbertConfig, dialect: str):
    rows = name_table(config)
    return [row for row in rows if getattr(row, dialect) is not None]


def _array(value) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(value)).astype("float32")


def listed(names, separator: str = ", ") -> str:
    """Names in a message: the first SHOWN, and how many more there are."""
    names = sorted(names) if isinstance(names, set) else list(names)
    more = len(names) - SHOWN
    text = separator.join(names[:SHOWN])
    return f"{text}{separator}and {more} more" if more > 0 else text
