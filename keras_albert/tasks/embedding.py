"""A vector for each text, from any model.

Letters: B texts, H hidden size.
"""

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.tables import Field, read_text
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.tasks.serving import Serving
from keras_albert.tasks.task import Task
from keras_albert.text.model_inputs import text_rows

VECTOR = "a vector for a text"  # what the head predicts


class _VectorServing(Serving):
    """`embedding`, which is also the output of the signature `embed`."""

    output = "embedding"

    def signatures(self, graph):
        return {"serving_default": graph.embed}

    def answer(self, outputs, given):
        return None, outputs["embedding"]


class Embedding(Task):
    """A vector for each text, from a head for vectors or from an encoder.

    Models are not fine-tuned for it; every model of this package fits.
    """

    heads = {VECTOR: (AlbertForTextEmbedding, AlbertBackbone)}
    serving = _VectorServing()
    adds = frozenset({"prediction"})

    def inputs(self, columns):
        return {"text": Field(columns.text, read_text)}

    def features(self, tokenizer, table, names, length):
        texts = table.values["text"]
        return Features(text_rows(tokenizer, texts, None, length))

    def decode(self, outputs, features, names):
        return [
            {"prediction": [round(float(x), 6) for x in vector]}
            for vector in outputs
        ]

    def answers(self, outputs, features, names):
        """The vectors, float32 [B, H]."""
        return np.stack(outputs)

    def fits(self, model):
        return True

    def model_of(self, model):
        if isinstance(model, AlbertForTextEmbedding):
            return model
        return AlbertForTextEmbedding(getattr(model, "backbone", model))
