"""Commands as users type them, run in this process, and what they write."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from keras_albert.cli import main


def run(command: str, *options: str | Path, **settings) -> None:
    """Runs a command; `batch_size=8` stands for --batch-size=8."""
    given = [f"--{k.replace('_', '-')}={v}" for k, v in settings.items()]
    main([command, *given, *map(str, options)])


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


def read_json(path: Path):
    return json.loads(path.read_text())


def report_of(folder: Path) -> dict:
    return read_json(folder / "report.json")


def rows_of(text: str) -> list:
    """The lines of a JSONL file, or of what a command printed."""
    return [*map(json.loads, text.splitlines())]


def write_rows(path: Path, rows: Iterable) -> Path:
    """Writes a JSONL file."""
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
