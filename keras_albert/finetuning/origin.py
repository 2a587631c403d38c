"""The models of a fine-tuning run, by the checksums of their weights."""

from collections.abc import Callable

from keras_albert.checkpoints.load import load_pretrained
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import read_tables
from keras_albert.finetuning.model import continued_model
from keras_albert.finetuning.teacher import Teacher
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.training.run_folder import STARTED_FROM, TAUGHT_BY


def models_of(
    run: FinetuneRun,
) -> dict[str, tuple[str | None, Callable[[], str]]]:
    """The models of a run, for `check_same_models`.

    The functions read the tables of the run, which must be there.
    """
    return {
        STARTED_FROM: (run.model, lambda: _checksum_of_start(run)),
        TAUGHT_BY: (run.teacher, lambda: _checksum_of_teacher(run)),
    }


def _checksum_of_start(run: FinetuneRun) -> str:
    """The checksum of the weights that a run starts from."""
    source = continued_model(run, read_tables(run).names)
    return weights_checksum(
        source or load_pretrained(run.model, dtype="float32")[0]
    )


def _checksum_of_teacher(run: FinetuneRun) -> str:
    return Teacher(run, read_tables(run).names).checksum
