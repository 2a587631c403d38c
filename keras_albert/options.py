"""Options of the commands that do not come from the command line.

They come from files, recipes, or arguments in Python, and become arguments of
the command line, which checks them as any other.
"""

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable
from pathlib import Path

from keras_albert.errors import AlbertError
from keras_albert.finetuning.recipes import RECIPES
from keras_albert.pretraining.recipes import RECIPES as PRETRAINING
from keras_albert.settings import closest_option, flatten
from keras_albert.storage import read_json, read_toml


def check_option(argument: str, known: dict[str, type], command: str) -> None:
    """Raises AlbertError for an option that the command does not have.

    `argument` is without its value; `known` are the types of options by name.
    """
    if not argument.startswith("--"):
        return  # the value of an option
    key = argument.removeprefix("--").replace("-", "_")
    section, dot, last = key.rpartition(".")
    switch = section + dot + last.removeprefix("no_")
    if key in (*known, "help") or known.get(switch) is bool:
        return
    close = closest_option(key, [*known, "file", "set", "recipe"])
    hint = f"See `keras-albert {command} --help`."
    if close:
        hint = f"Did you mean `--{close.replace('_', '-')}`?"
    raise AlbertError(f"`{command}` has no option `{argument}`. {hint}")


def check_values(arguments: list[str], known: dict[str, type]) -> None:
    """Raises AlbertError if a number or a choice of the command line is wrong.

    `known` are the types of the command's options by name.
    """
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        kind = known.get(name.removeprefix("--").replace("-", "_"))
        if kind in (None, bool) or not name.startswith("--"):
            continue  # a switch, or the value of an option
        values = [value]
        if not equals:
            rest = arguments[place + 1 :]
            values = list(itertools.takewhile(lambda x: x[:2] != "--", rest))
        plain = _without_none(kind)
        may_be_absent = plain is not kind
        if typing.get_origin(plain) is tuple:
            plain = typing.get_args(plain)[0]
            if any(
                each.partition("=")[0] == name for each in arguments[:place]
            ):
                raise AlbertError(
                    f"`{name}` is given twice, and only the last would count. "
                    "Write all values behind one."
                )
        elif not values:
            raise AlbertError(
                f"`{name}` needs a value. Write it after the option."
            )
        else:
            del values[1:]
        if plain in (int, float) or typing.get_origin(plain) is typing.Literal:
            for each in values:
                if each != "None" or not may_be_absent:
                    _check_kind(f"`{name}`", each, plain)


def option_arguments(
    key: str, value, known: dict[str, type], source: str
) -> list[str]:
    """The command-line arguments for one setting.

    `source` names its origin in messages: a file, "--set" or "finetune()".
    """
    if value is None:
        # For most options None is the default. `finetune --validation` has
        # another default, and run.json contains null if it was none.
        return ["--validation=None"] if key == "validation" else []
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        raise AlbertError(
            f"{source}: `{key}` is a section. Give one of its options, such as "
            f"`{inside[0]}`. Received: {key}={value!r}."
        )
    if key not in known:
        close = closest_option(key, known)
        hint = f"Did you mean `{close}`?" if close else "See --help."
        raise AlbertError(f"{source}: there is no option `{key}`. {hint}")
    name = key.replace("_", "-")
    may_be_absent = _without_none(known[key]) is not known[key]
    if may_be_absent and str(value).lower() == "none":
        return [f"--{name}=None"]  # overrides a value in a file
    _check_kind(f"{source}: `{key}`", value, known[key])
    if isinstance(value, list):
        texts = [*map(str, value)]
        for text in texts:
            begins = text.startswith("-") and text.lstrip("-")[:1].isalpha()
            if text == "--" or (begins and not _converts(text, float)):
                raise AlbertError(
                    f"{source}: a value of `{key}` begins with a hyphen and a "
                    "letter, as an option of the command line does. Received: "
                    f"{text!r}. Rename it."
                )
        return [f"--{name}", *texts]
    if known[key] is not bool:
        return [f"--{name}={value}"]
    if str(value).lower() == "true":
        return [f"--{name}"]
    section, dot, last = name.rpartition(".")
    return [f"--{section}{dot}no-{last}"]


