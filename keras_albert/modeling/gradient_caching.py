"""Training with batches whose activations do not fit into memory."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_albert.errors import AlbertError
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
    fixed = [(each, ops.cast(each, each.dtype)) for each in others]

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

        return keras.remat(computed)(*(each.value for each in weights))

    count = rows["token_ids"].shape[0]
    if count is None:  # TensorFlow compiles a step for batches of any size
        raise AlbertError(
            "`rows_at_once` needs batches of one size, and the last one of "
            f"`fit` is smaller. Received: rows_at_once={rows_at_once}. Leave "
            "some rows out, so that all batches are full, or set it to None."
        )
    parts = -(-count // rows_at_once)
    if keras.backend.backend() == "torch" or parts == 1:
        found = _one_by_one(part_of, rows, rows_at_once, parts)
    else:
        found = _in_a_loop(part_of, rows, rows_at_once, parts, size)
    for state in states:
        state.assign(_advanced(state, parts))
    return found[:count]


def _one_by_one(part_of, rows, rows_at_once: int, parts: int):
    """The vectors of `part_of(number of a part, its rows)`, of all parts."""
    found = []
    for number in range(parts):
        own = slice(number * rows_at_once, (number + 1) * rows_at_once)
        part = {name: value[own] for name, value in rows.items()}
        found.append(part_of(number, part))
    return ops.concatenate(found, axis=0)


def _in_a_loop(part_of, rows, rows_at_once: int, parts: int, size: int):
    """The same for TensorFlow and JAX, which compile the loop once.

    The compilation of one graph of all parts would take the more time and
    memory, the more parts there are. All parts of a loop have the same number
    of rows: the first rows are computed once more to fill up the last part, and
    their vectors are behind those that were asked for.
    """
    places = np.arange(parts * rows_at_once) % rows["token_ids"].shape[0]
    rows_of_parts = {
        name: ops.reshape(
            ops.take(value, places, axis=0),
            (parts, rows_at_once, ops.shape(value)[1]),
        )
        for name, value in rows.items()
    }

    def step(_, part):
        vectors = part_of(*part)
        # On TensorFlow the output of a step has the shape of what it carries.
        return vectors, vectors

    _, found = ops.scan(
        step,
        ops.zeros((rows_at_once, size)),
        (ops.arange(parts), rows_of_parts),
    )
    return ops.reshape(found, (-1, size))


def _advanced(state: keras.Variable, parts: int | Any) -> Any:
    """The state of a random generator after some parts of a batch."""
    draws = ops.cast(ops.stack([0, parts * _DRAWS]), state.dtype)
    return state.value + draws
