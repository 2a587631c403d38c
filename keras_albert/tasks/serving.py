"""How the answers of a task are computed inside a graph, and compared.

Graphs take strings or ids of any number of examples. `tasks.graph` imports
TensorFlow and is therefore only imported by `Serving.signatures`.
"""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.text.normalization import to_text
from keras_albert.text.special_tokens import CLS_ID, SEP_ID

if TYPE_CHECKING:
    from keras_albert.tasks.graph import ServingGraph

# a prediction, or None if it is a number; and one or more scores
Answer = tuple[object, object]


class Serving(abc.ABC):
    """The graph of a task, in a SavedModel, a LiteRT or an ONNX file."""

    output = "logits"  # name of the output, where the model has a single output
    # whether answers need the vocabulary, which only a SavedModel has
    needs_pieces = False

    @abc.abstractmethod
    def signatures(self, graph: "ServingGraph") -> dict[str, Callable]:
        """The functions that the task adds to those of all graphs, by name.

        One of them is `serving_default`. Their arguments are the named inputs:
        strings [B]; `choices`, strings [B, C]; `token_ids`, int32 [B, S].
        """

    @abc.abstractmethod
    def answer(self, outputs: Mapping, given: Mapping) -> Answer:
        """The answer of `serving_default` for one example.

        `outputs` are its values by name; `given` are its inputs, see `texts`.
        """

    def texts(self, values: Mapping) -> Mapping | None:
        """The values of a table's row as inputs of `serving_default`.

        None if a served model cannot take such a row.
        """
        return {
            name: [*map(to_text, value)]
            if isinstance(value, list)
            else to_text(value)
            for name, value in values.items()
        }

    def example(self, length: int) -> tuple[str, np.ndarray]:
        """A text of about `length` tokens, and int32 [length] ids.

        They are only used to warm up servers.
        """
        ids = np.full(length, SEP_ID + 2, "int32")  # the first piece of text
        ids[0], ids[-1] = CLS_ID, SEP_ID
        # "a" is usually one token.
        return " ".join(["a"] * length), ids
