"""The model that is fine-tuned, with its loss and optimizer."""

import dataclasses
from pathlib import Path

import keras

from keras_albert.checkpoints.huggingface import safetensors
from keras_albert.checkpoints.load import head_name, load
from keras_albert.checkpoints.lora import (
    ADAPTER_FOLDER,
    MergedModelFolder,
    divide_classifier,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FROZEN, FinetuneRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.warm_start import warm_start
from keras_albert.storage import read_json, write_json
from keras_albert.tasks.config import HeadOptions
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.model_folder import TASK_FILE, ModelFolder
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay


def compiled_model(
    run: FinetuneRun,
    pretrained: AlbertBackbone,
    config: AlbertConfig,
    names: tuple[str, ...] | None,
    steps: int,
) -> AlbertModel:
    """The model with its head, compiled for the task of a run.

    `config` is that of the model; `names` are the labels, None for a number;
    `steps` are all of the run.
    """
    warmup_steps = run.warmup_steps
    if warmup_steps is None:
        warmup_steps = int(run.warmup_share * steps)
    rate = WarmupPolynomialDecay(run.learning_rate, steps, warmup_steps)
    model = _model(run, pretrained, config, names)
    optimizer = make_optimizer(OptimizerConfig(run.optimizer), rate)
    task = ALL_TASKS[run.task]
    if run.teacher is not None:
        loss = task.distilled(names, run.teacher_share, run.temperature)
    else:
        loss = task.training_loss(names, head_options(run))
    compile_with(loss, model, optimizer)
    return model


def compile_with(
    loss: keras.losses.Loss | dict[str, keras.losses.Loss],
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | str,
) -> None:
    """Compiles a model with the loss, or the losses, of a task.

    Several losses are summed with the weight 0.5 each: the mean of start and
    end (reference squad_utils.py), for SQuAD 2.0 plus half of the answer
    class.
    """
    halves = dict.fromkeys(loss, 0.5) if isinstance(loss, dict) else None
    model.compile(optimizer=optimizer, loss=loss, loss_weights=halves)


def head_options(run: FinetuneRun) -> HeadOptions:
    """The options of a run that concern the head of its model."""
    return HeadOptions(
        run.classifier_dropout, run.exits, run.embedding, run.sequence_length
    )


def continued_model(
    run: FinetuneRun, names: tuple[str, ...] | None
) -> AlbertModel | None:
    """The model that a run starts from, if its head is trained further.

    None otherwise, and with `from_scratch`. `names` are the labels of the run.
    """
    task = ALL_TASKS[run.task]
    continued = task.continued(names)
    if run.from_scratch or continued is None:
        return None
    # A head that only makes vectors has no name.
    name = None if task.makes_vectors else continued.__name__
    if head_name(run.model) != name:
        return None
    model = load(run.model, dtype="float32")
    return model if isinstance(model, continued) else None


def continuing(run: FinetuneRun, source: AlbertModel | None) -> FinetuneRun:
    """The run with the options that it takes over from `source`.

    `source` is what `continued_model` returns. Raises AlbertError if they do
    not fit.
    """
    if source is None:
        return run
    task = ALL_TASKS[run.task]
    options = task.continued_options(head_options(run), source, run.model)
    return dataclasses.replace(
        run, embedding=options.embedding, sequence_length=options.max_tokens
    )


def finetuned_config(run: FinetuneRun, config: AlbertConfig) -> AlbertConfig:
    """The pretrained architecture with the dropout and depth of a run.

    Raises AlbertError if it cannot have this depth, exits or frozen weights.
    """
    if run.lora_rank:
        safetensors("`lora_rank`")  # before the training, not at its end
        if run.lora_rank > config.hidden_size:
            raise AlbertError(
                f"`lora_rank` must be at most {config.hidden_size}, the hidden "
                f"size of the model. Received: lora_rank={run.lora_rank}."
            )
    if run.lora_rank and run.depth not in (None, config.num_hidden_layers):
        raise AlbertError(
            "adapters belong to the model as it is, which has "
            f"{config.num_hidden_layers} layers. Received: "
            f"lora_rank={run.lora_rank}, depth={run.depth}. Leave --depth or "
            "--lora-rank out."
        )
    head_is_learned = ALL_TASKS[run.task].head_is_learned(head_options(run))
    if run.freeze in ("encoder", "backbone") and not head_is_learned:
        raise AlbertError(
            "nothing would be left to train: the head of this task has no "
            f"weights. Received: freeze={run.freeze!r}, task={run.task!r}. "
            "Give --embedding.projection, or --freeze embeddings."
        )
    if run.dropout is not None:
        config = config.replace(
            hidden_dropout_prob=run.dropout,
            attention_probs_dropout_prob=run.dropout,
        )
    if run.depth is not None:
        try:
            config = config.replace(num_hidden_layers=run.depth)
        except AlbertError as error:
            raise AlbertError(
                f"`depth` does not fit {run.model}: {error} Give another "
                "--depth."
            ) from None
    if run.exits and config.num_hidden_layers == 1:
        raise AlbertError(
            "a model with a single layer cannot stop before it. Received: "
            f"exits={run.exits!r}. Leave --exits out, or give another --depth."
        )
    return config


def _model(
    run: FinetuneRun,
    pretrained: AlbertBackbone,
    config: AlbertConfig,
    names: tuple[str, ...] | None,
) -> AlbertModel:
    backbone = AlbertBackbone(config, remat=run.remat, dtype=run.precision)
    if run.depth is not None and not run.from_scratch:
        warm_start(backbone, pretrained)
    elif not run.from_scratch:
        backbone.set_weights(pretrained.get_weights())
    model = ALL_TASKS[run.task].head(backbone, names, head_options(run))
    _freeze(run, model)
    return model


def _freeze(run: FinetuneRun, model: AlbertModel) -> None:
    backbone = model.backbone
    pooler = backbone.pooler.weights
    if run.lora_rank is not None:
        backbone.enable_lora(run.lora_rank)  # freezes the pooler, too
        for weight in pooler:
            weight.trainable = True
    if run.freeze is not None:
        parts = backbone.embeddings.weights, backbone.encoder.weights, pooler
        for part in parts[: 1 + FROZEN.index(run.freeze)]:
            for weight in part:
                weight.trainable = False


def model_folder(
    run: FinetuneRun, start: AlbertConfig, predictor: Predictor
) -> ModelFolder:
    """The content of the folder that a run saves.

    `start` is the config of the pretrained model.
    """
    content = predictor.model, predictor.tokenizer, predictor.settings()
    if run.lora_rank is None and run.freeze is None:
        return ModelFolder(*content)
    return MergedModelFolder(*content, run.model, start)


def finish_adapter(folder: Path, report: dict) -> None:
    """Gives the adapter of a finished run the task and the calibration."""
    adapter = folder / ADAPTER_FOLDER
    if not adapter.is_dir():
        return
    if "calibration" in report:
        divide_classifier(adapter, report["calibration"]["temperature"])
    write_json(adapter / TASK_FILE, read_json(folder / TASK_FILE))
