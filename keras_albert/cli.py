"""The command line: parse and call, nothing else.

Nothing heavy is imported before a command runs, so that help is instant.
"""

import dataclasses
import difflib
import importlib
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from keras_albert import __version__
from keras_albert.aot.config import CompileRun
from keras_albert.corpus.config import PrepareRun, VocabRun
from keras_albert.distribution.config import LOST_PROCESS_STATUS
from keras_albert.errors import AlbertError, LostProcess
from keras_albert.exports.config import CheckRun, EmbedRun, ExportRun
from keras_albert.finetuning.config import (
    ConvertRun,
    EvaluateRun,
    FinetuneRun,
    InspectRun,
    PredictRun,
    PushRun,
    WhitenRun,
)
from keras_albert.help_text import (
    columns,
    overview,
    terminal_width,
    wrapped,
)
from keras_albert.options import (
    check_option,
    check_values,
    option_arguments,
    read_settings,
    recipe_options,
)
from keras_albert.pretraining.config import PretrainRun
from keras_albert.pretraining.sizes import SizesRun
from keras_albert.redirection import redirected
from keras_albert.settings import flatten, option_types
from keras_albert.signals import signals_as_ctrl_c
from keras_albert.startup import load_backend, open_standard_streams
from keras_albert.storage import DISK_ERRORS, REPORT_FILE, local_path
from keras_albert.sweep.config import SweepRun
from keras_albert.text.files import check_files


class Command(NamedTuple):
    """A command of `keras-albert`."""

    run_class: type  # its options
    # the module in keras_albert that is imported when the command runs
    module: str
    # the function of that module that takes an instance of `run_class`
    function: str


