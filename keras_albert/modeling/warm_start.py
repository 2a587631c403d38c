"""Depth warm start: initializes a deeper model from a shallower one."""

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
    pairs = _encoder_pairs(ours.encoder, theirs.encoder)
    in_encoder = {id(weight) for weight in ours.encoder.weights}
    known = {own_path(weight): weight for weight in source.weights}
    kept = []
    for weight in model.weights:
        name = own_path(weight)
        if id(weight) in in_encoder:
            continue
        if name in known or name.startswith("embeddings/"):
            pairs.append((weight, known.get(name)))
        else:
            kept.append(name)
    problems = []
    for weight, start in pairs:
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
    for weight, start in pairs:
        weight.assign(start)
    return kept


def _backbone(model: AlbertModel) -> AlbertBackbone:
    check_model(model)
    check_plain(model)
    return model if isinstance(model, AlbertBackbone) else model.backbone


def _encoder_pairs(ours: SharedEncoder, theirs: SharedEncoder) -> list[tuple]:
    """Pairs of (weight, weight of the source or None), each weight once."""
    layers, their_layers = (
        each.config.num_hidden_layers for each in (ours, theirs)
    )
    inners, their_inners = (
        each.config.inner_group_num for each in (ours, theirs)
    )
    pairs = {}
    for layer in range(layers):
        their_layer = layer * their_layers // layers
        for inner in range(inners):
            their_inner = inner * their_inners // inners
            our_parts = _parts(ours, layer, inner)
            their_parts = _parts(theirs, their_layer, their_inner)
            for name, part in our_parts.items():
                start = their_parts.get(name)
                if start is None and name not in HALVES:
                    continue  # a low-rank difference; it starts at zero
                for weight, other in zip(
                    part.weights, start.weights, strict=True
                ):
                    pairs.setdefault(id(weight), (weight, other))
            if lost := their_parts.keys() - our_parts.keys():
                raise AlbertError(
                    f"the source has {', '.join(sorted(lost))}, which the "
                    "model has not. Set its `relaxed_rank` to the source's, "
                    f"{theirs.config.relaxed_rank}."
                )
    return list(pairs.values())


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
