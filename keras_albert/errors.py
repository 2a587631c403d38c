"""The errors of the package, and checks of arguments that raise them.

This module only imports the standard library.
"""

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import math
import numbers
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class AlbertError(ValueError):
    """The user's input is wrong.

    The message says what is wrong, what was expected and received, and how to
    correct it. The command line prints it on one line and exits with status 2.
    """


class UnknownName(AlbertError, KeyError):
    """A mapping of this package does not have the key."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class LostProcess(AlbertError):
    """Another process of the run cannot be reached.

    Unlike other AlbertErrors, this is not a mistake of the user. The command
    line exits with status 75, and the run can be started again.
    """


@contextlib.contextmanager
def errors_about(place: object) -> Iterator[None]:
    """Context manager that puts `place` in front of the AlbertErrors in it."""
    try:
        yield
    except AlbertError as error:
        raise AlbertError(f"{place}: {error}") from None


LARGEST_COUNT = 2**31 - 1  # backends count in int32


def optional_import(module: str, extra: str, purpose: str) -> types.ModuleType:
    """Imports a module that only an extra of this package installs.

    If that fails, raises AlbertError, which names the `purpose` that needs the
    module and the command that installs the `extra`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise AlbertError(
            f"{purpose} needs {package}, which cannot be imported ({error}). "
            f"Run: pip install 'keras-albert[{extra}]'"
        ) from None


def check_installed(modules: str, packages: str, purpose: str) -> None:
    """Raises AlbertError unless modules are installed; imports none of them.

    `modules` are names with spaces between them, `packages` what pip installs,
    and `purpose` is what needs them.
    """
    for module in modules.split():
        if importlib.util.find_spec(module) is None:
            raise AlbertError(
                f"{purpose} needs {module.replace('_', '-')}, which is not "
                f"installed. Run: pip install {packages}"
            )


SIGKILL = 9  # signal.SIGKILL, which Windows lacks


def check_worker(worker: str, status: int, said: str) -> None:
    """Raises an error unless a worker process has ended with status 0.

    SIGKILL, which is mostly the system's answer to a lack of memory, is an
    AlbertError. Otherwise a RuntimeError has what the process `said`.
    """
    if status == -SIGKILL:
        raise AlbertError(
            f"{worker} was killed by signal {SIGKILL}. Free memory, or close "
            "other programs."
        )
    if status:
        how = f"was ended by signal {-status}" if status < 0 else "failed"
        raise RuntimeError(f"{worker} {how}:\n{said}")


def reason_of(error: Exception) -> str:
    """The first line of an error of another library, not too long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def is_whole(value) -> bool:
    """Whether `value` is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value) -> bool:
    """Whether `value` is a finite number of Python or NumPy, and no bool."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        return is_real and math.isfinite(value)
    except OverflowError:  # an integer above the largest float
        return False


def to_python_numbers(settings: Any) -> None:
    """Replaces NumPy's numbers in a frozen dataclass by Python's.

    Settings are written to JSON files, which hold no NumPy numbers.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, numbers.Number) and hasattr(value, "item"):
            object.__setattr__(settings, field.name, value.item())


def _check(valid: bool, name: str, value: object, expected: str) -> None:
    if not valid:
        raise AlbertError(
            f"`{name}` must be {expected}. Received: {name}={value!r}."
        )


def check_positive(name: str, value: int) -> None:
    """Raises AlbertError unless `value` is an integer of 1 or more."""
    valid = is_whole(value) and 1 <= value <= LARGEST_COUNT
    _check(valid, name, value, f"a positive integer (up to {LARGEST_COUNT})")


def check_flag(name: str, value: bool) -> None:
    """Raises AlbertError unless `value` is True or False."""
    _check(type(value) is bool, name, value, "True or False")


def check_seed(seed: int) -> None:
    """Raises AlbertError unless `seed` is an integer from 0 to 2**32 - 1."""
    valid = is_whole(seed) and 0 <= seed < 2**32
    _check(valid, "seed", seed, "an integer from 0 to 4294967295")


def check_positive_number(name: str, value: float) -> None:
    """Raises AlbertError unless `value` is a finite number above 0."""
    _check(is_number(value) and value > 0, name, value, "a positive number")


def check_not_negative(name: str, value: float) -> None:
    """Raises AlbertError unless `value` is a finite number of 0 or more."""
    _check(is_number(value) and value >= 0, name, value, "0 or more")


def check_probability(name: str, value: float) -> None:
    """Raises AlbertError unless `value` is in [0, 1)."""
    _check(is_number(value) and 0 <= value < 1, name, value, "in [0, 1)")


def check_fields(
    check: Callable[[str, Any], None], settings: Any, names: str
) -> None:
    """Checks several fields of a dataclass.

    `names` is one string, with spaces between the names. `check` is such as
    `check_positive`. None is valid where it is the default.
    """
    fields = {field.name: field for field in dataclasses.fields(settings)}
    for name in names.split():
        value = getattr(settings, name)
        if value is not None or fields[name].default is not None:
            check(name, value)


def check_choice(name: str, value, choices: tuple) -> None:
    """Raises AlbertError unless `value` is one of `choices`."""
    known = ", ".join(map(repr, choices))
    _check(value in choices, name, value, f"one of {known}")


def check_argument_names(
    cls: type, names: Iterable[str], inherited: Iterable[str]
) -> None:
    """Raises TypeError if `cls` lacks an argument; suggests a similar name.

    `inherited` are the arguments of its base class outside this package.

    Without this check, a misspelt argument gives a confusing error: Python
    first reports that the intended argument is missing, or Keras suggests
    nothing. Classes outside this package are not checked.
    """
    if not cls.__module__.startswith("keras_albert."):
        return
    known = {
        name: None
        for ancestor in cls.__mro__
        if ancestor.__module__.startswith("keras_albert.")
        for name in inspect.signature(ancestor.__init__).parameters
        if name not in ("self", "args", "kwargs")
    }
    for name in names:
        if name in known or name in inherited:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        remedy = f"It takes {', '.join(f'`{each}`' for each in known)}."
        if close:
            remedy = f"Did you mean `{close[0]}`?"
        raise TypeError(f"{cls.__name__}() has no argument `{name}`. {remedy}")
