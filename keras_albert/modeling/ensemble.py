"""Several models as one: the mean of their predictions, or of their weights."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
from keras import ops

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, own_paths
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import FOR_TRAINING, AlbertConfig
from keras_albert.modeling.inputs import check_model
from keras_albert.modeling.labels import Classes
from keras_albert.modeling.weight_checks import check_no_lora_or_int8
from keras_albert.private_apis import track_in_checkpoints

if TYPE_CHECKING:
    from keras_albert.text.tokenizer import Tokenizer

KINDS = (
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertForMultipleChoice,
)


@keras.saving.register_keras_serializable("keras_albert")
class AlbertEnsemble(AlbertModel):
    """Averages what several models predict (Paper 4.1 for its leaderboards).

    It is not trained itself. Classification averages probabilities, regression
    averages numbers, and multiple choice averages logits, since a served model
    scores each choice on its own.

    Args:
        members: two or more models of one class for classification, tokens or
            multiple choice, with the same vocabulary, labels and
            `max_position_embeddings`. Their sizes may differ.

    Call arguments:
        inputs: as for a member.

    Returns:
        float32, in the shape of a member's logits: logits of the mean
        probabilities, or the mean number or logit.

    Raises:
        AlbertError: members differ in class, problem, labels, vocabulary or
            input sizes, or share weights.
    """

    def __init__(self, members: Sequence[AlbertModel], **kwargs: Any):
        super().__init__(**kwargs)
        check_members(members)
        self.members = list(members)
        numbered = {f"member_{i}": each for i, each in enumerate(members)}
        track_in_checkpoints(self, numbered)
        first = self.members[0]
        self.config, self.axes = first.config, first.axes
        self.problem = getattr(first, "problem", "single_label")
        if isinstance(first, AlbertForMultipleChoice):
            self.problem = "choice"
        self.num_labels = getattr(first, "num_labels", None)
        self.built = True

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the labels, if they have names."""
        return getattr(self.members[0], "labels", None)

    @labels.setter
    def labels(self, labels: tuple[str, ...] | None):
        for member in self.members:
            member.labels = labels

    @property
    def backbone(self) -> AlbertBackbone:
        """The encoder of the first member."""
        return self.members[0].backbone

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The vocabulary of the members."""
        return self._reader.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer | None"):
        for member in self.members:
            member.tokenizer = tokenizer

    def call(
        self, inputs: Mapping[str, Any], training: bool | None = None
    ) -> Any:
        if training:
            raise AlbertError(
                "an ensemble is not trained. Train its members, each alone, "
                "and put them together afterwards."
            )
        outputs = ops.stack(
            [member(inputs, training=False) for member in self.members]
        )
        if self.problem in ("regression", "choice"):
            return ops.mean(outputs, axis=0)
        if self.problem == "multi_label":
            yes, no = ops.log_sigmoid(outputs), ops.log_sigmoid(-outputs)
            return ops.logsumexp(yes, axis=0) - ops.logsumexp(no, axis=0)
        log_probs = ops.log_softmax(outputs, axis=-1)
        return ops.logsumexp(log_probs, axis=0) - ops.log(
            float(len(self.members))
        )

    def leaves(self) -> dict[str, keras.layers.Layer]:
        """The projections and tables of all members, by path."""
        return {
            f"{number}/{path}": leaf
            for number, member in enumerate(self.members)
            for path, leaf in member.leaves().items()
        }

    def classes(self, shape: Any) -> dict[str | None, Classes]:
        """The valid labels of each output, which all members share."""
        return self.members[0].classes(shape)

    @property
    def _reader(self) -> AlbertModel:
        """The member that reads texts: the first that has a vocabulary."""
        able = (each for each in self.members if each.tokenizer is not None)
        return next(able, self.members[0])

    def preprocess(self, texts: Any) -> dict:
        """`preprocess` of a member: texts to arrays."""
        return self._reader.preprocess(texts)

    def named_texts(self, texts: Any) -> dict:
        """`named_texts` of a member."""
        return self._reader.named_texts(texts)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Each member has these lists of its own weights.
        del config["quantized"], config["frozen"]
        members = map(keras.saving.serialize_keras_object, self.members)
        return {**config, "members": list(members)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        members = [
            keras.saving.deserialize_keras_object(member)
            for member in config["members"]
        ]
        return super().from_config({**config, "members": members})


def check_members(members: Sequence[AlbertModel]) -> None:
    """Raises AlbertError unless models can be averaged."""
    if not isinstance(members, list | tuple) or len(members) < 2:
        raise AlbertError(
            "an ensemble is a list of two or more models. Received: "
            f"{members!r:.60}."
        )
    for member in members:
        check_model(member)
    first = members[0]
    if not isinstance(first, KINDS):
        raise AlbertError(
            "models that are averaged are classifiers of texts, tokens or "
            f"choices. Received: {type(first).__name__}."
        )
    weights = [id(weight) for member in members for weight in member.weights]
    if len(set(weights)) < len(weights):
        raise AlbertError(
            "the models of an ensemble must not share weights. Received: "
            "a weight of two models. Load each from its own folder."
        )
    for number, member in enumerate(members[1:], start=2):
        for name, of in _PROPERTIES.items():
            if of(member) != of(first):
                raise AlbertError(
                    "the models of an ensemble must have the same "
                    f"{name}. Received: {of(first)} and, of model {number}, "
                    f"{of(member)}."
                )
    known = [each.tokenizer for each in members if each.tokenizer is not None]
    for tokenizer in known[1:]:
        if difference := known[0].difference_from(tokenizer):
            number = [each.tokenizer for each in members].index(tokenizer) + 1
            raise AlbertError(
                "the models of an ensemble must have the same vocabulary. "
                f"Received: model {number} has another one ({difference})."
            )


_PROPERTIES = {
    "class": lambda model: type(model).__name__,
    "problem": lambda model: getattr(model, "problem", None),
    "number of labels": lambda model: getattr(model, "num_labels", None),
    "labels": lambda model: getattr(model, "labels", None),
    "vocab_size": lambda model: model.config.vocab_size,
    "type_vocab_size": lambda model: model.config.type_vocab_size,
    "max_position_embeddings": lambda model: (
        model.config.max_position_embeddings
    ),
}


def mean_weights(models: Sequence[AlbertModel]) -> AlbertModel:
    """Sets the weights of the first model to the mean of all; returns it.

    Models that were fine-tuned from the same start can be averaged ("model
    soups", Wortsman et al. 2022, arXiv:2203.05482, section 2); others cannot.
    Raises AlbertError if the models do not belong together, their architectures
    differ, or one is quantized or has LoRA adapters.
    """
    check_members(models)
    first, *others = models
    check_no_lora_or_int8(first)
    for number, model in enumerate(others, start=2):
        check_no_lora_or_int8(model)
        if _architecture(model) != _architecture(first):
            raise AlbertError(
                "weights can be averaged of models of the same architecture. "
                f"Received: another one in model {number}. Average their "
                "predictions instead."
            )
    for weights in zip(*(model.weights for model in models), strict=True):
        # A sum of 16-bit numbers would be rounded with each model.
        dtype = keras.backend.result_type(weights[0].dtype, "float32")
        mean = sum(ops.cast(each, dtype) for each in weights) / len(models)
        weights[0].assign(ops.cast(mean, weights[0].dtype))
    return first


def _architecture(model: AlbertModel) -> tuple:
    paths = own_paths(model, model.weights)
    weights = [(path, weight.shape) for path, weight in paths.items()]
    config = model.config.replace(
        **{name: getattr(AlbertConfig, name) for name in FOR_TRAINING}
    )
    return config, getattr(model, "exits", None), weights
