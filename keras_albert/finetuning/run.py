"""The command `finetune`: trains a pretrained encoder on a table."""

import contextlib
import dataclasses
import functools
import math
import shutil
from collections.abc import Callable

import keras
import numpy as np

from keras_albert.checkpoints.load import head_name, load_pretrained
from keras_albert.data.batches import Features, choose_lengths, training_dataset
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.distribution.backend import backend_and_device, opened
from keras_albert.distribution.devices import Devices
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import OWN_VALIDATION, FinetuneRun
from keras_albert.finetuning.data import (
    Tables,
    check_tables,
    held_out_line,
    longest_row,
    read_tables,
    reading_of,
    sample,
    with_text_column,
    work_of_steps,
)
from keras_albert.finetuning.decide import (
    calibrate_and_tune,
    with_tuned_threshold,
)
from keras_albert.finetuning.model import (
    compiled_model,
    continued_model,
    continuing,
    finetuned_config,
    finish_adapter,
    head_options,
    model_folder,
)
from keras_albert.finetuning.model_card import card, write_card
from keras_albert.finetuning.origin import check_models
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.recipes import RECIPES, choose_missing
from keras_albert.finetuning.report import (
    BAG_OF_WORDS,
    ON_TRAINING_ROWS,
    START,
    TEACHER,
    finetuned_lines,
    labels_text,
    print_skipped,
    report_classes,
    scores_beside,
    seeds_report,
)
from keras_albert.finetuning.teacher import Teacher, with_teacher
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.pretraining.config import PretrainRun
from keras_albert.storage import remove_folder, write_json
from keras_albert.tasks.question_answering.config import ReadingConfig
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task import LABEL
from keras_albert.tasks.task_file import task_of
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.text.unknown import check_readable, count_in_table
from keras_albert.training.config import CHECKPOINTS_FOLDER
from keras_albert.training.cost import fit_with_cost
from keras_albert.training.loop import Diverged, Timetable, Training
from keras_albert.training.model_folder import TASK_FILE, ModelFolder
from keras_albert.training.run_folder import (
    MADE_OF,
    SEED_FOLDER,
    STARTED_FROM,
    TAUGHT_BY,
    RunFolder,
    same_settings,
    write_report,
)
from keras_albert.training.run_log import LogRow


def finetune(run: FinetuneRun) -> dict:
    """Fine-tunes a model, or continues an interrupted run of these settings.

    Nothing is written if the input does not fit. Returns the report, which is
    also in the output folder; an empty dict in all processes but the first.
    """
    import_tensorflow()  # before it could open a GPU of the backend
    with opened(run.devices) as devices:
        devices.check_equal(same_settings(run))
        return _run(run, None, devices)


def _run(
    run: FinetuneRun, prepared: "_Prepared | None", devices: Devices
) -> dict:
    folder = RunFolder(run, devices)
    run = with_text_column(run)
    sources = [run.train]
    if run.validation not in (None, OWN_VALIDATION):
        sources.append(run.validation)
    report = folder.finished(sources, lambda: read_tables(run).checksums)
    if report:
        known = _made_of(run, prepared) if prepared else None
        devices.first(lambda: check_models(run, report, sources, known))
        if devices.is_first:  # it may have been killed just before
            _remove_checkpoints(run)
        print(f"{run.output} holds this run, and it is finished:")
        print("\n".join(finetuned_lines(report)))
        return report
    if prepared is None:
        prepared = devices.each(lambda: _prepare(run, devices))
        devices.check_equal(prepared.tables.checksums)
        start = None if run.from_scratch else prepared.start
        devices.check_same_models({"model": start, "teacher": prepared.teacher})
    train = _finetune_seeds if run.seeds > 1 else _finetune_once
    report = train(run, prepared, folder, devices)
    if devices.is_first:
        print("\n".join(finetuned_lines(report)))
        print(f"-> {run.output}")
    return report


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """Data, encoder and settings that all seeds of a run share."""

    tables: Tables
    # values of the settings that the user did not give
    chosen: dict[str, int | float]
    pretrained: AlbertBackbone
    # the model that the run starts from, if its head is trained further
    source: AlbertModel | None
    config: AlbertConfig  # of the model that is trained
    tokenizer: Tokenizer
    length: int  # most tokens of a row
    reading: ReadingConfig | None
    examples: Features
    # the held-out rows; if there are none, some of the training rows
    measured_on: Features
    teacher: str | None  # the checksum of its weights
    teacher_score: float | None  # on the held-out rows

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.tables.names

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        chosen = choose_lengths(self.examples.lengths, self.length)
        return tuple(np.union1d(chosen, self.length).tolist())

    @functools.cached_property
    def start(self) -> str:
        """The checksum of the weights that a run starts from."""
        return weights_checksum(self.source or self.pretrained)

    def predictor(self, run: FinetuneRun, model: AlbertModel) -> Predictor:
        """The model with everything that its task needs."""
        return Predictor(
            model,
            run.task,
            self.names,
            self.tokenizer,
            self.lengths,
            run.columns,
            self.reading,
            long_texts=run.long_texts,
        )


