"""Exports a model for a server or a device: `keras_albert.export`.

SavedModels and LiteRT files are traced with Keras's TensorFlow backend. On
another backend a worker process traces them. An ONNX file needs no trace.
"""

import contextlib
import dataclasses
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_albert.data.batches import Features
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.tables import Table
from keras_albert.distribution.backend import (
    full_float32,
    traces_for_tensorflow,
)
from keras_albert.errors import AlbertError, check_installed, check_worker
from keras_albert.exports.check_texts import (
    check_same_texts,
    compare_texts,
    text_lines,
)
from keras_albert.exports.check_vectors import least_allowed, least_cosine
from keras_albert.exports.config import (
    LARGEST_FALL,
    TRACED_FORMATS,
    CheckRun,
    ExportRun,
)
from keras_albert.exports.litert import LITERT_FILE, write_litert
from keras_albert.exports.load import (
    SAVED_MODEL_FILE,
    load_exported,
    newest_version,
    share_of_equal,
)
from keras_albert.exports.onnx.format import ONNX_FILE, write_onnx
from keras_albert.exports.saved_model.warm_up import write_warm_up
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.weight_checks import check_not_quantized
from keras_albert.settings import settings_of
from keras_albert.storage import (
    RUN_FILE,
    check_free,
    check_not_a_file,
    files_of,
    local_path,
    remedy_of,
    write_json,
    written_whole,
)
from keras_albert.tasks.config import CUT, EarlyExit
from keras_albert.training.model_folder import ASIDE, EXPORT_FILE, TASK_FILE


def export(
    model: AlbertModel | Predictor | str | Path | Sequence[str | Path],
    output: str | Path,
    format: str = "saved_model",
    weights: str = "float32",
    version: int | None = None,
    *,
    compute: str = "float32",
    data: str | Path | None = None,
    skip_bad: bool = False,
    force: bool = False,
    **settings: Any,
) -> Path:
    """Exports a model for servers and devices, from any backend.

    A SavedModel takes strings and returns predictions. A model that was only
    pretrained returns vectors (`embed`) and, with a masked-LM head, the most
    probable pieces for "[MASK]" (`fill_mask`).

    >>> keras_albert.export(model, "served", labels=["no", "yes"])  # served/1

    Args:
        model: a model of this package, for example after `fit`; a Predictor; a
            source of `keras_albert.load`; or, for an ensemble, a list of such
            sources, or an AlbertEnsemble of models in memory.
        output: a new folder, or that of the versions of a SavedModel.
        format: "saved_model"; or "litert" or "onnx", which take token ids.
        weights: data type of stored weights. saved_model: float32, bfloat16,
            float16; litert: float32, float16, int8; onnx: float32, int8.
        version: version of a SavedModel; by default the next number.
        compute: data type of a SavedModel's encoder: float32, bfloat16.
        data: labelled table to compare export and model on; needed for int8.
        skip_bad: leave out rows of `data` that cannot be read.
        force: export even if the score on `data` falls, vectors have a low
            cosine with the model's, or there is no `data`.
        settings: `task`, `labels`, `tokenizer`, `lengths`, `columns`,
            `reading`, `early_exit` and `threshold`, see Predictor.

    Returns:
        The folder that was written; for a SavedModel that of the version.

    Raises:
        AlbertError: an argument does not fit, there is no vocabulary, the
            output exists, a package is missing, or the score falls.
    """
    run = ExportRun(
        # Set below, when the output has been checked.
        model="",
        output=local_path(output),
        format=format,
        weights=weights,
        version=version,
        compute=compute,
        data=None if data is None else local_path(data),
        skip_bad=skip_bad,
        force=force,
    )
    _check_packages(format)
    _target(run)
    predictor = _predictor(model, settings)
    # Saved, a model is float32, without adapters, and a worker can read it.
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model")
        predictor.save(source)
        return export_run(dataclasses.replace(run, model=str(source)))


def _predictor(
    model: AlbertModel | Predictor | str | Path | Sequence[str | Path],
    settings: dict[str, Any],
) -> Predictor:
    known = {*inspect.signature(Predictor).parameters} - {"model"}
    if isinstance(model, str | os.PathLike | list | tuple):
        of_load = inspect.signature(Predictor.load).parameters
        known |= {*of_load} - {"source", "settings"}
    if unknown := settings.keys() - known:
        name = min(unknown)
        rule = f" A rule of early exit is early_exit=ka.EarlyExit({name}=...)."
        is_rule = name in inspect.signature(EarlyExit).parameters
        raise AlbertError(
            f"`export` has no option `{name}`. Those that say how the model is "
            f"used are {', '.join(sorted(known))}.{rule if is_rule else ''}"
        )
    if isinstance(model, Predictor):
        if settings.get("task") in (None, model.task):
            return dataclasses.replace(model, **settings)
        # Its labels and the like belong to its own task.
        return Predictor(
            model.model, **{"tokenizer": model.tokenizer} | settings
        )
    if isinstance(model, str | os.PathLike | list | tuple):
        return Predictor.load(model, **settings)
    return Predictor(model, **settings)


