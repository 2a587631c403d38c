"""Fine-tuning: a pretrained encoder and a table -> a model for a task."""

import collections
import dataclasses
import math
import shutil
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_albert.config import (
    CHECKPOINTS_FOLDER,
    CONFUSION_FILE,
    AlbertConfig,
    AlbertError,
    FinetuneRun,
    OptimizerConfig,
    PretrainRun,
)
from keras_albert.data.features import (
    Features,
    choose_lengths,
    training_dataset,
)
from keras_albert.data.tables import Table, read_table
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.storage import checksum, claim_folder, holds_run
from keras_albert.text.tokenizer import (
    SHORTEST_PAIR,
    SHORTEST_SINGLE,
)
from keras_albert.training.curves import Row, can_draw
from keras_albert.training.distribution import leave_gpu_to_backend
from keras_albert.training.fitting import Timetable, fit_into_folder
from keras_albert.training.folders import (
    ModelFolder,
    Predictor,
    finished_report,
    load_pretrained,
    write_report,
)
from keras_albert.training.metrics import (
    ClassReport,
    class_report,
    draw_confusion,
    report_text,
)
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay
from keras_albert.training.tasks import (
    LABEL,
    TASKS,
    Outputs,
    flat,
)

SHOWN_LABELS = 8  # of the most frequent, before a run
NO_LIMIT = 2**30  # tokens
SHOWN_SKIPPED = 3  # of the rows that were left out


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
        print_report(report)
        return report
    leave_gpu_to_backend()
    task = TASKS[run.task]
    fields = task.fields(run.columns, labelled=True)
    table = read_table(run.train, fields, run.skip_bad)
    print_skipped(table)
    names = task.names(table)
    held_out = run.validation and read_table(
        run.validation, fields, run.skip_bad
    )
    if held_out:
        print_skipped(held_out)
    pretrained, tokenizer = load_pretrained(run.model)
    length = _longest(run, pretrained.config)
    examples = task.features(tokenizer, table, names, length)
    if run.class_weights:
        examples = dataclasses.replace(
            examples, weight=balanced_weights(examples.target)
        )
    # The last length holds any text that the model may meet.
    lengths = np.union1d(choose_lengths(examples.lengths, length), length)
    measured_on = held_out and task.features(tokenizer, held_out, names, length)
    output = run.output if goes_on else claim_folder(run.output, run)

    keras.utils.set_random_seed(run.seed)
    model = _fresh_model(run, pretrained, names)
    steps_per_epoch = math.ceil(len(examples) / run.batch_size)
    steps = steps_per_epoch * run.epochs
    schedule = WarmupPolynomialDecay(
        run.learning_rate, steps, int(run.warmup_share * steps)
    )
    compile_for(
        run.task,
        model,
        make_optimizer(OptimizerConfig(optimizer="adamw"), schedule),
    )
    predictor = Predictor(
        model,
        tokenizer,
        run.task,
        names,
        tuple(lengths.tolist()),
        run.columns,
    )
    whole = task.features(tokenizer, table, names, NO_LIMIT).lengths
    _describe(run, table, (whole > length).sum(), length, steps)

    def validate(stopped: Callable[[], bool]) -> Row:
        outputs = predictor.outputs(measured_on, run.batch_size, stopped)
        if stopped():
            return {}
        logits, target = flat(outputs, measured_on)
        loss = task.loss()(target, logits)
        scores = task.scores(outputs, measured_on, names)
        return {"loss": float(ops.convert_to_numpy(loss)), **scores.values}

    kept = fit_into_folder(
        ModelFolder(model, tokenizer, predictor.settings()),
        output,
        lambda step: training_dataset(
            examples,
            lengths,
            batch_size=run.batch_size,
            seed=run.seed,
            epochs=run.epochs,
            start_step=step,
        ),
        Timetable(
            steps=steps,
            validate_every=steps_per_epoch,
            checkpoint_every=steps_per_epoch,
            keep_checkpoints=PretrainRun.keep_checkpoints,
        ),
        origin={
            "backend": keras.backend.backend(),
            "config": dataclasses.asdict(model.config),
            "train": checksum(run.train),
            "validation": run.validation and checksum(run.validation),
        },
        validate=validate if held_out else None,
        best=task.best,
        patience=run.patience,
    )
    report = {
        "task": run.task,
        "labels": names and len(names),
        "training_examples": len(examples),
        "training_loss": kept["loss"],
        "from_scratch": run.from_scratch,
        "epoch": kept["step"] // steps_per_epoch,
    }
    if held_out:
        best = dataclasses.replace(
            predictor, model=ModelFolder.load(output).model
        )
        outputs = best.outputs(measured_on, run.batch_size)
        report |= scores_report(run.task, outputs, measured_on, names)
        if run.task == "classification":
            of_classes = class_report_of(outputs, measured_on, names)
            report |= of_classes.as_dict()
            print(report_text(of_classes))
            if can_draw():
                draw_confusion(of_classes, output / CONFUSION_FILE)
    write_report(output, report)
    shutil.rmtree(output / CHECKPOINTS_FOLDER)  # nothing goes on from them
    print_report(report)
    print(f"-> {output}")
    return report


