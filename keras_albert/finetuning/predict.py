"""The command `predict`: predictions for the rows of a file, in order."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator

from keras_albert.data.glue import GLUE
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.saved_dataset import is_saved_dataset
from keras_albert.data.tables import check_has_columns, naming_columns
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import PredictRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import (
    checked_parts,
    print_skipped,
)
from keras_albert.storage import (
    check_absent,
    check_new_file,
    check_not_a_file,
    new_file,
    raises_disk_full,
    replacing,
)
from keras_albert.tasks.config import model_names
from keras_albert.tasks.question_answering.squad import SQUAD_EXTENSION
from keras_albert.tasks.question_answering.task import submitted
from keras_albert.tasks.registry import submissions, submit
from keras_albert.text.files import COMPRESSED_SUFFIXES

# Rows are read, sorted by length, predicted and written in parts of this many,
# so that memory does not grow with the file.
PREDICTED_AT_ONCE = 10_000
# File extensions that `predict` refuses for its output.
REFUSED_SUFFIXES = {".csv", ".tsv", ".parquet", *COMPRESSED_SUFFIXES}


@naming_columns("--columns.{}")
def predict(run: PredictRun) -> None:
    """Writes each row as a JSON object, with the predicted columns added.

    Given the folder of GLUE, it writes the files to submit; given SQuAD's JSON,
    the files of the official scorer. Nothing is written if there is an error in
    the model or the data, or the output exists.
    """
    import_tensorflow()  # before it could open a GPU of the backend
    is_squad = run.data.suffix.lower() == SQUAD_EXTENSION
    if not is_squad and (run.n_best_output or run.null_odds_output):
        raise AlbertError(
            "`n_best_output` and `null_odds_output` are for SQuAD's JSON. "
            f"Received: {run.data}. Leave them out."
        )
    if run.data.is_dir() and not is_saved_dataset(run.data):
        _predict_for_glue(run)
        return
    if run.any_size:
        raise AlbertError(
            f"`any_size` is for a benchmark's folder. Received: {run.data}. "
            "Leave --any-size out."
        )
    if is_squad:
        _predict_for_squad(run)
        return
    if run.output is None:
        with raises_disk_full("standard output"):
            for line in _predictions(run):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return
    check_new_file(run.output)
    if run.output.suffix.lower() in REFUSED_SUFFIXES:
        raise AlbertError(
            "predictions are written as JSONL, a JSON object in each line. "
            f"Received: {run.output}. Name a file that ends in .jsonl."
        )
    count = 0
    with new_file(run.output) as file:
        for line in _predictions(run):
            file.write(line)
            count += 1
    print(f"{count:,} predictions -> {run.output}")


def _predictions(run: PredictRun) -> Iterator[bytes]:
    """Yields a line for each row, after the whole file was checked."""
    if run.columns.text is not None:
        check_has_columns(run.data, "columns.text", run.columns.text)
    predictor = Predictor.load(
        run.model, average=run.average, **run.predictor_arguments
    )

    added = predictor.definition.adds
    reading = run.data, run.skip_bad
    count, cut, blank = 0, 0, 0
    for table, features in checked_parts(
        predictor,
        *reading,
        run.any_text,
        PREDICTED_AT_ONCE,
        file=sys.stderr,  # predictions may go to standard output
    ):
        cut += features.cut if features else 0
        for row in table.rows:
            if taken := row.keys() & added:
                raise AlbertError(
                    f"{run.data} has columns that would be replaced: "
                    f"{', '.join(sorted(taken))}. Rename them."
                )
        count += len(table)
        if run.data.suffix.lower() == ".txt":
            blank += sum(row == dict.fromkeys(row, "") for row in table.rows)
    if blank:
        print(
            f"{blank:,} blank lines: each is predicted as an empty text, so "
            "that line n of the predictions is for line n of the file",
            file=sys.stderr,
        )
    predictor.warn_of_cut(cut, count)
    done = 0
    for table in filter(len, predictor.parts(*reading, PREDICTED_AT_ONCE)):
        features = predictor.features(table)
        last = done + len(table)
        title = f"Predicting {done + 1:,} to {last:,} of {count:,}"
        outputs = predictor.outputs(features, run.batch_size, title=title)
        found = predictor.decode(outputs, features)
        for row, columns in zip(table.rows, found, strict=True):
            # Parquet has types that JSON lacks, such as dates: as text.
            line = json.dumps(
                without_nan({**row, **columns}),
                ensure_ascii=False,
                allow_nan=False,
                default=str,
            )
            # A lone surrogate, which JSON may hold, becomes an escape again.
            yield f"{line}\n".encode("utf-8", errors="backslashreplace")
        done = last


def without_nan(value: object) -> object:
    """Replaces numbers that are not finite, which JSON lacks, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):  # a map of Parquet is a list of tuples
        return [*map(without_nan, value)]
    return value


