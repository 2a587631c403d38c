"""Pretraining: token shards -> a folder with a pretrained model."""

import dataclasses
import math
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

from keras_albert.config import (
    LOG_FILE,
    VARIANTS,
    AlbertConfig,
    AlbertError,
    PretrainRun,
    check_free,
    new_folder,
)
from keras_albert.data.pretraining import (
    pretraining_dataset,
    validation_dataset,
)
from keras_albert.data.shards import ShardSet
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.heads import AlbertForPretraining
from keras_albert.training.distribution import leave_gpu_to_backend
from keras_albert.training.folders import (
    PRETRAINING,
    ModelFolder,
    write_report,
)
from keras_albert.training.losses import WeightedCrossEntropy
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay


def pretrain(run: PretrainRun) -> dict:
    """Runs it; returns and keeps the report.

    Raises:
        AlbertError: input that does not fit, before anything is written; or a
            loss that is not finite, the last good model being kept.
    """
    check_free(run.output)
    leave_gpu_to_backend()
    shards = ShardSet.open(run.data)
    validation = run.validation and ShardSet.open(run.validation)
    for opened in (shards, validation):
        if opened:
            opened.verify()
    config = (
        AlbertConfig.from_json(run.config)
        if run.config
        else VARIANTS[run.variant]
    )
    _check_fit(run, config, shards, validation)
    tokenizer = shards.tokenizer()
    train_batches = pretraining_dataset(
        shards,
        run.examples,
        batch_size=run.batch_size,
        seed=run.seed,
        steps=run.steps,
    )
    held_out = validation and validation_dataset(
        validation, run.examples, batch_size=run.batch_size
    )
    if held_out is not None and run.validation_steps is not None:
        held_out = held_out.take(run.validation_steps)
    output = new_folder(run.output)

    keras.utils.set_random_seed(run.seed)
    model = AlbertForPretraining(AlbertBackbone(config))
    compile_for_pretraining(
        model,
        make_optimizer(
            run.optimizer,
            WarmupPolynomialDecay(
                run.optimizer.learning_rate, run.steps, run.warmup_steps
            ),
        ),
    )
    _describe(run, config, model, shards)
    task = {
        "task": PRETRAINING,
        "examples": dataclasses.asdict(run.examples),
    }
    steps_per_epoch = min(run.validate_every, run.steps)
    with warnings.catch_warnings():
        # The last epoch is shorter where `steps` is no multiple.
        warnings.filterwarnings("ignore", "Your input ran out of data")
        history = model.fit(
            train_batches,
            epochs=math.ceil(run.steps / steps_per_epoch),
            steps_per_epoch=steps_per_epoch,
            validation_data=held_out,
            callbacks=[
                keras.callbacks.TerminateOnNaN(),
                KeepModel(ModelFolder(model, tokenizer, task), output),
                keras.callbacks.CSVLogger(output / LOG_FILE),
            ],
            shuffle=False,  # the dataset does it
            verbose=progress_verbosity(),
        )
    report = {
        "steps": run.steps,
        "examples_seen": run.steps * run.batch_size,
        "parameters": model.count_params(),
        "training_loss": history.history["loss"][-1],
    }
    if held_out is not None:
        report["held_out"] = held_out_report(
            {
                name.removeprefix("val_"): values[-1]
                for name, values in history.history.items()
                if name.startswith("val_")
            },
            held_out,
        )
    write_report(output, report)
    for line in report_lines(report):
        print(line)
    return report


def compile_for_pretraining(
    model: AlbertForPretraining, optimizer: keras.optimizers.Optimizer | str
) -> None:
    """Both published losses with equal weight, and both accuracies."""

    def accuracy():
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    model.compile(
        optimizer=optimizer,
        loss={"mlm": WeightedCrossEntropy(), "sop": WeightedCrossEntropy()},
        weighted_metrics={"mlm": accuracy(), "sop": accuracy()},
    )


