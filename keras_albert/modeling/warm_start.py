"""Depth warm start: initializes a deeper model from a shallower one."""

from collections.abc import Iterator

import numpy as np
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import (
    AlbertModel,
    check_model,
    check_plain,
    own_path,
)
from keras_albert.modeling.encoder import HALVES, SharedEncoder


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

    A model with relaxed sharing may start from one whose layers differ: what
    its layers share is set to the mean of theirs, and each layer's low-rank
    difference to the closest one of its rank, by singular value decomposition
    (Bae et al. 2024, section 2.3).

    Args:
        model: a backbone or headed model, changed in place.
        source: a model that may differ only in the numbers of layers, groups
            and inner blocks, the sharing, and the head.

    Returns:
        Names of the weights of the head and pooler that the source lacks;
        they are not changed.

    Raises:
        AlbertError: a weight has another shape (the message lists all of
            them), or a model is quantized or has LoRA adapters. The model is
            then unchanged.

    Source: Paper Table 11; reference modeling.py, `init_from_group0`.
    """
    ours, theirs = _backbone(model), _backbone(source)
    starts = _encoder_starts(ours.encoder, theirs.encoder)
    in_encoder = {id(weight) for weight in ours.encoder.weights}
    known = {own_path(weight): weight for weight in source.weights}
    kept = []
    for weight in model.weights:
        name = own_path(weight)
        if id(weight) in in_encoder:
            continue
        if name in known or name.startswith("embeddings/"):
            starts.append((weight, [known.get(name)]))
        else:
            kept.append(name)
    problems = []
    for weight, (start, *_) in starts:
        if start is None:
            problems.append(f"{own_path(weight)}: missing in the source")
        elif tuple(start.shape) != tuple(weight.shape):
            problems.append(
                f"{own_path(weight)}: expected {tuple(weight.shape)}, found "
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
    return kept


def _backbone(model: AlbertModel) -> AlbertBackbone:
    check_model(model)
    check_plain(model)
    return model if isinstance(model, AlbertBackbone) else model.backbone


def _encoder_starts(ours: SharedEncoder, theirs: SharedEncoder) -> list[tuple]:
    """Pairs of a weight and the weights of the source whose mean it gets.

    It is a single weight of the source, or None if the source lacks it, unless
    the model has relaxed sharing.
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
        if lost := their_parts.keys() - our_parts.keys():
            raise AlbertError(
                f"the source has {', '.join(sorted(lost))}, which the "
                "model has not. Set its `relaxed_rank`, to the source's or "
                f"another one. Received: {ours.config.relaxed_rank}; the "
                f"source's: {theirs.config.relaxed_rank}."
            )
    return list(starts.values())


def _start_differences(ours: SharedEncoder, theirs: SharedEncoder) -> None:
    """Sets low-rank differences to what the shared kernels lack.

    Where they lack nothing, the differences keep their initial values: zeros
    in both factors would have no gradient.
    """
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
                if rest.any():
                    for factor, start in zip(
                        (a, b), _closest(rest, a.shape[1]), strict=True
                    ):
                        factor.assign(start)


def _kernels(parts: dict, half: str, with_difference=False) -> list[np.ndarray]:
    """The kernels of a half, with or without its own low-rank differences."""
    kernels = [
        ops.convert_to_numpy(weight)
        for weight in parts[half].weights
        if weight.name == "kernel"
    ]
    if not with_difference or f"{half}_delta" not in parts:
        return kernels
    factors = [
        ops.convert_to_numpy(weight)
        for weight in parts[f"{half}_delta"].weights
    ]
    return [
        kernel + a @ b
        for kernel, a, b in zip(
            kernels, factors[::2], factors[1::2], strict=True
        )
    ]


def _closest(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The factors A [n, R], B [R, m] whose product is closest to a matrix.

    The singular values are divided equally between them. A rank above n or m
    is filled with zeros.
    """
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    missing = max(rank - len(values), 0)
    root = np.sqrt(values[:rank])
    return (
        np.pad(u[:, :rank] * root, ((0, 0), (0, missing))),
        np.pad(root[:, None] * v[:rank], ((0, missing), (0, 0))),
    )


def _blocks(
    ours: SharedEncoder, theirs: SharedEncoder
) -> Iterator[tuple[dict, dict]]:
    """The parts of each block, and those of the source's in its place."""
    layers, their_layers = (
        each.config.num_hidden_layers for each in (ours, theirs)
    )
    inners, their_inners = (
        each.config.inner_group_num for each in (ours, theirs)
    )
    for layer in range(layers):
        for inner in range(inners):
            yield (
                _parts(ours, layer, inner),
                _parts(
                    theirs,
                    layer * their_layers // layers,
                    inner * their_inners // inners,
                ),
            )


def _parts(encoder: SharedEncoder, layer: int, inner: int) -> dict:
    """The parts of a layer's block: the shared ones and its own."""
    parts = {}
    for row in (
        encoder.shared[encoder.config.group_of(layer)],
        encoder.own[layer],
    ):
        if row:
            parts |= row[inner].parts
    return parts