def _prepare(run: FinetuneRun, devices: Devices) -> _Prepared:
    """Reads and checks everything, and writes nothing."""
    task = ALL_TASKS[run.task]
    tables = read_tables(run)
    for table in filter(None, (tables.train, tables.held_out)):
        print_skipped(table)
    names = tables.names
    with devices.alone():
        pretrained, tokenizer = load_pretrained(run.model, dtype="float32")
        source = continued_model(run, names)
    run = continuing(run, source)
    config = finetuned_config(run, pretrained.config)
    devices.check(config)
    check_tables(run, tables, tokenizer, config)
    length = longest_row(run, pretrained.config)
    reading = reading_of(run, length, names)
    options = names, length, reading, run.long_texts
    examples = task.examples(tokenizer, tables.train, *options).as_rows()
    inputs, values = task.inputs(run.columns), tables.train.values
    found = count_in_table(tokenizer, examples.rows, values, inputs)
    check_readable(*found, tables.train.path, run.any_text)
    chosen = choose_missing(run, len(examples), pretrained.config)
    devices.check_batch(chosen.get("batch_size", run.batch_size))
    if run.class_weights:
        from sklearn.utils import class_weight  # late: it takes a second

        weight = class_weight.compute_sample_weight("balanced", examples.target)
        examples = dataclasses.replace(
            examples, weight=weight.astype("float32")
        )
    measured_as = reading
    if reading and tables.held_out:  # on which the threshold is chosen
        measured_as = dataclasses.replace(reading, threshold=None)
    measured_on = task.examples(
        tokenizer,
        tables.held_out or sample(tables.train),
        names,
        length,
        measured_as,
        run.long_texts,
    )
    taught, teacher, score = _taught(
        run, tables, examples, measured_on, devices
    )
    return _Prepared(
        tables=tables,
        chosen=chosen,
        pretrained=pretrained,
        source=source,
        config=config,
        tokenizer=tokenizer,
        length=length,
        reading=reading,
        examples=taught,
        measured_on=measured_on,
        teacher=teacher,
        teacher_score=score,
    )


def _taught(
    run: FinetuneRun,
    tables: Tables,
    examples: Features,
    measured_on: Features,
    devices: Devices,
) -> tuple[Features, str | None, float | None]:
    """The examples with the outputs of the teacher, its checksum and its score.

    The score is that on the held-out rows. Without a teacher the examples stay
    as they are.
    """
    if run.teacher is None:
        return examples, None, None
    task, names = ALL_TASKS[run.task], tables.names
    with devices.alone():
        teacher = Teacher(run, names)
        examples = with_teacher(examples, teacher.outputs(tables.train))
        if not tables.held_out:
            return examples, teacher.checksum, None
        outputs = teacher.outputs(tables.held_out)
    deciding = teacher.deciding(measured_on)
    score = task.measure(outputs, deciding, names).values[task.best]
    return examples, teacher.checksum, score


def _finetune_seeds(
    run: FinetuneRun, prepared: _Prepared, folder: RunFolder, devices: Devices
) -> dict:
    """Runs one seed after another; a seed that diverges has no report."""
    folder.claim()
    reports, diverged = {}, []
    for seed in range(run.seed, run.seed + run.seeds):
        print(f"seed {seed}")
        output = run.output / SEED_FOLDER.format(seed)
        one = dataclasses.replace(run, seed=seed, seeds=1, output=output)
        try:
            reports[seed] = _run(one, prepared, devices)
        except Diverged as error:
            print(f"seed {seed}: {error}")
            diverged.append(seed)
            continue
        except BaseException:  # a refusal, or Ctrl-C before a checkpoint
            _keep_or_remove(run, devices)
            raise
    if not devices.is_first:
        return {}
    if not reports:
        kept = _keep_or_remove(run, devices)
        raise AlbertError(
            f"every one of the {run.seeds} runs diverged. Lower "
            "--learning-rate or raise --warmup-share"
            + (", and choose another output." if kept else ".")
        )
    report = seeds_report(reports, diverged)
    write_report(run.output, report | _made_of(run, prepared))
    return report