class KeepModel(keras.callbacks.Callback):
    """Keeps the newest good model; a loss that is not finite ends the run."""

    def __init__(self, content: ModelFolder, folder: Path):
        super().__init__()
        self.content = content
        self.folder = folder

    def on_epoch_end(self, epoch, logs=None):
        """Saves, or raises AlbertError."""
        loss = logs["loss"]
        if not math.isfinite(loss):
            step = int(self.content.model.optimizer.iterations)
            raise AlbertError(
                f"The loss became {loss} by step {step}. {self.folder} keeps "
                "the last good model, if there was one. Lower the learning "
                "rate or lengthen the warm-up, and start again in another "
                "output folder."
            )
        self.content.save(self.folder)


def progress_verbosity() -> int:
    """Keras: a moving bar on a terminal, a line per epoch in a log."""
    return 1 if sys.stdout.isatty() else 2


def held_out_report(measured: dict, batches) -> dict:
    """Accuracies on held-out examples beside the best constant guess.

    Args:
        measured: `mlm_accuracy`, `sop_accuracy` and losses of `evaluate`.
        batches: the (x, y, sample_weight) that were evaluated.
    """
    mlm_labels, sop_labels = [], []
    for _, y, weight in batches.as_numpy_iterator():
        mlm_labels.append(y["mlm"][weight["mlm"] > 0])
        sop_labels.append(y["sop"][weight["sop"] > 0])
    mlm_labels = np.concatenate(mlm_labels)
    sop_labels = np.concatenate(sop_labels)
    return {
        "mlm_loss": measured["mlm_loss"],
        "mlm_accuracy": measured["mlm_accuracy"],
        "mlm_baseline": _best_constant_guess(mlm_labels),
        "mlm_count": len(mlm_labels),
        "sop_loss": measured["sop_loss"],
        "sop_accuracy": measured["sop_accuracy"],
        "sop_baseline": 0.5,
        "sop_count": len(sop_labels),
    }


def report_lines(report: dict) -> list[str]:
    """The report for a reader."""
    if "held_out" not in report:
        return [
            f"training loss {report['training_loss']:.3f}; nothing was held "
            "out (--validation)"
        ]
    held_out = report["held_out"]
    sop_error = 1.96 * math.sqrt(0.25 / max(held_out["sop_count"], 1))
    return [
        f"held-out masked-LM accuracy      {held_out['mlm_accuracy']:.3f}  "
        f"(always the most frequent token: {held_out['mlm_baseline']:.3f}; "
        f"{held_out['mlm_count']:,} predictions)",
        f"held-out sentence-order accuracy {held_out['sop_accuracy']:.3f}  "
        f"(guessing: {held_out['sop_baseline']:.3f}, 95 % of guessers within "
        f"+-{sop_error:.3f}; {held_out['sop_count']:,} pairs)",
    ]


def _best_constant_guess(labels: np.ndarray) -> float:
    return (
        float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0
    )


def _check_fit(
    run: PretrainRun,
    config: AlbertConfig,
    shards: ShardSet,
    validation: ShardSet | None,
) -> None:
    if config.vocab_size != shards.vocab_size:
        raise AlbertError(
            f"The model's vocab_size is {config.vocab_size}, the shards in "
            f"{run.data} were made with {shards.vocab_size} pieces. Set "
            "`vocab_size` in the config, or prepare with another vocabulary."
        )
    if run.examples.sequence_length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {run.examples.sequence_length}."
        )
    if validation and validation.fingerprint != shards.fingerprint:
        raise AlbertError(
            f"{run.validation} was prepared with another vocabulary than "
            f"{run.data}. Prepare both with the same one."
        )


def _describe(run, config, model, shards) -> None:
    print(
        f"{model.count_params():,} parameters, {config.num_hidden_layers} "
        f"layers of {config.hidden_size}; {shards.num_tokens:,} tokens in "
        f"{shards.num_documents:,} documents; {run.steps:,} steps of "
        f"{run.batch_size} x {run.examples.sequence_length} tokens on "
        f"{keras.backend.backend()}"
    )
