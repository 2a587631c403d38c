"""A pretrained model as the teacher of another one (distillation)."""

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.pretraining.config import PretrainRun
from keras_albert.text.tokenizer import Tokenizer


def load_teacher(run: PretrainRun, vocabulary: Tokenizer) -> AlbertModel:
    """The teacher of a run, whose weights do not change.

    Raises AlbertError if it does not predict masked pieces of this vocabulary,
    or takes fewer tokens than the examples have.
    """
    model = read_teacher(run)
    if not isinstance(model, AlbertForPretraining | AlbertForMaskedLM):
        raise AlbertError(
            "a teacher must predict masked pieces. Received: "
            f"{run.teacher} with {type(model).__name__}. Give a model that "
            "`pretrain` wrote."
        )
    if model.tokenizer is None:
        raise AlbertError(
            f"the teacher must have the vocabulary of {run.data}. Received: "
            f"{run.teacher}, which has none. Put its spiece.model beside it."
        )
    if difference := model.tokenizer.difference_from(vocabulary):
        raise AlbertError(
            f"the teacher must have the vocabulary of {run.data}. Received: "
            f"{run.teacher} with another one ({difference}). Prepare the text "
            "with --vocab of the teacher."
        )
    most = model.config.max_position_embeddings
    if run.examples.sequence_length > most:
        raise AlbertError(
            f"the teacher takes {most} tokens. Received: "
            f"sequence_length={run.examples.sequence_length}. Lower "
            "--examples.sequence-length."
        )
    model.trainable = False
    return model


def read_teacher(run: PretrainRun) -> AlbertModel:
    """The teacher of a run, whether or not it can teach this run."""
    # Not at the top, as the readers of checkpoints import the heads of all
    # tasks, and most runs read none.
    from keras_albert.checkpoints.load import load

    return load(run.teacher, dtype=run.precision)


def masked_logits_of(
    teacher: AlbertModel, pieces: int
) -> Callable[[Mapping], Any]:
    """A function from inputs to the teacher's masked-LM logits [B, P, V].

    It is a function, and not the model, so that Keras does not count the
    teacher as a part of the model that it teaches. V is `pieces`, the size of
    the vocabulary; the embedding of a teacher may have more rows than that.
    """

    def logits(inputs: Mapping) -> Any:
        outputs = teacher(inputs, training=False)
        if isinstance(outputs, dict):
            outputs = outputs["mlm"]
        return ops.stop_gradient(outputs[..., :pieces])

    return logits
