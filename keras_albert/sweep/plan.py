"""Reads the file of a search: a command, its options, the values to try."""

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Mapping
from pathlib import Path

from keras_albert.errors import AlbertError, is_number
from keras_albert.finetuning.config import FinetuneRun
from keras_albert.options import option_arguments
from keras_albert.pretraining.config import PretrainRun
from keras_albert.settings import closest_option, flatten, option_types
from keras_albert.storage import read_toml
from keras_albert.tasks.names import FINETUNE_TASKS

COMMANDS = {"finetune": FinetuneRun, "pretrain": PretrainRun}
MOST_COMBINATIONS = 1000
_TABLES = ("command", "options", "search")

# Options that are not used if the other option is given.
WITHOUT_EFFECT = {"epochs": "steps", "warmup_share": "warmup_steps"}

RANGE = ("low", "high", "points")  # the keys of a range of values

Value = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class SearchPlan:
    """The options and values that a search tries."""

    command: str
    """"finetune" or "pretrain\""""
    options: dict[str, object]
    """options that all runs share, by their dotted names"""
    search: dict[str, list[Value]]
    """the values to try, by the name of the option"""

    @property
    def combinations(self) -> int:
        """The number of combinations of values."""
        return math.prod(map(len, self.search.values()))


def read_plan(path: Path) -> SearchPlan:
    """Reads the TOML file of a search.

    Raises AlbertError if it is not such a file, an option does not exist, is
    there twice or has no values, or there are too many combinations.
    """
    # Names and types are checked before the first run. A number out of its
    # range makes the runs fail that have it, perhaps after hours.
    content = read_toml(path)
    if unknown := sorted(content.keys() - set(_TABLES)):
        raise AlbertError(
            f"{path}: expected {', '.join(_TABLES)}. Received also: "
            f"{', '.join(unknown)}."
        )
    command = content.get("command")
    if not isinstance(command, str) or command not in COMMANDS:
        raise AlbertError(
            f"{path}: `command` must be one of {', '.join(COMMANDS)}. "
            f"Received: {command!r}."
        )
    for name in ("options", "search"):
        if not isinstance(content.get(name, {}), dict):
            raise AlbertError(
                f"{path}: `{name}` must be a table. Received: "
                f"{content[name]!r:.60}. Begin it with the line [{name}]."
            )
    options = flatten(content.get("options", {}))
    given = _flat_search(content.get("search", {}))
    if not given:
        raise AlbertError(
            f"{path}: `search` is empty. Give an option with its values, such "
            "as learning_rate = [1e-4, 3e-4]."
        )
    known = option_types(COMMANDS[command]) | {"recipe": str}
    for name, value in (*options.items(), *given.items()):
        _check_name(path, command, name, known)
        _check_json(path, name, value)
    search = {
        name: _values(path, name, value, known[name])
        for name, value in given.items()
    }
    given = [(name, [value]) for name, value in options.items()]
    for name, values in (*given, *search.items()):
        if name != "recipe":  # stands for several options
            for value in values:
                option_arguments(name, value, known, str(path))
    if twice := sorted(options.keys() & search.keys()):
        raise AlbertError(
            f"{path}: `{twice[0]}` is in `options` and in `search`. Remove it "
            "from one of them."
        )
    for name, other in WITHOUT_EFFECT.items():
        if name in search and other in (*options, *search):
            raise AlbertError(
                f"{path}: `{name}` has no effect beside `{other}`, and all of "
                "its values would give the same run. Remove one of the two."
            )
    for task in search.get("task", [options.get("task")]):
        if task not in (None, *FINETUNE_TASKS):
            raise AlbertError(
                f"{path}: `task` must be one of {', '.join(FINETUNE_TASKS)}. "
                f"Received: {task!r}."
            )
    plan = SearchPlan(command, options, search)
    if plan.combinations > MOST_COMBINATIONS:
        raise AlbertError(
            f"{path}: {plan.combinations:,} combinations, more than "
            f"{MOST_COMBINATIONS:,}. Search fewer options or values."
        )
    return plan


def _flat_search(search: Mapping, prefix: str = "") -> dict[str, object]:
    """The tables and lists of values by the dotted names of options."""
    found = {}
    for name, value in search.items():
        # A table is either a range {low, high, points}, which is a value, or a
        # section of options, such as [search.optimizer].
        if isinstance(value, dict) and value.keys().isdisjoint(RANGE):
            found |= _flat_search(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _values(path: Path, name: str, value: object, kind: object) -> list[Value]:
    if isinstance(value, dict):
        counts = int in (kind, *typing.get_args(kind))
        return _range(path, name, value, counts)
    if not isinstance(value, list) or not value:
        raise AlbertError(
            f"{path}: `search.{name}` must be a list of one or more values, or "
            f"{{low, high, points}}. Received: {value!r:.60}."
        )
    return _all_different(path, name, value, kind)


def _range(path: Path, name: str, value: dict, counts: bool) -> list[Value]:
    """Values from low to high at equal ratios, rounded if they are `counts`."""
    low, high, points = map(value.get, RANGE)
    numbers = is_number(low) and is_number(high)
    if (
        value.keys() != {*RANGE}
        or not numbers
        or type(points) is not int
        or not 0 < low < high
        or not 2 <= points <= MOST_COMBINATIONS
        or not math.isfinite(high / low)
    ):
        raise AlbertError(
            f"{path}: `search.{name}` must have low, high (0 < low < high, "
            "and high / low below 1.8e308) and "
            f"points (2 to {MOST_COMBINATIONS:,}). Received: {value!s:.80}."
        )
    # Equal ratios and not equal differences: learning rates and the like matter
    # by their order of magnitude.
    ratio = (high / low) ** (1 / (points - 1))
    exact = [low * ratio**i for i in range(points)]
    values = [round(x) if counts else float(f"{x:.3g}") for x in exact]
    return _all_different(path, name, values, float)


def _all_different(
    path: Path, name: str, values: list[Value], kind: object
) -> list[Value]:
    """Returns the values, or raises AlbertError if two of them are equal.

    `kind` is the type of the option, by which the texts "1e-3" and "0.001" may
    be the same number.

    Two runs of the same settings would have the same output folder.
    """
    # Of 1 and 1.0, too, which Optuna takes for the same value.
    numeric = {int, float} & {kind, *typing.get_args(kind)}
    compared = [_as_number(x) if numeric else x for x in values]
    pairs = itertools.combinations(compared, 2)
    if any(a == b or str(a) == str(b) for a, b in pairs):
        raise AlbertError(
            f"{path}: `search.{name}` has a value twice: {values}. Remove one, "
            "or give fewer points."
        )
    return values


def _as_number(value: Value) -> object:
    """The number that a text stands for; other values unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _check_json(path: Path, name: str, value: object) -> None:
    """Raises AlbertError for a date, a time, inf or nan, which JSON lacks."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise AlbertError(
            f"{path}: `{name}` must be texts, finite numbers, true or false. "
            f"Received: {value}. Put a text in quotes."
        ) from None


def _check_name(path: Path, command: str, name: str, known: dict) -> None:
    if name == "output":
        raise AlbertError(
            f"{path}: each run has an output of its own. Remove `output`, and "
            "give --output to `sweep`."
        )
    if name not in known:
        close = closest_option(name, known)
        hint = f" Did you mean `{close}`?" if close else ""
        raise AlbertError(f"{path}: `{command}` has no option `{name}`.{hint}")