def _keep_or_remove(run: FinetuneRun, devices: Devices) -> bool:
    """Removes the output if no seed has left a folder.

    Returns whether one has.
    """
    found = any(run.output.glob(SEED_FOLDER.format("*")))
    if devices.is_first and not found:
        with contextlib.suppress(OSError):  # the error of the run matters more
            remove_folder(run.output)
    return found


def _finetune_once(
    run: FinetuneRun, prepared: _Prepared, folder: RunFolder, devices: Devices
) -> dict:
    # The folder keeps the settings that were given, so that the same command
    # continues the run; from here on `run` also has the chosen ones.
    run = continuing(
        dataclasses.replace(run, **prepared.chosen), prepared.source
    )
    steps_per_epoch = math.ceil(len(prepared.examples) / run.batch_size)
    steps = run.steps or steps_per_epoch * run.epochs
    keras.utils.set_random_seed(run.seed)
    with devices.scope():
        model = compiled_model(
            run, prepared.pretrained, prepared.config, prepared.names, steps
        )
        rows = prepared.examples.rows
        ALL_TASKS[run.task].start_head(model, prepared.source, rows)
    predictor = prepared.predictor(run, model)
    _describe(run, prepared, steps)
    folder.claim()
    parts = prepared.examples, prepared.config, prepared.lengths
    work_of = work_of_steps(run, *parts, devices.replicas)
    every = run.validate_every or steps_per_epoch
    training = Training(
        model_folder(run, prepared.pretrained.config, predictor),
        run.output,
        lambda step: training_dataset(
            prepared.examples,
            np.array(prepared.lengths),
            batch_size=run.batch_size,
            seed=run.seed,
            epochs=math.ceil(steps / steps_per_epoch),
            start_step=step,
            host_index=devices.index,
            host_count=devices.count,
        ),
        Timetable(
            steps=steps,
            validate_every=every,
            checkpoint_every=run.checkpoint_every or every,
            keep_checkpoints=PretrainRun.keep_checkpoints,
        ),
        origin={
            "backend": keras.backend.backend(),
            "config": dataclasses.asdict(model.config),
            **prepared.tables.checksums,
            **({"teacher": prepared.teacher} if prepared.teacher else {}),
            **({} if run.from_scratch else {"model": prepared.start}),
        },
        validate=_validation(run, prepared, predictor, devices),
        best=ALL_TASKS[run.task].best,
        patience=run.patience,
        work_of=work_of,
        devices=devices,
    )
    kept, cost = fit_with_cost(training, work_of)
    if not devices.is_first:
        return {}
    report = _report_of(run, prepared, kept, kept["step"] / steps_per_epoch)
    report["cost"] = dataclasses.asdict(cost)
    report |= _measured(run, prepared, predictor, devices)
    _finish(run, prepared, model, report)
    return report


def _finish(
    run: FinetuneRun, prepared: _Prepared, model: AlbertModel, report: dict
) -> None:
    """Writes the card and the report; the run is finished with the report."""
    reads = prepared.length, prepared.reading
    write_card(run.output, card(run, report, model, prepared.names, *reads))
    finish_adapter(run.output, report)
    write_report(run.output, report)
    _remove_checkpoints(run)


def _validation(
    run: FinetuneRun,
    prepared: _Prepared,
    predictor: Predictor,
    devices: Devices,
) -> Callable[[Callable[[], bool]], LogRow] | None:
    """A function that scores the held-out rows, see `Training.validate`."""
    if prepared.tables.held_out is None:
        return None
    task, rows = ALL_TASKS[run.task], prepared.measured_on

    def validate(stopped: Callable[[], bool]) -> LogRow:
        outputs = predictor.outputs(
            rows, run.batch_size, stopped, compute=devices.outputs
        )
        if stopped():
            return {}
        values = task.held_out_loss(outputs, rows, prepared.names)
        values |= task.measure(outputs, rows, prepared.names).values
        row = {name: float(value) for name, value in values.items()}
        # In the last bits processes may differ, and disagree on the best model.
        return devices.first(lambda: row)

    return validate


def _report_of(
    run: FinetuneRun, prepared: _Prepared, kept: LogRow, epoch: float
) -> dict:
    """The part of the report that is known without scores."""
    tables = prepared.tables
    report = {
        "task": run.task,
        "labels": prepared.names and len(prepared.names),
        "training_examples": prepared.examples.count,
        "skipped": {
            "train": len(tables.train.skipped),
            "validation": tables.held_out and len(tables.held_out.skipped),
        },
        "training_loss": kept["loss"],
        "from_scratch": run.from_scratch,
        **_made_of(run, prepared),
        "chosen": prepared.chosen,
        "step": kept["step"],
        "epoch": epoch,
    }
    if tables.split:
        report["split"] = {
            "training_rows": len(tables.train),
            "held_out_rows": len(tables.held_out),
        }
    return report


