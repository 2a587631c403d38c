"""Options of the commands that use a fine-tuned model."""

import dataclasses
from typing import Literal

from keras_albert.data.config import OtherColumns, TableColumns
from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_fields,
    check_flag,
    check_positive,
    check_positive_number,
    is_number,
    to_python_numbers,
)
from keras_albert.modeling.config import CLASSIFIER_DROPOUT, POOLINGS
from keras_albert.tasks.names import (
    EMBEDDING,
    FINETUNE_TASKS,
    LONG_TEXT_TASKS,
    PRETRAINED_TASKS,
    SIMILARITY,
)
from keras_albert.training.config import COSINE_LOSSES, COSINE_TEMPERATURE

# What becomes of a text that is longer than a row: it is cut; or read in
# windows, whose probabilities are averaged, or whose highest logits count.
LONG_TEXT_MODES = ("cut", "mean", "max")
CUT = LONG_TEXT_MODES[0]
# What is averaged of several models.
AVERAGES = ("predictions", "weights")


@dataclasses.dataclass(frozen=True)
class EarlyExit:
    """A rule that says after which layer an example is answered.

    Exactly one of `patience`, `confidence` and `layers` is given. An example
    for which the rule never holds is answered by the last layer.

    Args:
        patience: stop as soon as so many layers in a row have agreed with the
            layer before them (Zhou et al. 2020, arXiv:2006.04152, section 3.2).
            In a model of L layers a patience of L - 1 or L stops no example
            early, and a higher one is refused.
        confidence: stop as soon as the most probable answer (of several
            labels, the answer for each of them) has this probability or more.
        layers: stop every example after this many layers.
        tolerance: the answers of a regression count as the same if they
            differ by less; needed for `patience` there.

    Raises:
        AlbertError: unless exactly one of the three is given, and in range.
    """

    patience: int | None = None
    confidence: float | None = None
    layers: int | None = None
    tolerance: float | None = None

    def __post_init__(self):
        to_python_numbers(self)
        names = ("patience", "confidence", "layers")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise AlbertError(
                f"exactly one of {', '.join(names)} says when inference stops. "
                f"Received: {', '.join(given) or 'none of them'}."
            )
        check_fields(check_positive, self, "patience layers")
        if self.confidence is not None and not (
            is_number(self.confidence) and 0 < self.confidence <= 1
        ):
            raise AlbertError(
                "`confidence` must be above 0 and at most 1. "
                f"Received: confidence={self.confidence!r}."
            )
        if self.tolerance is not None:
            check_positive_number("tolerance", self.tolerance)
            if self.patience is None:
                raise AlbertError(
                    "`tolerance` says when two layers agree: it needs "
                    f"`patience`. Received: {given[0]}. Leave it out."
                )

    def layers_of_all(self, count: int) -> int | None:
        """After how many layers every example stops, of `count` layers.

        None if the examples differ. The first layer has none before it with
        which it could agree, and the last one stops all in any case: with a
        patience of `count` - 1 no example stops early.
        """
        if self.patience is not None and self.patience >= count - 1:
            return count
        return self.layers


def check_long_texts(
    given: str, task: str, columns: TableColumns | None
) -> None:
    """Raises AlbertError unless the task can read long texts so."""
    check_choice("long_texts", given, LONG_TEXT_MODES)
    pairs = columns is not None and columns.pair is not None
    if given != CUT and (pairs or task not in LONG_TEXT_TASKS):
        raise AlbertError(
            f"`long_texts` is for single texts with "
            f"{', '.join(LONG_TEXT_TASKS)}. Received: long_texts={given!r} for "
            f"{'pairs of texts' if pairs else f'task={task!r}'}. Leave "
            "--long-texts out."
        )


