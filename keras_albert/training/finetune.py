"""Fine-tuning: a pretrained encoder and a table -> a text classifier."""

import collections
import dataclasses
import math
import shutil
from pathlib import Path

import keras

from keras_albert.config import (
    CHECKPOINTS_FOLDER,
    AlbertError,
    FinetuneRun,
    OptimizerConfig,
    PretrainRun,
)
from keras_albert.data.tables import (
    Table,
    classification_dataset,
    label_index,
    pack_rows,
    read_table,
)
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.storage import checksum, claim_folder, holds_run
from keras_albert.text.tokenizer import (
    SHORTEST_PAIR,
    SHORTEST_SINGLE,
    Tokenizer,
)
from keras_albert.training.distribution import leave_gpu_to_backend
from keras_albert.training.fitting import Timetable, fit_into_folder
from keras_albert.training.folders import (
    CLASSIFICATION,
    ModelFolder,
    finished_report,
    load_pretrained,
    write_report,
)
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay

SHOWN_LABELS = 8  # of the most frequent, before a run
MANY_LABELS = 20  # fewer are believed in a table of any size
LONGEST = 2**30  # tokens: no limit


def finetune(run: FinetuneRun) -> dict:
    """Runs it, or goes on with it; returns and keeps the report.

    Raises:
        AlbertError: input that does not fit, before anything is written; or a
            loss that is not finite.
    """
    goes_on = holds_run(run.output, run)
    report = finished_report(run.output)
    if report:
        print(f"{run.output} holds this run, and it is finished:")
        print(report_line(report))
        return report
    leave_gpu_to_backend()
    table = read_table(run.train, run.columns)
    labels = _label_names(table, run.train)
    label_ids = label_index(table.labels, labels, run.train)
    held_out = run.validation and read_table(run.validation, run.columns)
    held_out_ids = held_out and label_index(
        held_out.labels, labels, run.validation, held_out.lines
    )
    pretrained, tokenizer = load_pretrained(run.model)
    config = pretrained.config
    length = run.sequence_length or config.max_position_embeddings
    if length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {length}. Lower --sequence-length."
        )
    pairs = table.pairs is not None
    shortest = SHORTEST_PAIR if pairs else SHORTEST_SINGLE
    if length < shortest:
        raise AlbertError(
            f"`sequence_length` must be at least {shortest} for "
            f"{'pairs' if pairs else 'single texts'}. Received: {length}. "
            "Raise --sequence-length."
        )
    if pairs and config.type_vocab_size < 2:
        raise AlbertError(
            "Pairs have two segments: the model's `type_vocab_size` must be 2 "
            f"or more. Received: {config.type_vocab_size}."
        )
    output = run.output if goes_on else claim_folder(run.output, run)

    keras.utils.set_random_seed(run.seed)
    if run.dropout is not None:
        config = config.replace(
            hidden_dropout_prob=run.dropout,
            attention_probs_dropout_prob=run.dropout,
        )
    backbone = AlbertBackbone(config, remat=run.remat, dtype=run.precision)
    if not run.from_scratch:
        backbone.set_weights(pretrained.get_weights())
    model = AlbertForSequenceClassification(
        backbone, num_labels=len(labels), dropout=run.classifier_dropout
    )
    steps_per_epoch = math.ceil(len(table.texts) / run.batch_size)
    steps = steps_per_epoch * run.epochs
    schedule = WarmupPolynomialDecay(
        run.learning_rate, steps, int(run.warmup_share * steps)
    )
    compile_for_classification(
        model, make_optimizer(OptimizerConfig(optimizer="adamw"), schedule)
    )

    def batches(table, label_ids, seed, epochs=1):
        return classification_dataset(
            tokenizer,
            table,
            label_ids,
            sequence_length=length,
            batch_size=run.batch_size,
            seed=seed,
            epochs=epochs,
        )

    _describe(table, tokenizer, length, steps)
    task = {
        "task": CLASSIFICATION,
        "labels": labels,
        "sequence_length": length,
        "pairs": pairs,
        "columns": dataclasses.asdict(run.columns),
    }

    def batches_from(step: int):
        # The rows before are packed again, which takes no time.
        return batches(table, label_ids, run.seed, run.epochs).skip(step)

    reached = fit_into_folder(
        ModelFolder(model, tokenizer, task),
        output,
        batches_from,
        Timetable(
            steps=steps,
            validate_every=steps_per_epoch,
            checkpoint_every=steps_per_epoch,
            keep_checkpoints=PretrainRun.keep_checkpoints,
        ),
        origin={
            "backend": keras.backend.backend(),
            "config": dataclasses.asdict(config),
            "train": checksum(run.train),
            "validation": run.validation and checksum(run.validation),
        },
        validation=held_out and batches(held_out, held_out_ids, seed=None),
    )
    report = {
        "labels": len(labels),
        "training_examples": len(table.texts),
        "training_loss": reached["loss"],
        "training_accuracy": reached["accuracy"],
        "from_scratch": run.from_scratch,
    }
    if held_out:
        report |= {
            "accuracy": reached["val_accuracy"],
            "majority_baseline": majority_baseline(held_out.labels),
            "count": len(held_out.texts),
        }
    write_report(output, report)
    shutil.rmtree(output / CHECKPOINTS_FOLDER)  # nothing goes on from them
    print(report_line(report))
    print(f"-> {output}")
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


def report_line(report: dict, examples: str = "held-out ") -> str:
    """The report for a reader, with what is known of the examples."""
    if "accuracy" not in report:
        return (
            f"training accuracy {report['training_accuracy']:.3f}; nothing "
            "was held out (--validation)"
        )
    better = report["accuracy"] > report["majority_baseline"]
    verdict = "" if better else ": no better than guessing"
    return (
        f"{examples}accuracy {report['accuracy']:.3f} (always the most "
        f"frequent label: {report['majority_baseline']:.3f}; "
        f"{report['count']:,} examples){verdict}"
    )


def _describe(
    table: Table, tokenizer: Tokenizer, length: int, steps: int
) -> None:
    counts = collections.Counter(table.labels).most_common(SHOWN_LABELS)
    shown = ", ".join(f"{label} {count}" for label, count in counts)
    more = ", ..." if len(counts) < len(set(table.labels)) else ""
    rows = pack_rows(tokenizer, table.texts, table.pairs, LONGEST)
    cut = sum(len(tokens) > length for tokens, _ in rows)
    print(
        f"{len(table.texts):,} examples, {len(set(table.labels))} labels "
        f"({shown}{more}); {steps:,} steps on {keras.backend.backend()}"
        + (f"; {cut:,} are longer than {length} tokens and cut" if cut else ""),
        flush=True,
    )


def _label_names(table: Table, path: Path) -> list[str]:
    names = sorted(set(table.labels))
    if len(names) < 2:
        raise AlbertError(
            f"{path}: expected two or more different labels. Received: {names}."
        )
    if len(names) > max(MANY_LABELS, len(table.labels) // 2):
        raise AlbertError(
            f"{path}: {len(names)} different labels in {len(table.labels)} "
            f"rows ({names[0]!r:.40}, {names[1]!r:.40}, ...). Name the column "
            "of the labels with --columns.label."
        )
    return names
