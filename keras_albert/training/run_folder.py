"""The output folder of a run: claimed, resumed, reported."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_albert.distribution.devices import Devices
from keras_albert.errors import AlbertError
from keras_albert.storage import (
    RUN_FILE,
    DiskFull,
    check_free,
    flat,
    new_folder,
    read_json,
    remove_folder,
    room_at,
    settings_of,
    write_json,
)

REPORT_FILE = "report.json"


class RunFolder:
    """The output folder of a training run: claimed, continued, finished.

    run.json keeps the settings of the run from its beginning, report.json what
    it reached at its end. Of several processes the first one reads and writes
    these files, and all of them get the same answers.

    Args:
        run: settings, a dataclass with a field `output`.
        devices: the processes of the run.

    Raises:
        AlbertError: the folder holds something else; see `holds_run`.
    """

    def __init__(self, run, devices: Devices):
        self.path: Path = run.output
        self._run = run
        self._devices = devices
        self.goes_on = devices.first(lambda: holds_run(self.path, run))

    def finished(
        self,
        sources: Sequence[Path],
        checksums: Callable[[], dict[str, str | None]],
    ) -> dict | None:
        """The report of the run, if it is finished; see `check_made_of`."""

        def read() -> dict | None:
            report = finished_report(self.path)
            if report:
                check_made_of(self.path, report, sources, checksums)
            return report

        return self._devices.first(read)

    def claim(self) -> None:
        """Makes the folder, unless it holds this run already."""
        if not self.goes_on:
            self._devices.first(lambda: str(claim_folder(self.path, self._run)))


def claim_folder(path: str | Path, run) -> Path:
    """Makes the folder of a long run and keeps its settings in `run.json`.

    Of two runs that start at once with one folder, one gets an AlbertError.
    """
    path = new_folder(path)
    try:
        with (
            room_at(path / RUN_FILE),
            open(path / RUN_FILE, "x", encoding="utf-8") as file,
        ):
            file.write(json.dumps(settings_of(run), indent=2) + "\n")
    except DiskFull:
        remove_folder(path)
        raise
    except FileExistsError:
        raise AlbertError(
            f"{path}: another run has just taken this output folder. Choose "
            "another output."
        ) from None
    return path


# What may differ where an interrupted run goes on.
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


# What each process of a run may have for itself: places, and which it is.
_OWN_SETTINGS = {
    "output",
    "data",
    "train",
    "validation",
    "processes.coordinator",
    "processes.index",
    "processes.wait",
}


def holds_run(path: str | Path, run) -> bool:
    """Whether an output folder holds this run, begun before.

    Raises:
        AlbertError: it holds something else: a file, another folder, or a run
            of other settings, which are named.
    """
    run_file = Path(path) / RUN_FILE
    if not run_file.is_file():
        check_free(path)
        return False
    found = read_json(run_file)
    expected = settings_of(run)
    if not isinstance(found, dict):
        raise AlbertError(f"{run_file}: not the settings of a run.")
    # Written before an option existed, a run has its default.
    found = flat(_defaults(type(run))) | flat(found)
    expected = flat(expected)
    differing = [
        f"{name}={found.get(name)!r} there, {expected.get(name)!r} here"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name) and name not in _FREE_SETTINGS
    ]
    if differing:
        raise AlbertError(
            f"{path}: the output folder is not empty, it holds a run of other "
            f"settings ({'; '.join(differing)}). Give the same ones to go on "
            "with it, or choose another output; nothing was changed."
        )
    return True


def _defaults(run_class) -> dict:
    """The settings that need not be given."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(run_class)
        if field.default is not dataclasses.MISSING
    }
    return json.loads(
        json.dumps(
            {
                name: dataclasses.asdict(value)
                if dataclasses.is_dataclass(value)
                else value
                for name, value in defaults.items()
            },
            default=str,
        )
    )


def same_settings(run) -> dict:
    """The settings that all processes of a run have in common."""
    return {
        name: value
        for name, value in flat(settings_of(run)).items()
        if name not in _OWN_SETTINGS
    }


MADE_OF = "made_of"  # checksums of its data, in a run's report


SEED_FOLDER = "seed-{}"  # of each of several runs


def write_report(folder: Path, report: dict) -> None:
    """Keeps what a run reached."""
    write_json(folder / REPORT_FILE, report)


def check_made_of(
    folder: Path,
    report: dict,
    sources: Sequence[Path],
    checksums: Callable[[], dict[str, str | None]],
) -> None:
    """AlbertError if a finished run was made of other data than there are.

    Args:
        folder: of the run, which may have outlived its data.
        report: of the run, with their checksums; older ones have none.
        sources: where they are.
        checksums: what they are now.
    """
    if MADE_OF not in report or not all(path.exists() for path in sources):
        return
    if checksums() != report[MADE_OF]:
        raise AlbertError(
            f"{folder}: the run in this folder is finished, and was made of "
            f"other data than {' and '.join(map(str, sources))} now have. "
            "Choose another output."
        )


def finished_report(folder: Path) -> dict | None:
    """What `write_report` kept; None where the run has not ended."""
    path = folder / REPORT_FILE
    return read_json(path) if path.is_file() else None
