"""Whether the models of a finished run have changed since."""

import functools
from collections.abc import Sequence
from pathlib import Path

from keras_albert.checkpoints.load import load_pretrained
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import read_tables
from keras_albert.finetuning.model import continued_model
from keras_albert.finetuning.teacher import Teacher
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.training.run_folder import (
    STARTED_FROM,
    TAUGHT_BY,
    check_same_models,
)


def check_models(
    run: FinetuneRun,
    report: dict,
    sources: Sequence[Path],
    known: dict | None = None,
) -> None:
    """Raises AlbertError if a model of a finished run has changed since.

    Nothing is checked if a table of the run, one of `sources`, is missing: the
    names of the labels are read from them. `known` has the checksums of the
    models that this process has read already, as `report` has them.
    """
    if not all(path.exists() for path in sources):
        return
    functions = {
        STARTED_FROM: (run.model, lambda: _checksum_of_start(run)),
        TAUGHT_BY: (run.teacher, lambda: _checksum_of_teacher(run)),
    }
    if known is not None:
        functions = {
            key: (model, functools.partial(known.get, key))
            for key, (model, _) in functions.items()
        }
    check_same_models(run.output, report, functions)


def _checksum_of_start(run: FinetuneRun) -> str:
    """The checksum of the weights that a run starts from."""
    source = continued_model(run, read_tables(run).names)
    return weights_checksum(
        source or load_pretrained(run.model, dtype="float32")[0]
    )


def _checksum_of_teacher(run: FinetuneRun) -> str:
    return Teacher(run, read_tables(run).names).checksum