def _check_packages(format: str) -> None:
    if format in TRACED_FORMATS:
        if sys.flags.optimize > 1:
            raise AlbertError(
                f"exporting as {format} needs tensorflow-text, which reads its "
                "docstrings when it is imported, and Python has left them out "
                "(-OO, PYTHONOPTIMIZE=2). Use -O at most."
            )
        check_installed(
            "tensorflow tensorflow_text",
            "'keras-albert[export]'",
            f"exporting as {format}, from any backend,",
        )


@full_float32()
def export_run(run: ExportRun) -> Path:
    """Writes the export, and returns its folder.

    Nothing is written if there is no model, the output exists, a package is
    missing, or the score on `run.data` falls by more than LARGEST_FALL.
    """
    _check_packages(run.format)
    target = _target(run)
    is_new = not run.output.exists()
    try:
        if run.format in TRACED_FORMATS and not traces_for_tensorflow():
            _export_in_worker(run, target)
        else:
            _export_here(run, target)
    except BaseException:
        if is_new:  # the version was removed, but not the folder of versions
            with contextlib.suppress(OSError):
                run.output.rmdir()
        raise
    return target


def _export_here(run: ExportRun, target: Path) -> None:
    """Exports in this process."""
    import_tensorflow()  # before it could open a GPU of the backend
    predictor = Predictor.load(
        run.model, average=run.average, **run.predictor_arguments
    )
    if predictor.long_texts != CUT:
        predictor = dataclasses.replace(predictor, long_texts=CUT)
        print(
            "note: an exported model reads one window: texts of more than "
            f"{predictor.sequence_length:,} tokens are cut in it"
        )
    features = None
    if run.data is not None:  # read first: an error should not come late
        table = predictor.read_labelled(
            run.data, skip_bad=run.skip_bad, any_size=True
        )
        print_skipped(table)
        features = predictor.features(table)
    with written_whole(target) as unfinished:
        _write(predictor, run, unfinished)
        if features is not None:
            _compare(predictor, table, features, run, unfinished)
    size = sum(file.stat().st_size for file in files_of(target))
    print(f"{run.format}, {run.weights}, {size / 1e6:.1f} MB -> {target}")


