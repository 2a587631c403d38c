"""Settings of commands, which are dataclasses, as dicts and dotted names."""

import dataclasses
import difflib
import json
from collections.abc import Collection


def settings_of(run) -> dict:
    """Converts the settings of a run, a dataclass, to a dict of JSON values.

    What JSON lacks, such as a path, becomes text.
    """
    return json.loads(json.dumps(dataclasses.asdict(run), default=str))


def option_types(run_class: type, prefix: str = "") -> dict[str, type]:
    """The type of each option of a command, by its dotted name.

    `run_class` is the dataclass of the settings. Example of a result:
    {"seed": int, "optimizer.beta_1": float}.
    """
    types = {}
    for field in dataclasses.fields(run_class):
        if dataclasses.is_dataclass(field.type):
            types |= option_types(field.type, f"{prefix}{field.name}.")
        else:
            types[prefix + field.name] = field.type
    return types


def flatten(settings: dict, prefix: str = "") -> dict:
    """Flattens a nested dict: {"a": {"b": 1}} becomes {"a.b": 1}."""
    flattened = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flattened |= flatten(value, f"{prefix}{name}.")
        else:
            flattened[prefix + name] = value
    return flattened


def closest_option(key: str, known: Collection[str]) -> str | None:
    """The known option whose name is most like a mistyped one, if any is."""
    section, dot, last = key.rpartition(".")
    prefix = section + dot
    ends = [n.removeprefix(prefix) for n in known if n.startswith(prefix)]
    if not ends:  # the section is unknown
        prefix, last, ends = "", key, known
    close = difflib.get_close_matches(last, ends, n=1)
    if close:
        return prefix + close[0]
    # `--text-column` is `--columns.text`.
    words = {last, *last.split("_")}
    inner = (name for name in known if "." in name)
    return next((n for n in inner if n.rpartition(".")[2] in words), None)