def compile_for(
    task: str, model: keras.Model, optimizer: keras.optimizers.Optimizer | str
) -> None:
    """The task's loss; rows and tokens that do not count weigh 0."""
    model.compile(optimizer=optimizer, loss=TASKS[task].loss())


def balanced_weights(target: np.ndarray) -> np.ndarray:
    """float32 [N]: each class counts the same in all, and 1 on average.

    Three zeros and a one: 2/3 for each zero, 2 for the one.
    """
    counts = np.bincount(target)
    present = (counts > 0).sum()
    return (len(target) / (present * counts[target])).astype("float32")


def _longest(run: FinetuneRun, config: AlbertConfig) -> int:
    """Tokens of the longest row; AlbertError if the model cannot have it."""
    length = run.sequence_length or config.max_position_embeddings
    if length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {length}. Lower --sequence-length."
        )
    pairs = run.columns.pair is not None or run.task == "choice"
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
    return length


def _fresh_model(run: FinetuneRun, pretrained: AlbertBackbone, names):
    config = pretrained.config
    if run.dropout is not None:
        config = config.replace(
            hidden_dropout_prob=run.dropout,
            attention_probs_dropout_prob=run.dropout,
        )
    backbone = AlbertBackbone(config, remat=run.remat, dtype=run.precision)
    if not run.from_scratch:
        backbone.set_weights(pretrained.get_weights())
    return TASKS[run.task].head(backbone, names, run.classifier_dropout)


# What a user reads.


def scores_report(
    task: str, outputs: Outputs, features: Features, names
) -> dict:
    """Scores, the best constant answer's, and what is to be known of them."""
    scores = TASKS[task].scores(outputs, features, names)
    return {
        **scores.values,
        "best": TASKS[task].best,
        "baseline": TASKS[task].guess(features),
        "count": len(features),
        "remarks": list(scores.remarks),
    }


def class_report_of(outputs: Outputs, features: Features, names) -> ClassReport:
    """Of a classification."""
    predicted = np.stack(outputs).argmax(-1)
    return class_report(features.target, predicted, names)


def scores_lines(report: dict, examples: str = "held-out ") -> list[str]:
    """A report for a reader, with what is known of the examples.

    "held-out accuracy 0.750, matthews 0.500 (always the most frequent label:
    accuracy 0.600; 40 examples)"
    """
    best, guess = report["best"], report["baseline"]
    known = {"best", "baseline", "count", "remarks"}
    others = [
        name
        for name, value in report.items()
        if name not in known | {best}
        and isinstance(value, float)
        and not name.startswith("training_")
    ]
    shown = ", ".join(
        f"{name.replace('_', ' ')} {report[name]:.3f}"
        for name in [best, *others]
    )
    count = f"{report['count']:,} examples"
    if guess is None:
        return [f"{examples}{shown} ({count})", *report["remarks"]]
    verdict = "" if report[best] > guess else ": no better than guessing"
    return [
        f"{examples}{shown} (always the most frequent label: {best} "
        f"{guess:.3f}; {count}){verdict}",
        *report["remarks"],
    ]


def print_report(report: dict) -> None:
    """The report of a run for a reader."""
    if "best" in report:
        for line in scores_lines(report):
            print(line)
    else:
        print(
            f"training loss {report['training_loss']:.3f}; nothing was held "
            "out (--validation)"
        )


def print_skipped(table: Table) -> None:
    """How many rows were left out, and the first of them."""
    if table.skipped:
        print(f"{table.path}: {len(table.skipped):,} bad rows are left out:")
        for fault in table.skipped[:SHOWN_SKIPPED]:
            print(f"  {fault}")


def _describe(
    run: FinetuneRun,
    table: Table,
    cut: int,
    length: int,
    steps: int,
) -> None:
    known = ""
    if run.task == "classification":
        counts = collections.Counter(table.values[LABEL])
        shown = ", ".join(
            f"{label} {count}"
            for label, count in counts.most_common(SHOWN_LABELS)
        )
        more = ", ..." if len(counts) > SHOWN_LABELS else ""
        known = f", {len(counts)} labels ({shown}{more})"
    print(
        f"{len(table):,} examples{known}; {steps:,} steps on "
        f"{keras.backend.backend()}"
        + (f"; {cut:,} are longer than {length} tokens and cut" if cut else ""),
        flush=True,
    )
