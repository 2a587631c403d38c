"""The model that is pretrained, with its losses and metrics."""

import keras

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import AlbertForPretraining
from keras_albert.pretraining.config import ExampleConfig
from keras_albert.training.losses import WeightedCrossEntropy


def pretraining_model(
    config: AlbertConfig,
    examples: ExampleConfig,
    loop: str,
    remat: bool,
    precision: str,
) -> AlbertForPretraining:
    """A model for pretraining, with random weights.

    Args:
        config: the architecture.
        examples: the pretraining examples. Their sentence task determines the
            second head; for "none" there is only the masked-LM head.
        loop, remat: see `AlbertBackbone`.
        precision: the Keras dtype policy, such as "mixed_bfloat16".

    Raises:
        AlbertError: the examples are longer than the model's position
            embeddings, or the model has fewer than two segments.
    """
    check_examples(examples, config)
    task = examples.sentence_task
    return AlbertForPretraining(
        AlbertBackbone(config, loop=loop, remat=remat, dtype=precision),
        None if task == "none" else task,
    )


def compile_for_pretraining(
    model: AlbertForPretraining,
    optimizer: keras.optimizers.Optimizer | str,
    masked_lm: keras.losses.Loss | None = None,
) -> None:
    """Compiles a model with the published losses and with their accuracies.

    The losses of masked LM and of the sentence task have equal weight.
    `masked_lm` replaces the loss of masked LM, WeightedCrossEntropy.
    """
    tasks = [task for task in ("mlm", model.sentence_task) if task]
    # With several outputs, Keras itself puts their names before the metrics'.
    prefix = "mlm_" if len(tasks) == 1 else ""

    def metrics():
        # The cross-entropy over all predictions: the losses that Keras logs
        # are means over batches, however few predictions a batch has.
        return [
            keras.metrics.SparseCategoricalAccuracy(name=f"{prefix}accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(
                from_logits=True, name=f"{prefix}cross_entropy"
            ),
        ]

    losses = {task: WeightedCrossEntropy() for task in tasks}
    if masked_lm is not None:
        losses["mlm"] = masked_lm
    model.compile(
        optimizer=optimizer,
        loss=losses,
        weighted_metrics={task: metrics() for task in tasks},
    )


def check_examples(examples: ExampleConfig, config: AlbertConfig) -> None:
    """Raises AlbertError unless a model of this config accepts the examples."""
    if config.type_vocab_size < 2:
        raise AlbertError(
            "Pretraining has two segments: `type_vocab_size` must be 2 or "
            f"more. Received: {config.type_vocab_size}."
        )
    if examples.sequence_length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {examples.sequence_length}. Set "
            "--examples.sequence-length."
        )
