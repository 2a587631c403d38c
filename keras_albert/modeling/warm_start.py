"""Depth warm start: initializes a deeper model from a shallower one."""

from collections.abc import Iterator

import numpy as np
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone, encoder_of
from keras_albert.modeling.base import AlbertModel, own_paths
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.encoder import HALVES, SharedEncoder
from keras_albert.modeling.inputs import check_model
from keras_albert.modeling.weight_checks import check_no_lora_or_int8

ROUNDING = 1e-6  # of a kernel's norm, in float32


def warm_start(model: AlbertModel, source: AlbertModel) -> list[str]:
    """Sets the weights of `model` from a model with fewer layers or groups.

    Layer l of L gets the weights of layer l * L0 // L of the source's L0
    layers. Weights that a group of layers shares are set from its first
    layer. If the source shares one block among all layers, every layer
    therefore starts as that block: the paper trained models of 3, 6, 12, 24
    and 48 layers from one another in this way, and the reference fills its
    groups from group 0. The sharing modes may differ. If the numbers of
    layers are equal and the source shares more, both models have the same
    outputs.

    A model with relaxed sharing may start from one whose layers differ. What
    its layers share is set to the mean of the source's layers that it uses, and
    each layer's low-rank difference to the closest one of its rank, by singular
    value decomposition (Bae et al. 2024, section 2.3). Only kernels have such
    differences: biases and layer norms are means in every layer.

    Args:
        model: a backbone or headed model, changed in place.
        source: a model that may differ only in the numbers of layers, groups
            and inner blocks, the sharing, and the head.

    Returns:
        Names of weights of head and pooler that are not changed.

    Raises:
        AlbertError: weights have other shapes (all are listed), the models
            differ in heads of attention or in activation, or a model is
            quantized or has LoRA adapters. The model is unchanged.

    Source: Paper Table 11; reference modeling.py, `init_from_group0`.
    """
    ours, theirs = _backbone(model), _backbone(source)
    _check_same_computation(ours.config, theirs.config)
    starts = _encoder_starts(ours.encoder, theirs.encoder)
    in_encoder = {id(weight) for weight in ours.encoder.weights}
    known = own_paths(source, source.weights)
    ours_by_name = own_paths(model, model.weights)
    kept = []
    for name, weight in ours_by_name.items():
        if id(weight) in in_encoder:
            continue
        if name in known or name.startswith("embeddings/"):
            starts.append((weight, [known.get(name)]))
        else:
            kept.append(name)
    problems = [
        f"{name}: missing in the model"  # the projection if E is H
        for name in known
        if name.startswith("embeddings/") and name not in ours_by_name
    ]
    names = {id(weight): name for name, weight in ours_by_name.items()}
    for weight, (start, *_) in starts:
        if start is None:
            problems.append(f"{names[id(weight)]}: missing in the source")
        elif tuple(start.shape) != tuple(weight.shape):
            problems.append(
                f"{names[id(weight)]}: expected {tuple(weight.shape)}, found "
                f"{tuple(start.shape)}"
            )
    if problems:
        raise AlbertError(
            f"{type(source).__name__} cannot start {type(model).__name__}: "
            f"{'; '.join(problems)}. Only the numbers of layers, groups and "
            "inner blocks, and the sharing, may differ."
        )
    for weight, (first, *others) in starts:
        weight.assign(sum(others, first) / (1 + len(others)))
    if ours.config.relaxed_rank:
        _start_differences(ours.encoder, theirs.encoder)
    if theirs.config.relaxed_rank:
        _add_differences(ours.encoder, theirs.encoder)
    return kept


def _check_same_computation(ours: AlbertConfig, theirs: AlbertConfig) -> None:
    """Raises AlbertError if equal weights would mean something else."""
    for name in ("num_attention_heads", "activation"):
        own, other = getattr(ours, name), getattr(theirs, name)
        if own != other:
            raise AlbertError(
                f"a model must have the {name} of its source, {other}. "
                f"Received: {own}. Give it that of the source, or choose "
                "another source."
            )


def _backbone(model: AlbertModel) -> AlbertBackbone:
    check_model(model)
    check_no_lora_or_int8(model)
    return encoder_of(model)