def _predict_for_squad(run: PredictRun) -> None:
    predictor = Predictor.load(
        run.model, average=run.average, **run.predictor_arguments
    )
    if not predictor.definition.reads_contexts:
        raise AlbertError(
            f"{run.data} ends in {SQUAD_EXTENSION}, as SQuAD's files do, and "
            f"{model_names(run.model)} was trained for {predictor.task}. "
            "Convert or rename the file."
        )
    paths = run.output, run.n_best_output, run.null_odds_output
    wanted = [path for path in paths if path is not None]
    if len(set(wanted)) < len(wanted):
        raise AlbertError("two outputs have the same path. Give each its own.")
    for path in wanted:
        check_new_file(path)
    table = predictor.read(run.data, labelled=False, skip_bad=run.skip_bad)
    print_skipped(table, file=sys.stderr)
    features = predictor.readable_features(table, run.any_text)
    predictor.warn_of_cut(features.cut, features.count)
    outputs = predictor.outputs(features, run.batch_size)
    ids = [row["id"] for row in table.rows]
    files = submitted(outputs, features, predictor.labels, ids)
    with contextlib.ExitStack() as stack:  # on a full disk there is no file
        for path, content in zip(paths, files, strict=True):
            if path is not None:
                unfinished = stack.enter_context(replacing(path))
                unfinished.write_text(json.dumps(content, indent=4) + "\n")
    for path in wanted:
        print(
            f"{len(ids):,} predictions -> {path}",
            file=sys.stderr if run.output is None else sys.stdout,
        )
    if run.output is None:
        print(json.dumps(files[0], indent=4))


def _predict_for_glue(run: PredictRun) -> None:
    predictor = Predictor.load(
        run.model, average=run.average, **run.predictor_arguments
    )
    if not predictor.definition.is_of_glue:
        raise AlbertError(
            f"{run.data} is a folder, and {model_names(run.model)} was not "
            "fine-tuned on a task of GLUE. Name a file."
        )
    if run.skip_bad:
        raise AlbertError(
            "a benchmark takes predictions for every row. Leave --skip-bad out."
        )
    if run.columns != PredictRun.columns:
        raise AlbertError(
            "a published task has columns of its own. Leave --columns out."
        )
    if run.output is None:
        raise AlbertError(
            "the files to submit need a folder. Give it as --output."
        )
    check_not_a_file(run.output)
    tables = submissions(predictor.task, run.data, run.any_size)
    for task, split, _ in tables:  # those of other tasks may be there
        path = run.output / GLUE[task].submission_of(split)
        check_absent(path)
    every = [
        predictor.readable_features(table, run.any_text)
        for _, _, table in tables
    ]
    # All are computed before a file is written: one that exists would refuse
    # the same command later.
    found = []
    for (task, split, _), features in zip(tables, every, strict=True):
        predictor.warn_of_cut(features.cut, features.count)
        title = f"{task} {split}"
        found.append(predictor.outputs(features, run.batch_size, title=title))
    with contextlib.ExitStack() as undo:  # so a full disk leaves none either
        written = []
        for (task, split, table), outputs in zip(tables, found, strict=True):
            path = submit(run.output, task, split, table, outputs)
            undo.callback(path.unlink)
            written.append(
                f"{len(table):,} predictions of {task} {split} -> {path}"
            )
        undo.pop_all()
    print("\n".join(written))
