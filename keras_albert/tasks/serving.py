"""How the answers of a task are computed inside a graph, and compared.

Graphs take strings or ids of any number of examples; see `tasks.graph`, which
imports TensorFlow and is imported by `Serving.signatures` for this reason.
"""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from keras_albert.text.normalization import to_text
from keras_albert.text.special_tokens import CLS_ID, SEP_ID

if TYPE_CHECKING:
    from keras_albert.tasks.graph import ServingGraph

Answer = tuple[object, object]
"""a prediction, or None where it is a number; and one score or several"""


class Serving(abc.ABC):
    """The graph of a task, in a SavedModel, a LiteRT or an ONNX file."""

    output = "logits"
    """name of the output, where the model has a single output"""
    needs_pieces = False
    """whether answers need the vocabulary, which only a SavedModel has"""

    @abc.abstractmethod
    def signatures(self, graph: "ServingGraph") -> dict[str, Callable]:
        """The functions that the task adds to those of all graphs, by name.

        One of them is `serving_default`. A function's arguments are named as
        the inputs of the signature: strings [B], but for `choices`, strings
        [B, C], and `token_ids`, int32 [B, S].
        """

    @abc.abstractmethod
    def answer(self, outputs: Mapping, given: Mapping) -> Answer:
        """What `serving_default` says about one example.

        Args:
            outputs: values of that example by the names of the outputs.
            given: its inputs, see `texts`.
        """

    def texts(self, values: Mapping) -> Mapping | None:
        """Values of a table's row as inputs of `serving_default`.

        None where a served model cannot be given such a row.
        """
        return {
            name: [*map(to_text, value)]
            if isinstance(value, list)
            else to_text(value)
            for name, value in values.items()
        }

    def example(self, length: int) -> tuple[str, np.ndarray]:
        """A text of about `length` tokens, and int32 [length] ids.

        They warm servers up, and so need no meaning.
        """
        ids = np.full(length, SEP_ID + 2, "int32")  # the first piece of text
        ids[0], ids[-1] = CLS_ID, SEP_ID
        # "a" is one token, as a rule.
        return " ".join(["a"] * length), ids
