"""The output folder of a training run: claimed, continued, finished.

run.json has the settings of the run from its beginning, report.json its
results from its end. See `storage.WorkFolder`, which `prepare` uses as well.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_albert.distribution.devices import Devices
from keras_albert.errors import AlbertError
from keras_albert.settings import flatten, settings_of
from keras_albert.storage import (
    REPORT_FILE,
    WorkFolder,
    check_free,
    local_path,
)

MADE_OF = "made_of"  # key of a report: the checksums of the data of the run
STARTED_FROM = "started_from"  # the checksum of the weights before training
TAUGHT_BY = "taught_by"  # the checksum of the weights of a teacher
SEED_FOLDER = "seed-{}"  # a folder for each of several seeds
INPUTS = "{}.inputs"  # what was given in memory, beside an output folder

# Settings that an interrupted run may change when it is continued.
_FREE_SETTINGS = {
    "output",
    "checkpoint_every",
    "keep_checkpoints",
    "tensorboard",
    "any_text",
    # Another number of devices computes the same.
    "distribution",
    "model_parallel",
    "steps_per_execution",
    "processes.coordinator",
    "processes.count",
    "processes.index",
    "processes.wait",
}
# Settings that may differ between the processes of a run.
_OWN_SETTINGS = {
    "output",
    "data",
    "train",
    "validation",
    "processes.coordinator",
    "processes.index",
    "processes.wait",
}


# The models that a run depends on: their paths (None if there is none), and
# functions that compute their checksums, by STARTED_FROM and TAUGHT_BY.
Checksums = dict[str, tuple[str | None, Callable[[], str | None]]]


class RunFolder:
    """The output folder of a training run of one or several processes.

    Only the first process reads and writes the files of the folder, and all
    processes get the same answers. AlbertError is raised if the folder holds
    anything but this run.

    Args:
        run: the settings of the run, a dataclass; its field `output` is the
            folder.
        devices: connects the processes.
    """

    def __init__(self, run, devices: Devices):
        self._run = run
        self._devices = devices
        self._goes_on = devices.first(lambda: holds_run(run.output, run))

    def finished(
        self,
        sources: Sequence[Path],
        checksums: Callable[[], dict[str, str | None]],
    ) -> dict | None:
        """The report of the run; None if the run is not finished.

        Raises AlbertError if the data of a finished run have changed since:
        `sources` are their paths, `checksums` computes what is compared.
        """

        def read() -> dict | None:
            report = finished_report(self._run.output)
            if report:
                check_made_of(self._run.output, report, sources, checksums)
            return report

        return self._devices.first(read)

    def claim(self) -> None:
        """Creates the folder, unless it already holds this run."""
        if not self._goes_on:
            run = self._run
            self._devices.first(lambda: str(claim_folder(run.output, run)))


def folder_at(path: str | Path) -> WorkFolder:
    """The folder of a training run."""
    return WorkFolder(Path(path), REPORT_FILE)


def claim_folder(path: str | Path, run) -> Path:
    """Creates the folder of a run and writes the settings into it."""
    folder = folder_at(path)
    folder.claim(settings_of(run))
    return folder.output


def holds_run(path: str | Path, run) -> bool:
    """Whether a run of these settings has begun in an output folder before.

    Raises AlbertError if `path` is a file, a folder with other content, or a
    folder with a run of other settings, which the message names.
    """
    found = folder_at(path).begun_with()
    if found is None:
        check_free(path)
        return False
    if not isinstance(found, dict):
        raise AlbertError(
            f"{path}/run.json: not the settings of a run. Choose another "
            "output, or move this folder away."
        )
    # A run from before an option existed has the default of the option.
    found = flatten(_defaults(type(run))) | flatten(found)
    expected = flatten(settings_of(run))
    differing = [
        f"{name}={found.get(name)!r} there, {expected.get(name)!r} here"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
        and name not in _FREE_SETTINGS
        # What is an empty list now was None in older versions.
        and not (found.get(name) is None and expected.get(name) == [])
    ]
    if differing:
        raise AlbertError(
            f"{path}: the output folder is not empty, it holds a run of other "
            f"settings ({'; '.join(differing)}). Give the same ones to go on "
            "with it, or choose another output; nothing was changed."
        )
    return True


def _defaults(run_class) -> dict:
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(run_class)
        if field.default is not dataclasses.MISSING
    }
    return settings_of(dataclasses.make_dataclass("_", defaults)(**defaults))


def same_settings(run) -> dict:
    """The settings that all processes of a run have in common."""
    return {
        name: value
        for name, value in flatten(settings_of(run)).items()
        if name not in _OWN_SETTINGS
    }


def write_report(folder: Path, report: dict) -> None:
    """Writes the report of a run, which is then finished."""
    folder_at(folder).publish(report)


def finished_report(folder: Path) -> dict | None:
    """The report of a run; None if the run is not finished."""
    return folder_at(folder).finished()


def check_same_models(folder: Path, report: dict, models: Checksums) -> None:
    """Raises AlbertError if a model has changed since a run was finished.

    A model that is no longer there is not checked, as a finished run does not
    need it; nor is one whose checksum the report of an older version lacks.
    """
    for key, (model, checksum) in models.items():
        known = report.get(key)
        if not known or not local_path(model).exists():
            continue
        what = "was taught by" if key == TAUGHT_BY else "started from"
        try:
            found = checksum()
        except AlbertError as error:  # it has become a model of another kind
            raise AlbertError(
                f"{folder} is finished, and {what} {model}, which cannot be "
                f"compared: {error} Restore that model, or choose another "
                "output."
            ) from None
        if found != known:
            raise AlbertError(
                f"{folder} is finished, and {what} {model}, which has changed "
                "since. Remove the folder to train again, or choose another "
                "output."
            )


def check_made_of(
    folder: Path,
    report: dict,
    sources: Sequence[Path],
    checksums: Callable[[], dict[str, str | None]],
) -> None:
    """Raises AlbertError if the data have changed since a run was finished.

    Nothing is checked if data are missing, which the run may have outlived, or
    if the report is so old that it has no checksums.
    """
    if MADE_OF not in report or not all(path.exists() for path in sources):
        return
    if checksums() != report[MADE_OF]:
        raise AlbertError(
            f"{folder}: the run in this folder is finished, and the data in "
            f"{' and '.join(map(str, sources))} have changed since then. "
            "Choose another output."
        )