def _check_kind(option: str, value, kind: type) -> None:
    """Raises AlbertError for a value of another type than the option's.

    `option` is how the message names the option.
    """
    kind, text = _without_none(kind), str(value)
    values = value if isinstance(value, list) else [value]
    choices = typing.get_args(kind)
    if kind is bool:
        wanted, fits = "true or false", text.lower() in ("true", "false")
    elif typing.get_origin(kind) is typing.Literal:
        wanted, fits = f"one of {', '.join(choices)}", value in choices
    elif typing.get_origin(kind) is tuple and choices[0] in (int, float):
        wanted = "a number or a list of numbers"
        fits = all(_converts(each, choices[0]) for each in values)
    elif typing.get_origin(kind) is tuple or isinstance(kind, types.UnionType):
        wanted = "a text or a list of texts"
        fits = all(isinstance(each, str) for each in values)
    elif kind in (int, float):
        wanted = "an integer" if kind is int else "a number"
        fits = _converts(value, kind)
    else:  # text or a path
        wanted = "a text, a number or a path"
        fits = isinstance(value, str | int | float) and text.lower() != "none"
    if not fits:
        raise AlbertError(f"{option} must be {wanted}. Received: {value!r}.")


def _converts(value: object, kind: Callable) -> bool:
    """Whether a value, or the text of one, is a number of a type."""
    try:
        return not isinstance(value, bool) and kind(str(value)) is not None
    except ValueError:
        return False


def _without_none(kind: type) -> type:
    """The type without None: int for `int | None`."""
    kinds = set(typing.get_args(kind))
    # The union of a Literal and None is a typing.Union.
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    if not is_union or type(None) not in kinds:
        return kind
    (kind,) = kinds - {type(None)}
    return kind


def read_settings(path: Path) -> dict:
    """The options of a TOML file, or of the run.json of another run."""
    if not path.is_file():
        raise AlbertError(
            f"{path}: no such file. `--file` takes a TOML file or a run.json."
        )
    settings = (read_json if path.suffix == ".json" else read_toml)(path)
    if not isinstance(settings, dict):
        raise AlbertError(f"{path}: expected options with their values.")
    return flatten(settings)


def recipe_options(command: str, name: str, given: list[str]) -> list[str]:
    """The options of a recipe of `pretrain` or `finetune`."""
    options = {"pretrain": _pretraining, "finetune": _finetuning}.get(command)
    if options is None:
        raise AlbertError(
            "`--recipe` is for `pretrain` and `finetune`. Received: "
            f"{command}. Leave it out."
        )
    given = [_with_hyphens(word) for word in given]
    return [
        f"--{key.replace('_', '-')}={value}"
        for key, value in options(name, given).items()
    ]


def _with_hyphens(word: str) -> str:
    """--warmup_share=0.1 as --warmup-share=0.1; tyro takes both."""
    name, equals, value = word.partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    return name + equals + value


def _pretraining(name: str, given: list[str]) -> dict:
    """The options of a recipe of `pretrain`, for the number of steps given."""
    if name not in PRETRAINING:
        raise AlbertError(
            f"`--recipe` must be {', '.join(PRETRAINING)}. Received: {name!r}."
        )
    steps = _last_value("--steps", given)
    settings = PRETRAINING[name](*[int(steps)] if _converts(steps, int) else [])
    sources = (
        _last_value(each, given) for each in ("--config", "--warm-start")
    )
    if any(source and source.lower() != "none" for source in sources):
        del settings["variant"]  # the model's size is given
    return settings


def _finetuning(name: str, given: list[str]) -> dict:
    """The options of a row of Table 14; "paper" takes the row of --task."""
    if name == "paper":
        name = _last_value("--task", given)
    if name not in RECIPES:
        raise AlbertError(
            f"`--recipe` must be one of {', '.join(RECIPES)}, or `paper` with "
            "one of them as --task. Received: "
            f"{name or '--recipe paper without --task'}."
        )
    settings = dataclasses.asdict(RECIPES[name])
    del settings["start"]  # a model, which `finetune --model` gives
    # With another number of steps, warm-up keeps its share of them.
    options = {option.partition("=")[0] for option in given}
    if not options.isdisjoint({"--steps", "--epochs", "--warmup-share"}):
        steps, warmup_steps = settings["steps"], settings.pop("warmup_steps")
        settings["warmup_share"] = warmup_steps / steps
    if "--epochs" in options:
        del settings["steps"]
    return settings


def _last_value(option: str, given: list[str]) -> str:
    """The last value of an option: of "--task=CoLA", or "--task", "CoLA"."""
    words = [part for word in given for part in word.split("=", 1)]
    places = [i for i, word in enumerate(words) if word == option]
    return "".join(words[places[-1] + 1 :][:1]) if places else ""