def _encoder_starts(ours: SharedEncoder, theirs: SharedEncoder) -> list[tuple]:
    """Pairs of a weight and the weights of the source whose mean it gets.

    Without relaxed sharing the mean is of a single weight.
    """
    starts = {}
    for our_parts, their_parts in _blocks(ours, theirs):
        for name, part in our_parts.items():
            if name not in HALVES:
                continue  # a low-rank difference
            found = their_parts[name].weights
            for weight, start in zip(part.weights, found, strict=True):
                _, known = starts.setdefault(id(weight), (weight, []))
                if not known or (
                    ours.config.relaxed_rank
                    and all(start is not other for other in known)
                ):
                    known.append(start)
    config = ours.config
    for half in config.shared_halves:
        if theirs.config.relaxed_rank and not config.relaxed_rank:
            raise AlbertError(
                "the source's layers differ by matrices of rank "
                f"{theirs.config.relaxed_rank}, and those of the model have "
                f"the same {half.replace('_', '-')} weights. Received: "
                f"relaxed_rank=0, sharing={config.sharing!r}. Set "
                "`relaxed_rank` in the model's config, or sharing='none'."
            )
    return list(starts.values())


def _start_differences(ours: SharedEncoder, theirs: SharedEncoder) -> None:
    """Sets low-rank differences to what the shared kernels lack."""
    for our_parts, their_parts in _blocks(ours, theirs):
        for half in HALVES:
            delta = our_parts.get(f"{half}_delta")
            if delta is None:
                continue
            factors = delta.weights
            for a, b, shared, wanted in zip(
                factors[::2],
                factors[1::2],
                _kernels(our_parts, half),
                _kernels(their_parts, half, with_difference=True),
                strict=True,
            ):
                rest = wanted - shared
                initial = ops.convert_to_numpy(a)
                # Smaller values are rounding errors of the kernels.
                least = ROUNDING * np.linalg.norm(wanted)
                for factor, start in zip(
                    (a, b), _closest(rest, initial, least), strict=True
                ):
                    factor.assign(start)


def _add_differences(ours: SharedEncoder, theirs: SharedEncoder) -> None:
    """Adds the source's low-rank differences to kernels of single layers."""
    for our_parts, their_parts in _blocks(ours, theirs):
        for half in HALVES:
            if half in ours.config.shared_halves:
                continue
            own = [w for w in our_parts[half].weights if w.name == "kernel"]
            found = _kernels(their_parts, half, with_difference=True)
            for kernel, value in zip(own, found, strict=True):
                kernel.assign(value)


def _kernels(parts: dict, half: str, with_difference=False) -> list[np.ndarray]:
    """The kernels of a half, with or without its own low-rank differences."""

    def array(weight):
        return ops.convert_to_numpy(ops.cast(weight, "float32"))

    kernels = [array(w) for w in parts[half].weights if w.name == "kernel"]
    if not with_difference or f"{half}_delta" not in parts:
        return kernels
    factors = [array(weight) for weight in parts[f"{half}_delta"].weights]
    rows = zip(kernels, factors[::2], factors[1::2], strict=True)
    return [kernel + a @ b for kernel, a, b in rows]


def _closest(
    matrix: np.ndarray, initial: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """The factors A [n, R], B [R, m] whose product is closest to a matrix.

    The singular values are divided equally between them. A direction whose
    singular value is below `least`, or that the matrix does not have, keeps its
    column of the `initial` A [n, R] and has zeros in B: zeros in both factors
    would have no gradient.
    """
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    count = min((values > least).sum(), initial.shape[1])
    root = np.sqrt(values[:count])
    a = np.array(initial)
    b = np.zeros((initial.shape[1], matrix.shape[1]), matrix.dtype)
    a[:, :count] = u[:, :count] * root
    b[:count] = root[:, None] * v[:count]
    return a, b


def _blocks(
    ours: SharedEncoder, theirs: SharedEncoder
) -> Iterator[tuple[dict, dict]]:
    """The parts of each block, and those of the source's in its place."""
    config, source = ours.config, theirs.config
    layers, inners = config.num_hidden_layers, config.inner_group_num
    for layer in range(layers):
        for inner in range(inners):
            yield (
                _parts(ours, layer, inner),
                _parts(
                    theirs,
                    layer * source.num_hidden_layers // layers,
                    inner * source.inner_group_num // inners,
                ),
            )


def _parts(encoder: SharedEncoder, layer: int, inner: int) -> dict:
    """The parts of a layer's block: the shared ones and its own."""
    shared = encoder.shared[encoder.config.group_of(layer)]
    parts = {}
    for row in filter(None, (shared, encoder.own[layer])):
        parts |= row[inner].parts
    return parts
