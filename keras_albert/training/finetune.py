"""Fine-tuning: a pretrained encoder and a table -> a text classifier."""

import collections
import math
from pathlib import Path

import keras

from keras_albert.config import (
    LOG_FILE,
    AlbertError,
    FinetuneRun,
    OptimizerConfig,
    check_free,
    new_folder,
)
from keras_albert.data.tables import (
    Table,
    classification_dataset,
    label_index,
    read_table,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.heads import AlbertForSequenceClassification
from keras_albert.training.distribution import leave_gpu_to_backend
from keras_albert.training.folders import (
    CLASSIFICATION,
    ModelFolder,
    load_pretrained,
    write_report,
)
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.pretrain import KeepModel, progress_verbosity
from keras_albert.training.schedules import WarmupPolynomialDecay


def finetune(run: FinetuneRun) -> dict:
    """Runs it; returns and keeps the report.

    Raises:
        AlbertError: input that does not fit, before anything is written; or a
            loss that is not finite.
    """
    check_free(run.output)
    leave_gpu_to_backend()
    table = read_table(run.train, run.columns)
    labels = _label_names(table, run.train)
    held_out = run.validation and read_table(run.validation, run.columns)
    held_out_ids = held_out and label_index(
        held_out.labels, labels, run.validation, held_out.lines
    )
    pretrained, tokenizer = load_pretrained(run.model)
    config = pretrained.config
    if run.sequence_length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {run.sequence_length}."
        )
    output = new_folder(run.output)

    keras.utils.set_random_seed(run.seed)
    if run.dropout is not None:
        config = config.replace(
            hidden_dropout_prob=run.dropout,
            attention_probs_dropout_prob=run.dropout,
        )
    backbone = AlbertBackbone(config)
    if not run.from_scratch:
        backbone.set_weights(pretrained.get_weights())
    model = AlbertForSequenceClassification(
        backbone, num_labels=len(labels), dropout=run.classifier_dropout
    )
    steps = math.ceil(len(table.texts) / run.batch_size) * run.epochs
    schedule = WarmupPolynomialDecay(
        run.learning_rate, steps, int(run.warmup_share * steps)
    )
    compile_for_classification(
        model, make_optimizer(OptimizerConfig(optimizer="adamw"), schedule)
    )

    def batches(table, label_ids, seed):
        return classification_dataset(
            tokenizer,
            table,
            label_ids,
            sequence_length=run.sequence_length,
            batch_size=run.batch_size,
            seed=seed,
        )

    task = {
        "task": CLASSIFICATION,
        "labels": labels,
        "sequence_length": run.sequence_length,
        "pairs": table.pairs is not None,
        "columns": {"text": run.columns.text, "pair": run.columns.pair},
    }
    history = model.fit(
        batches(table, label_index(table.labels, labels, run.train), run.seed),
        epochs=run.epochs,
        validation_data=held_out and batches(held_out, held_out_ids, seed=None),
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            KeepModel(ModelFolder(model, tokenizer, task), output),
            keras.callbacks.CSVLogger(output / LOG_FILE),
        ],
        shuffle=False,  # the dataset does it
        verbose=progress_verbosity(),
    ).history
    report = {
        "labels": len(labels),
        "training_examples": len(table.texts),
        "training_loss": history["loss"][-1],
        "training_accuracy": history["accuracy"][-1],
        "from_scratch": run.from_scratch,
    }
    if held_out:
        report |= {
            "accuracy": history["val_accuracy"][-1],
            "majority_baseline": majority_baseline(held_out.labels),
            "count": len(held_out.texts),
        }
    write_report(output, report)
    print(report_line(report))
    return report


def compile_for_classification(
    model: AlbertForSequenceClassification,
    optimizer: keras.optimizers.Optimizer | str,
) -> None:
    """Cross-entropy of the labels, and accuracy; padding rows weigh 0."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        ],
    )


def majority_baseline(labels: list[str]) -> float:
    """Accuracy of always guessing the most frequent label."""
    return max(collections.Counter(labels).values()) / len(labels)


def report_line(report: dict) -> str:
    """The report for a reader."""
    if "accuracy" not in report:
        return (
            f"training accuracy {report['training_accuracy']:.3f}; nothing "
            "was held out (--validation)"
        )
    return (
        f"held-out accuracy {report['accuracy']:.3f} (always the most frequent "
        f"label: {report['majority_baseline']:.3f}; {report['count']:,} "
        "examples)"
    )


def _label_names(table: Table, path: Path) -> list[str]:
    names = sorted(set(table.labels))
    if len(names) < 2:
        raise AlbertError(
            f"{path}: expected two or more different labels. Received: {names}."
        )
    return names
