"""The parts of a model by their paths: which are int8, which are frozen."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import layers

from keras_albert.private_apis import sublayers


def own_paths(root: layers.Layer, parts: Iterable[Any]) -> dict[str, Any]:
    """Layers or weights of `root` by their paths inside of their model.

    The paths lack the names of the model and of what is around it, such as a
    layer of the user that made the model when it was built. They are therefore
    the same in all models of an architecture. Files and the name tables of
    `checkpoints` use them.
    """
    models = (each for each in sublayers(root) if isinstance(each, keras.Model))
    # The path of a backbone does not begin with that of the model around it.
    prefixes = {f"{each.path}/" for each in (root, *models)}
    found = {}
    for part in parts:
        inside = (p for p in prefixes if part.path.startswith(p))
        found[part.path.removeprefix(max(inside, key=len))] = part
    return found


def projections_and_tables(layer: layers.Layer) -> dict[str, layers.Layer]:
    """The projections and embedding tables, by path."""
    kinds = layers.Dense | layers.Embedding
    parts = (part for part in sublayers(layer) if isinstance(part, kinds))
    return own_paths(layer, parts)


def quantized_paths(layer: layers.Layer) -> list[str]:
    """The paths of the projections and embedding tables that are int8."""
    if not layer.built:  # then the paths are not known yet
        return []
    leaves = _leaves(layer)
    return [k for k in leaves if leaves[k].quantization_mode is not None]


def quantize_paths(layer: layers.Layer, paths: list[str]) -> None:
    """Quantizes the projections and tables with these paths to int8."""
    for path, part in _leaves(layer).items():
        if path in paths and part.quantization_mode is None:
            part.quantize("int8")


def _leaves(layer: layers.Layer) -> dict[str, layers.Layer]:
    # A model may name them differently, as an ensemble does.
    of_model = getattr(layer, "leaves", None)
    return of_model() if of_model else projections_and_tables(layer)


def frozen_paths(layer: layers.Layer) -> list[str]:
    """The paths of the weights that training leaves as they are."""
    return [*own_paths(layer, (v for v in layer.weights if not v.trainable))]


def freeze(root: layers.Layer, paths: list[str]) -> None:
    """Freezes the weights with these paths, and layers that have no others.

    TensorFlow ignores that True is assigned to `trainable` of a layer where it
    is True already: the weights inside would stay frozen.
    """
    weights = own_paths(root, root.weights)
    frozen = {id(weights[path]) for path in paths if path in weights}
    for layer in sublayers(root):
        if layer.weights and frozen.issuperset(map(id, layer.weights)):
            layer.trainable = False
    for weight in root.weights:
        weight.trainable = weight.trainable and id(weight) not in frozen
