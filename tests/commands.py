"""Commands as users type them, run in this process, and what they write."""

import contextlib
import csv
import io
import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from keras_albert.cli import main


def run(command: str, *options: str | Path, **settings) -> str:
    """Runs a command and returns what it prints.

    `batch_size=8` stands for --batch-size=8.
    """
    given = [f"--{k.replace('_', '-')}={v}" for k, v in settings.items()]
    said = io.BytesIO()
    written = io.TextIOWrapper(said, "utf-8", newline="", write_through=True)
    try:
        with contextlib.redirect_stdout(written):
            main([command, *given, *map(str, options)])
    finally:
        print(said.getvalue().decode(), end="")
    return said.getvalue().decode()


def refused(capsys, command: str, *options: str | Path, **settings) -> str:
    """What a command that ends with status 2 says, without line ends.

    Its error is the last line.
    """
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(command, *options, **settings)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("error: "), said
    return " ".join(said.split())


class Begun(Exception):
    """A training would begin. Its argument is the `Training`."""


def training_of(call: Callable[[], object]):
    """The `Training` that a command would begin, of which no step runs."""

    def begin(training):
        raise Begun(training)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Begun) as begun:
        patch.setattr("keras_albert.training.cost.fit_into_folder", begin)
        call()
    return begun.value.args[0]


def output_of(*program: str | Path, **settings) -> str:
    """Runs a program in a process of its own; returns what it prints."""
    done = subprocess.run(program, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_json(path: Path):
    return json.loads(path.read_text())


def edit_json(path: Path, **changes) -> None:
    """Replaces fields of a file, adds them, or, given None, removes them."""
    content = read_json(path) | changes
    for name in [key for key, value in changes.items() if value is None]:
        del content[name]
    path.write_text(json.dumps(content))


def report_of(folder: Path) -> dict:
    return read_json(folder / "report.json")


def table_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def log_of(folder: Path) -> list[dict[str, str]]:
    return table_of(folder / "log.csv")


def rows_of(text: str) -> list:
    """The lines of a JSONL file, or of what a command printed."""
    return [*map(json.loads, text.splitlines())]


def write_rows(path: Path, rows: Iterable) -> Path:
    """Writes a JSONL file."""
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