def check_batch_size(
    task: str, size: int | None, columns: TableColumns, loss: str
) -> None:
    """Raises AlbertError if batches are too small for the task and its loss."""
    if size != 1:
        return
    if task == EMBEDDING and not columns.negative:
        raise AlbertError(
            "a batch of one example has no negatives. Received: "
            "batch_size=1. Raise --batch-size."
        )
    if task == SIMILARITY and loss == COSINE_LOSSES[0]:
        raise AlbertError(
            "`embedding.loss` ranking compares pairs with one another, and a "
            "batch of one example has a single pair. Received: batch_size=1. "
            "Raise --batch-size, or give --embedding.loss regression."
        )


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """How the vectors of texts are made and learned."""

    pooling: Literal[POOLINGS] | None = None
    """how the vectors of the tokens become one: their mean; the one of [CLS]
    (cls); the largest value of each unit (max); their mean, averaged over all
    layers with a learned weight for each (weighted_layers); a mean that gives a
    piece more weight if fewer texts of --train have it (idf); or that mean of
    what the first layer reads, followed by that of what the last one writes
    (idf_first_last). By default as in --model if it makes vectors, else mean"""
    projection: int | None = None
    """size of a dense layer after the pooling; by default that of --model if it
    makes vectors and has one, else there is none"""
    dimensions: tuple[int, ...] = ()
    """sizes to which the vectors may be cut after training, such as 128 64 32:
    the mean of their losses is minimized (Matryoshka embeddings)"""
    normalize: bool = False
    """the model itself scales its vectors to length 1, and so do the files that
    `export` makes of it; `encode` and `embed` do so in any case"""
    temperature: float = COSINE_TEMPERATURE
    """number by which cosines are divided in the loss"""
    symmetric: bool = False
    """for `embedding`: also find each text for its partner"""
    loss: Literal[COSINE_LOSSES] = COSINE_LOSSES[0]
    """for `similarity`: learn the order of the scores, or a cosine equal to the
    score (which --embedding.score-range scales to 0 to 1)"""
    score_range: tuple[float, ...] = ()
    """for `similarity`: lowest and highest score, such as 0 5; a score outside
    is an error"""
    rows_at_once: int | None = None
    """most texts whose activations are in memory; the gradient stays that of
    the whole batch, whose texts are computed twice (gradient caching)"""

    def __post_init__(self):
        if self.pooling is not None:
            check_choice("embedding.pooling", self.pooling, POOLINGS)
        check_choice("embedding.loss", self.loss, COSINE_LOSSES)
        check_positive_number("embedding.temperature", self.temperature)
        check_flag("embedding.normalize", self.normalize)
        check_flag("embedding.symmetric", self.symmetric)
        for name in ("projection", "rows_at_once"):
            if getattr(self, name) is not None:
                check_positive(f"embedding.{name}", getattr(self, name))
        for size in self.dimensions:
            check_positive("embedding.dimensions", size)
        if len(set(self.dimensions)) < len(self.dimensions):
            raise AlbertError(
                "`embedding.dimensions` must differ from one another. "
                f"Received: {list(self.dimensions)}."
            )
        # A TOML or JSON file gives lists; the command line gives tuples.
        object.__setattr__(self, "dimensions", tuple(self.dimensions))
        object.__setattr__(self, "score_range", tuple(self.score_range))
        if self.score_range and (
            len(self.score_range) != 2
            or not all(map(is_number, self.score_range))
            or self.score_range[0] >= self.score_range[1]
        ):
            raise AlbertError(
                "`embedding.score_range` must be the lowest and the highest "
                f"score, such as 0 5. Received: {self.score_range}."
            )
        if (
            self.loss == "regression"
            and self.temperature != EmbeddingOptions.temperature
        ):
            raise AlbertError(
                "`embedding.temperature` is for rankings. Received: "
                f"{self.temperature} with embedding.loss=regression. Leave "
                "--embedding.temperature out."
            )
        if self.loss == "regression" and not self.score_range:
            raise AlbertError(
                "`embedding.loss` regression is for scores of pairs, and needs "
                "their range. Give --task similarity and "
                "--embedding.score-range, such as 0 5."
            )


@dataclasses.dataclass(frozen=True)
class HeadOptions:
    """The options of a run that concern the head of its model.

    A task uses those that its head has.
    """

    dropout: float = CLASSIFIER_DROPOUT
    exits: str | None = None
    """how the classifiers behind the layers share weights, one of EXITS"""
    embedding: EmbeddingOptions = EmbeddingOptions()
    max_tokens: int | None = None
    """the longest text, in tokens, for heads that compute vectors"""


def model_names(model: str | tuple[str, ...]) -> str:
    """The name of a model, or of several, as the command line takes them."""
    return " ".join(model) if isinstance(model, tuple) else str(model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUse:
    """Settings for using a model, if its own folder does not have them.

    The commands that use a fine-tuned model inherit these options, so that the
    command line has them without a prefix.
    """

    task: Literal[FINETUNE_TASKS + PRETRAINED_TASKS] | None = None
    """what the model is used for; needed if its folder does not say so and
    several tasks fit its head, above all for pairs"""
    labels: tuple[str, ...] | None = None
    """names of the classes in the order of the model's outputs, in place of its
    own; by default 0, 1 and so on if it has none"""
    columns: OtherColumns = OtherColumns()
    """columns of the tables that the model reads; each that is not given is
    that of the table that the model was trained on"""
    patience: int | None = None
    """for a model that was trained with --exits: an example has its answer as
    soon as this many layers in a row agree with the layer before them"""
    confidence: float | None = None
    """for a model that was trained with --exits: an example has its answer as
    soon as the answer has at least this probability"""
    layers: int | None = None
    """for a model that was trained with --exits: every example has its answer
    after this many layers"""
    tolerance: float | None = None
    """with --patience, for a model that predicts a number: two layers agree if
    their numbers differ by less than this"""

    @property
    def predictor_arguments(self) -> dict:
        """The options that were given, as `Predictor.load` takes them.

        Raises AlbertError if options for early exit exclude each other.
        """
        options = {name: getattr(self, name) for name in ("task", "labels")}
        if self.columns != OtherColumns():
            options["columns"] = self.columns
        rule = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(EarlyExit)
        }
        if any(value is not None for value in rule.values()):
            options["early_exit"] = EarlyExit(**rule)
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralModelsUse(ModelUse):
    """Settings of the commands that use one model or several."""

    average: Literal[AVERAGES] = AVERAGES[0]
    """what is averaged of several models: their predictions (an ensemble), or
    their weights, which takes no more time than one model (models of the same
    size that were trained from the same start)"""
