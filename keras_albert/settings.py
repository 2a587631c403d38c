"""Settings of commands, which are dataclasses, as dicts and dotted names."""

import dataclasses
import json


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
