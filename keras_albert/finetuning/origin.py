"""Whether a finished run is still that of the models that it names."""

from keras_albert.checkpoints.load import load_pretrained
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.finetuning.data import read_tables
from keras_albert.finetuning.model import continued_model
from keras_albert.finetuning.teacher import Teacher
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.storage import local_path
from keras_albert.training.run_folder import STARTED_FROM, TAUGHT_BY


def check_same_models(run: FinetuneRun, report: dict) -> None:
    """Raises AlbertError if a model has changed since a run was finished.

    The tables of the run must be there. A model is not checked if it is
    missing, which the run may have outlived, or if the report is of a version
    that did not note it.
    """
    for key, model, checksum in (
        (STARTED_FROM, run.model, _checksum_of_start),
        (TAUGHT_BY, run.teacher, _checksum_of_teacher),
    ):
        known = report.get(key)
        if not known or not local_path(model).exists():
            continue
        if checksum(run, read_tables(run).names) != known:
            what = "was taught by" if key == TAUGHT_BY else "started from"
            raise AlbertError(
                f"{run.output} is finished, and {what} {model}, which has "
                "changed since. Remove the folder to train again, or choose "
                "another output."
            )


def _checksum_of_start(run: FinetuneRun, names: tuple[str, ...] | None) -> str:
    """The checksum of the weights that a run of these labels starts from."""
    source = continued_model(run, names)
    return weights_checksum(
        source or load_pretrained(run.model, dtype="float32")[0]
    )


def _checksum_of_teacher(
    run: FinetuneRun, names: tuple[str, ...] | None
) -> str:
    return Teacher(run, names).checksum