# In the order in which a user needs them.
COMMANDS = {
    "vocab": Command(VocabRun, "corpus.vocabulary", "train_vocabulary"),
    "prepare": Command(PrepareRun, "corpus.prepare", "prepare"),
    "pretrain": Command(PretrainRun, "pretraining.run", "pretrain"),
    "finetune": Command(FinetuneRun, "finetuning.run", "finetune"),
    "evaluate": Command(EvaluateRun, "finetuning.evaluate", "evaluate"),
    "predict": Command(PredictRun, "finetuning.predict", "predict"),
    "whiten": Command(WhitenRun, "finetuning.whiten", "whiten"),
    "embed": Command(EmbedRun, "exports.embed", "embed"),
    "export": Command(ExportRun, "exports.run", "export_run"),
    "check": Command(CheckRun, "exports.check", "check"),
    "sweep": Command(SweepRun, "sweep.run", "sweep"),
    "convert": Command(ConvertRun, "finetuning.convert", "convert"),
    "push": Command(PushRun, "finetuning.push", "push_run"),
    "compile": Command(CompileRun, "aot.compile", "compile_for_slice"),
    "inspect": Command(InspectRun, "finetuning.inspect", "inspect"),
    "sizes": Command(SizesRun, "pretraining.sizes", "print_sizes"),
}
# Options that name models or files as text: a path, or hf://organization/name.
_SOURCES = {"model", "teacher", "start", "warm_start", "input"}
# Commands that import no backend: the first two process text, and the third
# starts processes that import it. (`sweep` asks the tasks for their scores,
# whose modules import Keras.)
WITHOUT_BACKEND = (VocabRun, PrepareRun, CompileRun)
DESCRIPTION = (
    "Pretrain, fine-tune and serve ALBERT on the Keras backend that "
    "KERAS_BACKEND names (tensorflow, jax or torch). Every command also reads "
    "options from a TOML file or a run.json with --file (of sweep, the file "
    "that describes the search), and single ones with --set option=value. "
    "Options on the command line override --set, which overrides the file. "
    "--version prints the version."
)
# Exit status when the reader of the output has closed the pipe, as `head` does:
# 128 + SIGPIPE, which shells report for other programs.
NO_READER_STATUS = 141
DISK_ERROR_STATUS = 74  # of DISK_ERRORS: EX_IOERR of <sysexits.h>


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; a mistake of the user exits with status 2."""
    open_standard_streams()
    may_change = hasattr(sys.stdout, "reconfigure") and not sys.stdout.closed
    if may_change and sys.stdout.errors == "strict":
        # The locale's encoding may lack letters of labels and of file names.
        # Python itself does the same for the standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"keras-albert {__version__}")
        return
    status = 0
    try:
        try:
            with signals_as_ctrl_c():  # so that nothing unfinished is left
                _run(arguments)
        except SystemExit:  # after a help text
            _flush_output()
            raise
        _flush_output()  # here, where an error is still handled
    except BrokenPipeError:
        # The interpreter flushes the buffer at its end, which would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = NO_READER_STATUS
    except (AlbertError, OSError) as error:  # OSError: full disk, permission
        print(f"error: {error}", file=sys.stderr)
        status = 2
        if isinstance(error, LostProcess):
            status = LOST_PROCESS_STATUS
        elif getattr(error, "errno", None) in DISK_ERRORS:
            status = DISK_ERROR_STATUS
    except KeyboardInterrupt:
        status = 130
    # Not in the handlers above: objects in the traceback must not live until
    # the interpreter ends, when TensorFlow cannot end its collectives' threads.
    if status:
        sys.exit(status)


def _flush_output() -> None:
    if sys.stdout is not None:  # a daemon may have none
        sys.stdout.flush()


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["help"]:  # such as `help finetune`
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        classes = {name: each.run_class for name, each in COMMANDS.items()}
        print(overview(classes, DESCRIPTION, terminal_width()))
        return
    run = _parse(arguments)
    _check_tables(run)
    if type(run) not in WITHOUT_BACKEND:
        load_backend()
    for command in COMMANDS.values():
        if command.run_class is type(run):
            module = importlib.import_module(f"keras_albert.{command.module}")
            getattr(module, command.function)(run)


def _check_tables(run) -> None:
    """Refuses a mistyped name at once: a backend takes seconds to import.

    What has no suffix may be the folder of a benchmark or of token shards,
    which are checked where they are read. A finished run may have outlived its
    tables.
    """
    if isinstance(run, FinetuneRun) and (run.output / REPORT_FILE).exists():
        return
    for name in ("train", "validation", "data", "corpus"):
        path = getattr(run, name, None)
        if path is not None and path.suffix and not path.exists():
            check_files([path])


def _with_names(arguments: list[str]) -> list[str]:
    """Names the positional arguments of `check served model data`.

    They are the values of --export, --model and --data, unless these are given.
    --model and --labels take several values if all others of the three are
    there already, or are named.
    """
    if arguments[:1] != ["check"]:
        return arguments
    known = option_types(CheckRun)
    rest, named, bare = iter(arguments[1:]), [], []
    three = ("--export", "--model", "--data")
    given = {each.partition("=")[0] for each in arguments}.intersection(three)
    several = False  # whether values of --model or --labels are being read
    for argument in rest:
        if not argument.startswith("-"):
            (named if several else bare).append(argument)
            continue
        named.append(argument)
        others = {*three} - {argument}
        several = argument in ("--model", "--labels") and (
            len(others & given) + len(bare) >= len(others)
        )
        name = argument.lstrip("-").replace("-", "_").removeprefix("no_")
        takes_value = "=" not in argument and known.get(name) is not bool
        if takes_value and name not in ("h", "help"):
            named += [value for value in (next(rest, None),) if value]
    free = [name for name in three if name not in given]
    if len(bare) > len(free):
        raise AlbertError(
            "`check` takes --export, --model and --data, or their three "
            f"values in this order. Received also: {bare[len(free)]!r}. "
            "Several models go behind --model, with --export and --data "
            "named, too."
        )
    pairs = zip(free, bare, strict=False)
    return ["check", *named, *(part for pair in pairs for part in pair)]


def _with_settings(arguments: list[str]) -> list[str]:
    """Replaces `--file`, `--set` and `--recipe` by ordinary options.

    `pretrain --file run.toml --set seed=3 --steps 9` with `steps = 5` in the
    file becomes `pretrain --steps=5 --seed=3 --steps 9`, of which the last
    value counts. The options of `--recipe` come first of all.
    """
    command, *rest = arguments
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        raise AlbertError(
            f"there is no command `{command}`. "
            + (f"Did you mean `{close[0]}`? " if close else "")
            + f"The commands are {', '.join(COMMANDS)}."
        )
    if rest and not rest[0].startswith("-"):
        raise AlbertError(
            f"`{command}` takes options only. Received: {rest[0]!r}. Write the "
            "option before its value, such as --output folder; `keras-albert "
            f"{command} --help` lists the options."
        )
    known = option_types(COMMANDS[command].run_class)
    options, changes, ordinary = [], [], []
    recipes = {}  # by where the option was given
    rest = iter(rest)
    for argument in rest:
        name, equals, value = argument.partition("=")
        is_own = name.removeprefix("--") in known  # `sweep` has a --file
        if name not in ("--file", "--set", "--recipe") or is_own:
            check_option(name, known, command)
            ordinary.append(argument)
            continue
        value = value if equals else next(rest, "")
        if name == "--recipe":
            recipes["command line"] = value
            continue
        if name == "--file":
            settings = read_settings(local_path(value))
            if "recipe" in settings:
                recipes["file"] = str(settings.pop("recipe"))
            for key, setting in settings.items():
                options += option_arguments(key, setting, known, value)
            continue
        key, equals, value = value.partition("=")
        if not equals:
            raise AlbertError(
                "`--set` takes option=value, as in --set "
                f"optimizer.learning_rate=0.002. Received: {key!r}."
            )
        if key == "recipe":
            recipes["--set"] = value
            continue
        key = key.replace("-", "_")
        changes += option_arguments(key, value, known, "--set")
    check_values(ordinary, known)
    given = [*options, *changes, *ordinary]
    for place in ("command line", "--set", "file"):
        if place in recipes:
            own = recipe_options(command, recipes[place], given)
            return [command, *own, *given]
    return [command, *given]


def run_of(command: str, options: Mapping[str, object]):
    """Makes the settings object of a command from Python keyword arguments.

    Sections are dicts or dataclasses. None leaves an option at its default,
    and switches `validation` off. Raises AlbertError for what the command
    line refuses.
    """
    known, arguments = option_types(COMMANDS[command].run_class), []
    options = dict(options)
    recipe = options.pop("recipe", None)
    for name, value in options.items():
        if dataclasses.is_dataclass(value):  # a section
            options[name] = _given(value)
    for key, value in flatten(options).items():
        value = list(value) if isinstance(value, tuple) else value
        value = str(value) if isinstance(value, Path) else value
        arguments += option_arguments(key, value, known, f"{command}()")
    if recipe is not None:
        arguments = recipe_options(command, recipe, arguments) + arguments
    complaint = io.StringIO()
    try:
        with redirected(stderr=complaint):
            return _parse([command, *arguments])
    except SystemExit:
        words = re.sub(
            r"[^\w\s.,:;'\"`()=<>{}|/\\-]", " ", complaint.getvalue()
        )
        raise AlbertError(
            f"{command}(): the options are not valid: {' '.join(words.split())}"
        ) from None


def _given(section: object) -> dict[str, object]:
    """The fields of a section's dataclass that are not at their defaults."""
    return {
        field.name: getattr(section, field.name)
        for field in dataclasses.fields(section)
        if getattr(section, field.name) != field.default
    }


