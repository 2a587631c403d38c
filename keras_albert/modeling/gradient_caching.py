"""Training with batches whose activations do not fit into memory."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.private_apis import seed_generators, uncast_values

# By how much the counter of each random generator is advanced for a part of the
# rows; a forward pass draws fewer numbers.
_DRAWS = 10_000


# Otherwise all weights would be rounded to the precision of the model, even
# those of a layer in float32, such as a projection. Each layer rounds its own.
@uncast_values()
def computed_in_parts(
    model: keras.Model,
    compute: Callable[[Mapping[str, Any]], Any],
    rows: Mapping[str, Any],
    rows_at_once: int,
    size: int,
) -> Any:
    """`compute(rows)` in training, a part of the rows at a time.

    The backward pass computes each part again, so that only the activations of
    one part are in memory, whatever the size of the batch (Gao et al. 2021,
    arXiv:2101.06983).

    Args:
        model: has the weights and random generators that `compute` uses.
        compute: from arrays [part, S], by name, to float32 [part, size].
        rows: arrays [R, S], by name; R must be static.
        rows_at_once: most rows of a part.
        size: of the vectors that are computed.

    Returns:
        float32 [R, size].
    """
    states = [generator.state for generator in seed_generators(model)]
    weights = model.trainable_variables
    # The scope below hides the values of an outer one, which Keras enters in
    # training on JAX: it must know all variables.
    known = {id(each) for each in (*weights, *states)}
    others = [each for each in model.variables if id(each) not in known]
    # As tensors: TensorFlow cannot differentiate a loop in which a
    # rematerialized function reads variables.
    values = [ops.cast(each, each.dtype) for each in weights]
    fixed = [(each, ops.cast(each, each.dtype)) for each in others]
    count = -(-rows["token_ids"].shape[0] // rows_at_once)

    def part_of(number, part):
        # Each part draws its own dropout masks.
        drawn = [_advanced(state, number) for state in states]

        # Without side effects, as the backward pass calls it again. The weights
        # are arguments: on TensorFlow, `keras.remat` gives no gradient to
        # tensors that the function captures.
        def computed(*values):
            own = zip([*weights, *states], [*values, *drawn], strict=True)
            with keras.StatelessScope(state_mapping=[*own, *fixed]):
                return compute(part)

        return keras.remat(computed)(*values)

    found = _in_turn(part_of, rows, rows_at_once, size)
    for state in states:
        state.assign(_advanced(state, count))
    return found


def _in_turn(
    part_of: Callable[[Any, Mapping[str, Any]], Any],
    rows: Mapping[str, Any],
    rows_at_once: int,
    size: int,
) -> Any:
    """What `part_of(number of the part, its rows)` returns, of all parts.

    TensorFlow and JAX compile one part, in a loop: a graph of all of them would
    take as long to compile, and as much memory, as it has parts.
    """
    count = rows["token_ids"].shape[0]
    if keras.backend.backend() == "torch" or count <= rows_at_once:
        found = []
        for number, first in enumerate(range(0, count, rows_at_once)):
            end = first + rows_at_once
            part = {name: value[first:end] for name, value in rows.items()}
            found.append(part_of(number, part))
        return ops.concatenate(found, axis=0)

    numbers = range(-(-count // rows_at_once))
    # All parts of a loop have the same size. The first rows fill up the last.
    places = np.arange(len(numbers) * rows_at_once) % count
    parts = {
        name: ops.reshape(
            ops.take(value, places, axis=0),
            (len(numbers), rows_at_once, ops.shape(value)[1]),
        )
        for name, value in rows.items()
    }

    def step(_, each):
        vectors = part_of(*each)
        # On TensorFlow the output of a step has the shape of what it carries.
        return vectors, vectors

    each = (ops.convert_to_tensor([*numbers], "int32"), parts)
    _, found = ops.scan(step, ops.zeros((rows_at_once, size)), each)
    return ops.reshape(found, (-1, size))[:count]


def _advanced(state: keras.Variable, parts: Any) -> Any:
    """The state of a random generator after some parts of a batch."""
    draws = ops.cast(ops.stack([0, parts * _DRAWS]), state.dtype)
    return state.value + draws
