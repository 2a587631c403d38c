"""The log of a run: log.csv, and the same values for TensorBoard."""

import csv
import shutil
from pathlib import Path

from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.errors import AlbertError, optional_import
from keras_albert.storage import replacing

LOG_FILE = "log.csv"
CURVES_FILE = "curves.png"
TENSORBOARD_FOLDER = "tensorboard"
HELD_OUT = "val_"  # prefix of values measured on held-out examples
LogRow = dict[str, float | None]


class RunLog:
    """The rows of log.csv: one for each interval, with its last step.

    Existing rows are read; without a folder, nothing is read or written.
    """

    def __init__(self, folder: Path | None):
        self.path = folder and folder / LOG_FILE
        self.rows: list[LogRow] = []
        if self.path and self.path.is_file():
            with open(self.path, newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                try:
                    self.rows = [_numbers(row) for row in reader]
                except (ValueError, TypeError, KeyError):
                    raise AlbertError(
                        f"{self.path}:{reader.line_num}: not a row of numbers "
                        "that a run has written. Remove the line."
                    ) from None

    def has(self, step: int) -> bool:
        """Whether there is a row for the interval that ends with `step`."""
        return any(row["step"] == step for row in self.rows)

    def append(self, row: LogRow) -> None:
        """Adds a row and replaces the file atomically."""
        self.rows.append(row)
        self._write()

    def keep_until(self, step: int) -> None:
        """Removes the rows after `step`, from which a resumed run continues."""
        kept = [row for row in self.rows if row["step"] <= step]
        if len(kept) < len(self.rows):
            self.rows = kept
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        with (
            replacing(self.path) as unfinished,
            open(unfinished, "w", newline="", encoding="utf-8") as file,
        ):
            # Older versions logged fewer values.
            names = {"step": None} | {k: None for row in self.rows for k in row}
            writer = csv.DictWriter(file, list(names))
            writer.writeheader()
            writer.writerows(self.rows)


def read_log(folder: Path) -> list[LogRow]:
    """The rows of a run's log; AlbertError if it has none."""
    rows = RunLog(folder).rows
    if not rows:
        raise AlbertError(
            f"{folder / LOG_FILE}: no log of a run. A run of several seeds has "
            "one in the folder of each."
        )
    return rows


def _numbers(row: dict[str, str]) -> LogRow:
    values = {k: float(v) if v else None for k, v in row.items()}
    return {**values, "step": int(values["step"])}


def check_tensorboard() -> None:
    """Raises AlbertError unless the package is installed."""
    optional_import("tensorboard", "tensorboard", "--tensorboard")


class TensorBoard:
    """Writes the log to OUTPUT/tensorboard in TensorBoard's format.

    `keras.callbacks.TensorBoard` is not used, because it counts epochs instead
    of steps, and a resumed run would write steps twice. Here `rows`, which were
    logged before, are written again.
    """

    def __init__(self, folder: Path, rows: list[LogRow]):
        self._summary = import_tensorflow().summary
        folder = folder / TENSORBOARD_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._writers = {
            part: self._summary.create_file_writer(str(folder / part))
            for part in ("train", "validation")
        }
        for row in rows:
            self.write(row)

    def write(self, row: LogRow) -> None:
        """Writes a row of the log."""
        for name, value in row.items():
            part = "validation" if name.startswith(HELD_OUT) else "train"
            if name != "step" and value is not None:
                with self._writers[part].as_default(step=row["step"]):
                    self._summary.scalar(name.removeprefix(HELD_OUT), value)
        for writer in self._writers.values():
            writer.flush()