def _parse(arguments: list[str]):
    arguments = _with_settings(_with_names(arguments))
    union = None
    for name, command in COMMANDS.items():
        part = Annotated[command.run_class, tyro.conf.subcommand(name)]
        union = part if union is None else union | part
    complaint, said = io.StringIO(), io.StringIO()
    try:
        with redirected(said, complaint), columns(terminal_width()):
            run = tyro.cli(union, prog="keras-albert", args=arguments)
        return _with_local_paths(run)
    except SystemExit as stop:
        # Our own checks refused a value: one line instead of tyro's box.
        cause = stop.__context__
        while cause is not None:
            if isinstance(cause, AlbertError):
                raise cause from None
            cause = cause.__context__
        width = terminal_width()
        print(wrapped(complaint.getvalue(), width), end="", file=sys.stderr)
        print(wrapped(said.getvalue(), width), end="")
        raise


def _with_local_paths(run):
    """Replaces "~" at the start of every path, which not every shell does."""
    paths = {
        field.name: _expanded(getattr(run, field.name))
        for field in dataclasses.fields(run)
        if field.name in _SOURCES or isinstance(getattr(run, field.name), Path)
    }
    return dataclasses.replace(run, **paths)


def _expanded(value):
    if isinstance(value, tuple):
        return tuple(map(_expanded, value))
    if isinstance(value, str):  # "hf://" would not be the same as a Path
        return os.path.expanduser(value)
    return value and local_path(value)


if __name__ == "__main__":
    main()
