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
) -> Any:
    """`compute(rows)` in training, a part of the rows at a time.

    The backward pass computes each part again, so that only the activations of
    one part are in memory, whatever the size of the batch (Gao et al. 2021,
    arXiv:2101.06983).

    Args:
        model: has the weights and random generators that `compute` uses.
        compute: from arrays [part, S], by name, to an array [part, ...].
        rows: arrays [R, S], by name; R must be static.
        rows_at_once: most rows of a part.

    Returns:
        an array [R, ...].
    """
    states = [generator.state for generator in seed_generators(model)]
    weights = model.trainable_variables
    # The scope below hides the values of an outer one, which Keras enters in
    # training on JAX: it must know all variables.
    known = {id(each) for each in (*weights, *states)}
    others = [each for each in model.variables if id(each) not in known]
    fixed = [(each, each.value) for each in others]
    starts = range(0, rows["token_ids"].shape[0], rows_at_once)

    def part_of(number):
        first = starts[number]
        part = {
            name: value[first : first + rows_at_once]
            for name, value in rows.items()
        }
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

    found = [part_of(number) for number in range(len(starts))]
    for state in states:
        state.assign(_advanced(state, len(found)))
    return ops.concatenate(found, axis=0)


def _advanced(state: keras.Variable, parts: int) -> Any:
    """The state of a random generator after some parts of a batch."""
    draws = np.array([0, parts * _DRAWS], state.dtype)
    return state.value + ops.convert_to_tensor(draws)
