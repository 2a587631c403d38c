"""The command `embed`: a vector for each text of a file.

The vectors are those of a model, or of one that `export` has written.

The file is read, and the vectors are written, in parts of at most ROWS_AT_ONCE
texts: memory does not grow with the file, and an interrupted run continues
after the last part that was written whole.

Letters: N texts, D size of the vectors.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.saved_dataset import checksum_of_table
from keras_albert.data.tables import (
    Table,
    check_has_columns,
    check_table,
    naming_columns,
)
from keras_albert.distribution.config import available_cores
from keras_albert.errors import AlbertError, optional_import
from keras_albert.exports.config import EmbedRun
from keras_albert.exports.load import (
    checksum_of_export,
    is_exported,
    load_exported,
)
from keras_albert.finetuning.predict import without_nan
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import checked_parts
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import check_model
from keras_albert.modeling.pooling import checked_dimensions, normalized
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.storage import (
    check_disk_space,
    local_path,
    raises_disk_full,
    read_json,
    remove_folder,
    replacing,
    write_json,
)
from keras_albert.tasks.config import CUT
from keras_albert.tasks.names import EMBEDDING
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.model_inputs import text_rows, window_rows
from keras_albert.training.run_folder import (
    claim_folder,
    finished_report,
    folder_at,
    holds_run,
    write_report,
)

ROWS_AT_ONCE = 10_000
PROGRESS_FILE = "progress.json"  # how far an interrupted run has come
NAME = "vectors"  # of the file or the folder
COLUMN = "vector"  # in JSONL and Parquet


# function from the number of a part, its first row, its table and its vectors
_Write = Callable[[int, int, Table, np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class _Output:
    """The vectors of a run, as the functions that write them need to know."""

    run: EmbedRun
    count: int  # of vectors
    size: int  # numbers in a vector
    progress: dict  # content of PROGRESS_FILE, which these functions complete
    schema: object  # the types of the table's columns, for Parquet


@naming_columns("--column")
def embed(run: EmbedRun) -> dict:
    """Writes the vectors, and returns the report, which is beside them.

    Nothing is written if the file or the model cannot be read.
    """
    import_tensorflow()  # before it could open a GPU of the backend
    goes_on = holds_run(run.output, run)
    finished = goes_on and finished_report(run.output)
    if run.to == "parquet" and not finished:
        optional_import("pyarrow", "parquet", "writing Parquet files")
    predictor, size, checksum = _loaded(run)
    data = check_table(run.data)
    made_of = {
        "model": checksum,
        "data": checksum_of_table(data),
    }
    if finished:
        return _as_finished(run, finished, made_of)
    count, schema = _checked_rows(predictor, run)
    if not goes_on:
        claim_folder(run.output, run)
    with folder_at(run.output).locked("computing these vectors"):
        if finished := finished_report(run.output):  # by another process since
            return _as_finished(run, finished, made_of)
        progress = {"done": 0, "files": {}, **made_of}
        if (run.output / PROGRESS_FILE).is_file():
            progress = read_json(run.output / PROGRESS_FILE)
            _check_made_of(run, progress, made_of)
            if "files" not in progress:
                raise AlbertError(
                    f"{run.output}: an older version of keras-albert began "
                    "these vectors, and did not note how far. Remove the "
                    "folder, or choose another output."
                )
            _check_whole(run, progress["files"])
        with raises_disk_full(run.output):
            written = _Output(run, count, size, progress, schema)
            write = _WRITERS[run.to](written)
            _write_all(predictor, run, count, size, progress, write)
        if checksum_of_table(data) != made_of["data"]:
            raise _changed(run)
        report = {
            "texts": count,
            "size": size,
            "numbers": run.numbers,
            "files": progress["files"],
            **made_of,
        }
        write_report(run.output, report)
        (run.output / PROGRESS_FILE).unlink(missing_ok=True)
    print(
        f"{count:,} vectors of {size} numbers ({run.numbers}) -> {run.output}"
    )
    return report


def _as_finished(run: EmbedRun, report: dict, made_of: dict) -> dict:
    """The report of a finished run; AlbertError if it was made of others."""
    _check_made_of(run, report, made_of)
    _check_whole(run, report.get("files", {}))  # an old report has no files
    print(f"{run.output} holds these vectors, and they are finished")
    return report


def _loaded(run: EmbedRun) -> tuple[Predictor, int, str]:
    """The model, how many numbers its vectors keep, and its checksum."""
    columns = TableColumns(text=run.column)
    check_has_columns(run.data, "column", run.column)
    if not is_exported(run.model):
        predictor = Predictor.load(run.model, task=EMBEDDING, columns=columns)
        size = checked_dimensions(run.dimensions, predictor.model.size)
        return predictor, size, _checksum_of(predictor)
    predictor = load_exported(run.model, available_cores())
    if not predictor.definition.makes_vectors:
        raise AlbertError(
            f"{run.model} was exported for the task {predictor.task}, and "
            "makes no vectors. Export the model with --task embedding."
        )
    predictor = dataclasses.replace(predictor, task=EMBEDDING, columns=columns)
    rows = text_rows(predictor.tokenizer, [""], None, predictor.sequence_length)
    (vector,) = predictor.outputs(Features(rows))
    size = checked_dimensions(run.dimensions, len(vector))
    return predictor, size, checksum_of_export(run.model)


def _checksum_of(model: str | Path | AlbertModel | Predictor) -> str:
    """The checksum that the report of `embed` has of a model.

    Two models with the same one make the same vectors, up to rounding.
    """
    if isinstance(model, str | os.PathLike):
        if is_exported(model):
            return checksum_of_export(model)
        model = Predictor.load(model, task=EMBEDDING)
    if isinstance(model, Predictor):
        model = model.model
    check_model(model)
    model = ALL_TASKS[EMBEDDING].model_of(model)
    parts = (
        weights_checksum(model),
        dataclasses.asdict(model.config),
        *(model.pooling, model.max_tokens, model.normalize),
        model.tokenizer and model.tokenizer.fingerprint,
        model.tokenizer and model.tokenizer.settings,
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _check_made_of(run: EmbedRun, found: dict, made_of: dict) -> None:
    for name, value in made_of.items():
        if found.get(name) != value:
            path = getattr(run, name)
            raise AlbertError(
                f"{run.output} has vectors of another {name} than {path} is "
                "now. Choose another output, or remove this one."
            )


def _check_whole(run: EmbedRun, files: dict[str, int]) -> None:
    """Raises AlbertError unless all files have what was written to them.

    `files` has the size of each in bytes, by its name in the output folder. One
    that is longer has a part that was interrupted, and is written again.
    """
    for name, size in files.items():
        path = run.output / name
        found = path.stat().st_size if path.is_file() else None
        if found is None or found < size:
            raise AlbertError(
                f"{path} {'is missing' if found is None else 'was cut'}, "
                "and so are vectors that were written to it. Remove the "
                f"folder {run.output}, or choose another output."
            )


def _checked_rows(predictor: Predictor, run: EmbedRun) -> tuple[int, object]:
    """Reads the whole file once.

    Returns how many rows it has, and for Parquet the types of its columns.
    """
    count, schema = 0, None
    for table, _ in checked_parts(
        predictor, run.data, run.skip_bad, run.any_text, ROWS_AT_ONCE
    ):
        count += len(table)
        if run.to != "npy" and any(COLUMN in row for row in table.rows):
            raise AlbertError(
                f"{run.data} has a column `{COLUMN}`, which would be replaced. "
                "Rename it."
            )
        if run.to == "parquet":
            schema = _with_columns_of(table, schema)
    return count, schema


def _write_all(
    predictor: Predictor,
    run: EmbedRun,
    count: int,
    size: int,
    progress: dict,
    write: _Write,
) -> None:
    """Computes and writes the parts that are not there yet."""
    begin = 0
    for number, table in enumerate(
        predictor.parts(run.data, run.skip_bad, ROWS_AT_ONCE)
    ):
        end = begin + len(table)
        if end > count:
            raise _changed(run)
        if begin >= progress["done"] and len(table):
            title = f"Texts {begin + 1:,} to {end:,} of {count:,}"
            vectors = _vectors(predictor, run, table, title)[:, :size]
            if run.normalize:
                vectors = normalized(vectors)
            write(number, begin, table, quantized(vectors, run.numbers))
            progress["done"] = end
            write_json(run.output / PROGRESS_FILE, progress)
        begin = end


def _changed(run: EmbedRun) -> AlbertError:
    """The error if the texts were changed meanwhile; removes their vectors."""
    for path in run.output.glob(f"{NAME}*"):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink()
    (run.output / PROGRESS_FILE).unlink(missing_ok=True)
    return AlbertError(
        f"{run.data}: changed while it was read, and its vectors were removed. "
        "Give the same command again."
    )


def _vectors(
    predictor: Predictor, run: EmbedRun, table: Table, title: str
) -> np.ndarray:
    """The vectors of the texts of a table, float32 [N, D]."""
    texts, longest = table.values["text"], predictor.sequence_length
    if run.long_texts == CUT:
        rows = text_rows(predictor.tokenizer, texts, None, longest)
        return np.stack(
            predictor.outputs(Features(rows), run.batch_size, title=title)
        )
    rows, owners = window_rows(predictor.tokenizer, texts, longest)
    outputs = predictor.outputs(Features(rows), run.batch_size, title=title)
    found = np.stack(outputs)
    weights = np.array([len(row.token_ids) for row in rows], "float32")
    total = np.zeros((len(texts), found.shape[1]), "float32")
    np.add.at(total, owners, found * weights[:, None])
    return total / np.bincount(owners, weights)[:, None].astype("float32")


def quantized(vectors: np.ndarray, numbers: str) -> np.ndarray:
    """Vectors [N, D] in another type of numbers, see `EmbedRun.numbers`."""
    if numbers == "binary":
        return np.packbits(vectors > 0, axis=1)
    if numbers == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True)
        scaled = vectors / np.where(largest > 0, largest, 1)
        return np.rint(127 * scaled).astype("int8")
    return vectors.astype(numbers)


def _npy_writer(output: _Output) -> _Write:
    run, count, progress = output.run, output.count, output.progress
    path = run.output / f"{NAME}.npy"
    example = quantized(np.ones((1, output.size), "float32"), run.numbers)
    if not progress["done"]:  # to write to a map on a full disk ends a process
        check_disk_space(path, count * example.nbytes)
    array = np.lib.format.open_memmap(
        path,
        mode="r+" if progress["done"] else "w+",
        dtype=example.dtype,
        shape=(count, example.shape[1]),
    )

    def write(number, begin, table, vectors):
        array[begin : begin + len(vectors)] = vectors
        array.flush()
        progress["files"][path.name] = path.stat().st_size

    return write


def _jsonl_writer(output: _Output) -> _Write:
    path, progress = output.run.output / f"{NAME}.jsonl", output.progress

    def write(number, begin, table, vectors):
        with open(path, "ab") as file:
            # What an interrupted part has written is written again.
            file.truncate(progress["files"].get(path.name, 0))
            for row, vector in zip(table.rows, vectors, strict=True):
                # 9 digits tell all numbers of float32 apart.
                values = [float(f"{x:.9g}") for x in vector.tolist()]
                if vectors.dtype.kind in "iu":
                    values = vector.tolist()
                line = json.dumps(
                    without_nan({**row, COLUMN: values}),
                    ensure_ascii=False,
                    default=str,
                )
                file.write(f"{line}\n".encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
            progress["files"][path.name] = file.tell()

    return write


def _with_columns_of(table: Table, schema):
    """The schema of Arrow with the columns of another part of the table.

    A column may be empty in one part, and have integers in one and fractions
    in another; all files of a Parquet dataset need the same types.
    """
    import pyarrow as arrow

    names = dict.fromkeys(name for row in table.rows for name in row)
    columns = {name: [row.get(name) for row in table.rows] for name in names}
    try:
        found = arrow.table(columns).schema
        schemas = [found] if schema is None else [schema, found]
        return arrow.unify_schemas(schemas, promote_options="permissive")
    except (arrow.ArrowException, OverflowError, UnicodeError) as error:
        raise _not_for_parquet(table, error) from None


def _not_for_parquet(table: Table, error: Exception) -> AlbertError:
    return AlbertError(
        f"{table.path}: a column of Parquet has values of one type, and texts "
        f"that UTF-8 can express ({error}). Write --to jsonl, into another "
        "output."
    )


def _parquet_writer(output: _Output) -> _Write:
    import pyarrow as arrow
    from pyarrow import parquet

    folder, schema = output.run.output / NAME, output.schema
    folder.mkdir(exist_ok=True)

    def write(number, begin, table, vectors):
        rows = [
            {name: row.get(name) for name in schema.names} for row in table.rows
        ]
        values = arrow.array(vectors.ravel())
        lists = arrow.FixedSizeListArray.from_arrays(values, vectors.shape[1])
        path = folder / f"part-{number:05}.parquet"
        try:
            columns = arrow.Table.from_pylist(rows, schema)
            with replacing(path) as unfinished:
                parquet.write_table(
                    columns.append_column(COLUMN, lists), unfinished
                )
        except (arrow.ArrowException, OverflowError) as error:
            # Such as an integer above 2**53 in a column that has fractions, or
            # a column of empty objects.
            raise _not_for_parquet(table, error) from None
        files = output.progress["files"]
        files[f"{NAME}/{path.name}"] = path.stat().st_size

    return write


_WRITERS = {
    "npy": _npy_writer,
    "jsonl": _jsonl_writer,
    "parquet": _parquet_writer,
}


def read_vectors(
    folder: str | Path,
    model: str | Path | AlbertModel | Predictor | None = None,
) -> np.ndarray:
    """The vectors of a folder that `embed` wrote as vectors.npy, not copied.

    Args:
        folder: the output of `keras-albert embed`.
        model: the model whose vectors they have to be: what `embed --model`
            takes, or a model in memory. It is recognized by its weights, sizes,
            pooling and vocabulary, an export by its files. None: vectors of
            any model.

    Returns:
        [N, D], mapped from the file; [N, D / 8] bytes if they are binary.

    Raises:
        AlbertError: there is no such file, the run is not finished, or another
            model made the vectors.
    """
    path = local_path(folder) / f"{NAME}.npy"
    report = finished_report(path.parent)
    others = {*(report or {}).get("files", {})} - {path.name}
    if others and not path.is_file():
        raise AlbertError(
            f"{folder} has its vectors in {', '.join(sorted(others))}. Read "
            "that file, or compute them again without --to."
        )
    if not report or not path.is_file():
        raise AlbertError(
            f"{folder}: no finished {path.name}. Give the output of "
            "`keras-albert embed`, and run an interrupted command again."
        )
    if model is not None and report["model"] != _checksum_of(model):
        raise AlbertError(
            f"{folder} has vectors of another model than the given one. Give "
            "the model or export that made them, or make them with this one by "
            "`keras-albert embed`."
        )
    return np.load(path, mmap_mode="r")