def _made_of(run: FinetuneRun, prepared: _Prepared) -> dict:
    """The checksums of the data and the models that a run was made from."""
    return {
        MADE_OF: prepared.tables.checksums,
        STARTED_FROM: None if run.from_scratch else prepared.start,
        **({TAUGHT_BY: prepared.teacher} if prepared.teacher else {}),
    }


def _measured(
    run: FinetuneRun,
    prepared: _Prepared,
    predictor: Predictor,
    devices: Devices,
) -> dict:
    """Scores the saved model, and saves its thresholds and temperature."""
    task, names = ALL_TASKS[run.task], prepared.names
    examples, output = prepared.measured_on, run.output
    with devices.alone():
        model = ModelFolder.load(output).model
        best = dataclasses.replace(predictor, model=model)
        outputs = best.outputs(
            examples, run.batch_size, compute=devices.outputs
        )
        best, outputs, examples, report = calibrate_and_tune(
            run, best, outputs, examples
        )
    sizes = run.embedding.dimensions
    report |= task.scores_of_sizes(outputs, examples, sizes)
    if prepared.teacher_score is not None:
        report[TEACHER] = prepared.teacher_score
    if prepared.tables.held_out is None:
        return {ON_TRAINING_ROWS: report}
    if task.measures_start and not run.from_scratch:
        with devices.alone():
            start = dataclasses.replace(
                predictor,
                model=task.model_of(prepared.source or prepared.pretrained),
            )
            outputs = start.outputs(prepared.measured_on, run.batch_size)
        found = task.measure(outputs, prepared.measured_on, names)
        report |= scores_beside(START, found.values, task)
    of_words = task.linear_outputs(
        prepared.tables.train, prepared.tables.held_out, names
    )
    if of_words is not None:
        of_words, rows = list(of_words), prepared.measured_on
        if run.tune_threshold:  # which helps a model of words as well
            rows = with_tuned_threshold(task, of_words, rows)
        linear = task.measure(of_words, rows, names)
        report |= scores_beside(BAG_OF_WORDS, linear.values, task)
    if "threshold" in report:
        if task.reads_contexts:
            best = best.with_threshold(report["threshold"])
        write_json(output / TASK_FILE, best.settings())
    if task.has_classes:
        report |= report_classes(outputs, examples, names, output)
    return report


def _remove_checkpoints(run: FinetuneRun) -> None:
    """Removes the checkpoints of a finished run, which nothing will read."""
    shutil.rmtree(run.output / CHECKPOINTS_FOLDER, ignore_errors=True)


def _describe(run: FinetuneRun, prepared: _Prepared, steps: int) -> None:
    table, examples = prepared.tables.train, prepared.examples
    cut, length = examples.cut, prepared.length
    task = ALL_TASKS[run.task]
    what = task.too_long(length, prepared.reading)
    start = RECIPES[run.task].start if run.task in RECIPES else None
    if start and not run.from_scratch and task_of(run.model) != start:
        print(
            f"note: the paper starts {run.task} from a model that was "
            f"fine-tuned on {start}. To do so, give its folder as --model."
        )
    dropped = None if run.from_scratch else head_name(run.model)
    if prepared.source is not None:
        head = task.describe_head(head_options(run))
        print(f"{head} of {run.model} is trained further")
    elif dropped:
        print(
            f"note: {run.model} already has a head ({dropped}): it is dropped, "
            f"and a new one is trained for {run.task}."
        )
    known = labels_text(table.values[LABEL]) if task.has_classes else ""
    print(
        f"{len(table):,} examples{known}; {steps:,} steps on "
        f"{backend_and_device()}"
        + (f"; {cut:,} {what} and cut" if cut else ""),
        flush=True,
    )
    if line := held_out_line(run, prepared.tables):
        print(line)
    if prepared.chosen:
        options = " ".join(
            f"--{name.replace('_', '-')} {value:g}"
            for name, value in prepared.chosen.items()
        )
        width = prepared.pretrained.config.hidden_size
        print(
            f"chosen for {len(examples):,} rows and a model of width {width}: "
            f"{options}"
        )
    if len(examples) > examples.count:
        lost = 0 if examples.weight is None else (examples.weight == 0).sum()
        why = f"; {lost:,} have an answer without pieces" if lost else ""
        print(f"read in {len(examples):,} {task.rows} of {length} tokens{why}")