def _export_in_worker(run: ExportRun, target: Path) -> None:
    """Runs the same command in a worker process, on TensorFlow.

    The worker writes to a temporary folder, which this process renames, so
    that nothing is published if this process is killed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        written_whole(target) as unfinished,
    ):
        inner = dataclasses.replace(run, output=unfinished / "worker")
        made = _target(inner)
        settings = Path(folder) / "run.json"
        write_json(settings, settings_of(inner))
        worker = subprocess.run(
            [sys.executable, "-m", "keras_albert.cli", "export"]
            + ["--file", str(settings)],
            # This process may have reserved the GPU's memory.
            env=os.environ
            | {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
        )

        def renamed(text):  # the output's path instead of the worker's
            return text.replace(str(made), str(target)).replace(
                str(inner.output), str(run.output)
            )

        if worker.returncode:
            sys.stdout.write(renamed(worker.stdout))
            said = renamed(worker.stderr)
            _, is_error, message = f"\n{said}".rpartition("\nerror: ")
            if worker.returncode == 2 and is_error:  # a mistake of the user
                raise AlbertError(message.strip())
            name = "the TensorFlow process that exports"
            check_worker(name, worker.returncode, said)
        for path in made.iterdir():
            path.rename(unfinished / path.name)
        shutil.rmtree(inner.output)
    sys.stdout.write(renamed(worker.stdout))


def _target(run: ExportRun) -> Path:
    """The folder to write; for a SavedModel that of the version."""
    _check_path(run.output)
    target = run.output
    if run.format == "saved_model":
        for name in (TASK_FILE, RUN_FILE, SAVED_MODEL_FILE):
            if (run.output / name).is_file():
                raise AlbertError(
                    f"{run.output}: expected a new folder, or one of a "
                    "SavedModel's versions, such as `served` for `served/1`. "
                    f"Found: {name}. Choose another output."
                )
        target /= str(run.version or newest_version(run.output) + 1)
    check_free(target)
    return target


def _check_path(output: Path) -> None:
    check_not_a_file(output)
    try:
        str(output.absolute()).encode()
    except UnicodeEncodeError:
        raise AlbertError(
            f"{str(output.absolute())!r}: the path of an export must be UTF-8, "
            "as TensorFlow and other libraries take it as a text. Choose "
            "another output."
        ) from None


def _write(predictor: Predictor, run: ExportRun, folder: Path) -> None:
    serving = predictor.definition.serving
    if serving.needs_pieces and run.format != "saved_model":
        raise AlbertError(
            "only a saved_model can fill masks: other files have no names of "
            f"pieces. Received: {run.format}. Export a saved_model, or vectors "
            "with task='embedding' (--task embedding)."
        )
    is_traced = run.format in TRACED_FORMATS
    nothing = contextlib.nullcontext()
    with _errors_of_tensorflow(folder) if is_traced else nothing:
        aside = _WRITERS[run.format](predictor, run, folder) or folder
    predictor.tokenizer.save(aside)
    write_json(aside / TASK_FILE, predictor.settings())
    write_json(
        aside / EXPORT_FILE,
        {
            "format": run.format,
            "weights": run.weights,
            "compute": run.compute,
            "parameters": predictor.model.count_params(),
            "reads_pairs": predictor.reads_pairs,
        },
    )


@contextlib.contextmanager
def _errors_of_tensorflow(folder: Path) -> Iterator[None]:
    """Context manager that makes an AlbertError of an error of TensorFlow."""
    # Not imported above: other formats are written without TensorFlow.
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:  # also on a full disk
        raise AlbertError(
            f"{folder.parent}: TensorFlow cannot write the export "
            f"({error.message}). {remedy_of(error)}, or choose another output."
        ) from None


def _write_saved_model(
    predictor: Predictor, run: ExportRun, folder: Path
) -> Path:
    """Writes the model; returns the folder for files that servers ignore."""
    import tensorflow as tf

    from keras_albert.exports.saved_model.signatures import serving_module

    if run.compute != "float32":
        check_not_quantized(predictor.model)
        predictor = Predictor.load(
            run.model,
            average=run.average,
            dtype=f"mixed_{run.compute}",
            **run.predictor_arguments | {"long_texts": CUT},
        )
    module, signatures = serving_module(predictor, run.weights)
    tf.saved_model.save(module, str(folder), signatures)
    aside = folder / ASIDE
    aside.mkdir()
    write_warm_up(predictor, signatures, aside)
    return aside


# Each writes a model into a new folder, in one of the formats of
# EXPORT_WEIGHTS, and returns the folder for the vocabulary and the settings;
# None if that is the same folder.
_WRITERS: dict[str, Callable[[Predictor, ExportRun, Path], Path | None]] = {
    "saved_model": _write_saved_model,
    "litert": lambda predictor, run, folder: write_litert(
        predictor, folder / LITERT_FILE, run.weights
    ),
    "onnx": lambda predictor, run, folder: write_onnx(
        predictor, folder / ONNX_FILE, run.weights
    ),
}


def _compare(
    predictor: Predictor,
    table: Table,
    features: Features,
    run: ExportRun,
    folder: Path,
) -> None:
    exported = load_exported(folder)
    task = predictor.definition
    scores, answers, outputs = [], [], []
    for each in (predictor, exported):
        outputs.append(each.outputs(features))
        measured = task.measure(outputs[-1], features, each.labels)
        scores.append(measured.values[task.best])
        answers.append(each.decode(outputs[-1], features))
    same = share_of_equal(*answers)
    before, after = scores
    print(
        f"{run.data}: {task.best} {before:.4f} as a model, {after:.4f} as "
        f"{run.format} {run.weights}; {same:.2%} of {features.count:,} "
        "predictions are the same"
    )
    first = table.first(CheckRun.rows)
    texts = compare_texts(exported, first, answers[1], run.compute)
    for line in text_lines(texts):
        print(line)
    point = LARGEST_FALL * task.highest
    if before - after > point and not run.force:
        raise AlbertError(
            f"with {run.weights} weights, {task.best} falls by "
            f"{before - after:.4f}, from {before:.4f} to {after:.4f}; more "
            f"than {point:g} is refused. Choose weights of more bits, or give "
            "--force."
        )
    if not run.force:
        check_same_texts(texts, run.output)
    if task.makes_vectors and not run.force:
        _check_cosine(least_cosine(*outputs), run)


def _check_cosine(cosine: float, run: ExportRun) -> None:
    """Raises AlbertError if a vector is far from that of the model.

    If every text of the data is paired with itself, the score is perfect
    whatever the vectors are.
    """
    least = least_allowed(run.weights, run.compute)
    if not cosine >= least:
        raise AlbertError(
            f"with {run.weights} weights, computed in {run.compute}, a vector "
            f"has a cosine of {cosine:.4f} with the model's; less than {least} "
            "is refused. Choose data types of more bits or another format, or "
            "give --force."
        )
