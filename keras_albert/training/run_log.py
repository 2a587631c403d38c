"""The log of a run: log.csv, its curves as a picture, and TensorBoard's."""

import csv
import shutil
from pathlib import Path

from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.errors import AlbertError, optional_import
from keras_albert.storage import replacing

LOG_FILE = "log.csv"


CURVES_FILE = "curves.png"


TENSORBOARD_FOLDER = "tensorboard"


HELD_OUT = "val_"  # prefix of what was measured on held-out examples


Row = dict[str, float | None]


class RunLog:
    """log.csv: a row an interval, with the step that ends it.

    Args:
        folder: of the run; the rows that its log.csv has are read. None: no
            file is read or written.
    """

    def __init__(self, folder: Path | None):
        self.path = folder and folder / LOG_FILE
        self.rows: list[Row] = []
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
        """Whether the interval that ends with this step was logged."""
        return any(row["step"] == step for row in self.rows)

    def append(self, row: Row) -> None:
        """Adds a row; the file is whole at any time."""
        self.rows.append(row)
        self._write()

    def keep_until(self, step: int) -> None:
        """Forgets what came after `step`: it will be done again."""
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
            names = list(self.rows[0]) if self.rows else ["step"]
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)


def _numbers(row: dict[str, str]) -> Row:
    values = {k: float(v) if v else None for k, v in row.items()}
    return {**values, "step": int(values["step"])}


def check_tensorboard() -> None:
    """Raises AlbertError unless the package is installed."""
    optional_import("tensorboard", "tensorboard", "--tensorboard")


class TensorBoard:
    """The log as TensorBoard reads it: OUTPUT/tensorboard.

    Not `keras.callbacks.TensorBoard`, which counts epochs where a run counts
    steps, and would write a step twice when a run goes on.

    Args:
        folder: of the run.
        rows: what was logged before.
    """

    def __init__(self, folder: Path, rows: list[Row]):
        self._summary = import_tensorflow().summary
        folder = folder / TENSORBOARD_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._writers = {
            part: self._summary.create_file_writer(str(folder / part))
            for part in ("train", "validation")
        }
        for row in rows:
            self.write(row)

    def write(self, row: Row) -> None:
        """Adds a row of the log."""
        for name, value in row.items():
            part = "validation" if name.startswith(HELD_OUT) else "train"
            if name != "step" and value is not None:
                with self._writers[part].as_default(step=row["step"]):
                    self._summary.scalar(name.removeprefix(HELD_OUT), value)
        for writer in self._writers.values():
            writer.flush()
