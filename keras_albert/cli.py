"""The command line: parse and call, nothing else.

Nothing heavy is imported before a command runs, so that help is instant.
"""

import contextlib
import dataclasses
import difflib
import importlib
import io
import os
import sys
import tempfile
import tomllib
import types
import typing
from pathlib import Path
from typing import Annotated

import tyro

from keras_albert import __version__
from keras_albert.config import (
    LOST_PROCESS_STATUS,
    AlbertError,
    CheckRun,
    CompileRun,
    ConvertRun,
    EvaluateRun,
    ExportRun,
    FinetuneRun,
    LostProcess,
    PredictRun,
    PrepareRun,
    PretrainRun,
    VocabRun,
    read_json,
)
from keras_albert.storage import flat
from keras_albert.training.recipes import RECIPES


def _vocab(run: VocabRun) -> None:
    from keras_albert.text.vocabulary import train_vocabulary

    tokenizer = train_vocabulary(run)
    print(f"{tokenizer.vocab_size:,} pieces -> {run.output}")


def _prepare(run: PrepareRun) -> None:
    if run.beam is None:
        from keras_albert.data.prepare import prepare
    else:
        from keras_albert.data.beam import prepare

    prepare(run)


def _pretrain(run: PretrainRun) -> None:
    from keras_albert.training.pretrain import pretrain

    pretrain(run)


def _finetune(run: FinetuneRun) -> None:
    from keras_albert.training.finetune import finetune

    finetune(run)


def _evaluate(run: EvaluateRun) -> None:
    from keras_albert.training.evaluate import evaluate

    evaluate(run)


def _predict(run: PredictRun) -> None:
    from keras_albert.training.predict import predict

    predict(run)


def _export(run: ExportRun) -> None:
    from keras_albert.export.exporting import export

    export(run)


def _check(run: CheckRun) -> None:
    from keras_albert.export.checking import check

    check(run)


def _convert(run: ConvertRun) -> None:
    from keras_albert.training.convert import convert

    convert(run)


def _compile(run: CompileRun) -> None:
    from keras_albert.training.compiling import compile_for_slice

    compile_for_slice(run)


# In the order in which a user needs them.
COMMANDS = {
    "vocab": (VocabRun, _vocab),
    "prepare": (PrepareRun, _prepare),
    "pretrain": (PretrainRun, _pretrain),
    "finetune": (FinetuneRun, _finetune),
    "evaluate": (EvaluateRun, _evaluate),
    "predict": (PredictRun, _predict),
    "export": (ExportRun, _export),
    "check": (CheckRun, _check),
    "convert": (ConvertRun, _convert),
    "compile": (CompileRun, _compile),
}
# These load no backend: text alone, and what works in another process.
WITHOUT_BACKEND = (VocabRun, PrepareRun, CompileRun)


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; exits with 2 on a user's mistake."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"keras-albert {__version__}")
        return
    status = 0
    try:
        run = _parse(arguments)
        if type(run) not in WITHOUT_BACKEND:
            _load_backend()
        dict(COMMANDS.values())[type(run)](run)
    except (AlbertError, OSError) as error:  # OSError: no room, no permission
        print(f"error: {error}", file=sys.stderr)
        lost = isinstance(error, LostProcess)
        status = LOST_PROCESS_STATUS if lost else 2
    except KeyboardInterrupt:
        status = 130
    # Not above: what the traceback holds must not last until the interpreter
    # ends, where threads of TensorFlow's collectives cannot be ended.
    if status:
        sys.exit(status)


def _load_backend() -> None:
    """Imports Keras and TensorFlow without TensorFlow's start-up chatter.

    Raises:
        AlbertError: Keras cannot load the backend that it is told to.
    """
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile() as chatter, contextlib.ExitStack() as stack:
        if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0":
            # It comes from C++, below sys.stderr.
            stderr = os.dup(2)
            os.dup2(chatter.fileno(), 2)
            stack.callback(os.close, stderr)
            stack.callback(os.dup2, stderr, 2)
        try:
            import keras  # noqa: F401

            importlib.import_module("tensorflow")
        except (ImportError, ValueError) as error:
            raise AlbertError(
                f"cannot load the Keras backend {name!r} and TensorFlow, which "
                f"feeds the data ({error}). Set KERAS_BACKEND to tensorflow, "
                "jax or torch, and install that extra of keras-albert."
            ) from None


def _with_settings(arguments: list[str]) -> list[str]:
    """Options of `--file` and `--set` as ordinary ones, in front of them.

    `pretrain --file run.toml --set seed=3 --steps 9` with `steps = 5` in the
    file is `pretrain --steps=5 --seed=3 --steps 9`; the last one counts. So
    do those of `finetune --recipe`, first of all.

    Raises:
        AlbertError: a file that cannot be read, or an option that is none.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return arguments
    command, *rest = arguments
    known = _option_types(COMMANDS[command][0])
    options, changes, ordinary = [], [], []
    recipes = {}  # by where the option stands
    rest = iter(rest)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in ("--file", "--set", "--recipe"):
            ordinary.append(argument)
            continue
        value = value if equals else next(rest, "")
        if name == "--recipe":
            recipes["command line"] = value
            continue
        if name == "--file":
            settings = _read_settings(Path(value))
            if "recipe" in settings:
                recipes["file"] = str(settings.pop("recipe"))
            for key, setting in settings.items():
                options += _option(key, setting, known, value)
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
        changes += _option(key.replace("-", "_"), value, known, "--set")
    given = [*options, *changes, *ordinary]
    for place in ("command line", "--set", "file"):
        if place in recipes:
            given = _recipe_options(command, recipes[place], given) + given
            break
    return [command, *given]


def _recipe_options(command: str, name: str, given: list[str]) -> list[str]:
    """Options of a row of the paper's Table 14; "paper" is that of the task."""
    if command != "finetune":
        raise AlbertError(
            f"`--recipe` is for `finetune`. Received: {command}. Leave it out."
        )
    if name == "paper":
        # "--task=CoLA" or "--task", "CoLA"
        words = [part for word in given for part in word.split("=", 1)]
        places = [i for i, word in enumerate(words) if word == "--task"]
        name = "".join(words[places[-1] + 1 :][:1]) if places else ""
    if name not in RECIPES:
        raise AlbertError(
            f"`--recipe` is paper, with one of these as --task, or one of "
            f"them: {', '.join(RECIPES)}. Received: {name or 'no --task'}."
        )
    settings = dataclasses.asdict(RECIPES[name])
    del settings["start"]  # a model, see `finetune --model`
    # Another length of the run keeps the share of the warm-up.
    options = {option.partition("=")[0] for option in given}
    if not options.isdisjoint({"--steps", "--epochs", "--warmup-share"}):
        steps, warmup_steps = settings["steps"], settings.pop("warmup_steps")
        settings["warmup_share"] = warmup_steps / steps
    if "--epochs" in options:
        del settings["steps"]
    return [
        f"--{key.replace('_', '-')}={value}" for key, value in settings.items()
    ]


def _option_types(run_class, prefix: str = "") -> dict[str, type]:
    """{"seed": int, "optimizer.beta_1": float, ...}."""
    types = {}
    for field in dataclasses.fields(run_class):
        if dataclasses.is_dataclass(field.type):
            types |= _option_types(field.type, f"{prefix}{field.name}.")
        else:
            types[prefix + field.name] = field.type
    return types


def _read_settings(path: Path) -> dict:
    """The options of a TOML file, or of the run.json of another run."""
    if not path.is_file():
        raise AlbertError(
            f"{path}: no such file. `--file` takes a TOML file or a run.json."
        )
    if path.suffix == ".json":
        settings = read_json(path)
    else:
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise AlbertError(f"{path}: not a TOML file ({error}).") from None
    if not isinstance(settings, dict):
        raise AlbertError(f"{path}: expected options with their values.")
    return flat(settings)


def _option(key: str, value, known: dict[str, type], source: str) -> list[str]:
    """A setting as the command line has it.

    Args:
        source: where it stands, for messages.
    """
    if value is None:  # as options are that are not given
        return []
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        raise AlbertError(
            f"{source}: `{key}` is a section. Give one of its options, such as "
            f"`{inside[0]}`. Received: {key}={value!r}."
        )
    if key not in known:
        section, dot, last = key.rpartition(".")
        ends = [
            name.removeprefix(section + dot)
            for name in known
            if name.startswith(section + dot)
        ]
        close = difflib.get_close_matches(key, known, n=1)
        if ends:  # the section is known
            close = difflib.get_close_matches(last, ends, n=1)
            close = [section + dot + end for end in close]
        hint = f"Did you mean `{close[0]}`?" if close else "See --help."
        raise AlbertError(f"{source}: there is no option `{key}`. {hint}")
    name = key.replace("_", "-")
    may_be_absent = _without_none(known[key]) is not known[key]
    if may_be_absent and str(value).lower() == "none":
        return [f"--{name}=None"]  # over what a file gives
    _check_kind(key, value, known[key], source)
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if known[key] is not bool:
        return [f"--{name}={value}"]
    if str(value).lower() == "true":
        return [f"--{name}"]
    section, dot, last = name.rpartition(".")
    return [f"--{section}{dot}no-{last}"]


def _check_kind(key: str, value, kind: type, source: str) -> None:
    """AlbertError unless the value can be what the option wants."""
    kind, text = _without_none(kind), str(value)
    choices = typing.get_args(kind)
    if kind is bool:
        wanted, fits = "true or false", text.lower() in ("true", "false")
    elif typing.get_origin(kind) is typing.Literal:
        wanted, fits = f"one of {', '.join(choices)}", value in choices
    elif typing.get_origin(kind) is tuple:
        return
    elif kind in (int, float):
        wanted = "an integer" if kind is int else "a number"
        try:
            fits = not isinstance(value, bool) and kind(text) is not None
        except ValueError:
            fits = False
    else:  # text or a path
        wanted = "a single value, and not left out"
        fits = not isinstance(value, list) and text.lower() != "none"
    if not fits:
        raise AlbertError(
            f"{source}: `{key}` must be {wanted}. Received: {value!r}."
        )


def _without_none(kind: type) -> type:
    """int of `int | None`."""
    if not isinstance(kind, types.UnionType):
        return kind
    (kind,) = set(typing.get_args(kind)) - {type(None)}
    return kind


def _parse(arguments: list[str]):
    arguments = _with_settings(arguments)
    union = None
    for name, (run_class, _) in COMMANDS.items():
        command = Annotated[run_class, tyro.conf.subcommand(name)]
        if run_class is CheckRun:
            command = Annotated[command, tyro.conf.PositionalRequiredArgs]
        union = command if union is None else union | command
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                union,
                prog="keras-albert",
                description=(
                    "Pretrain, fine-tune and serve ALBERT on the Keras backend "
                    "that KERAS_BACKEND names (tensorflow, jax or torch). "
                    "Every command also reads its options from a TOML file or "
                    "a run.json with --file, and single ones with --set "
                    "option=value; those on the command line win over --set, "
                    "and it over the file. --version says which one this is."
                ),
                args=arguments,
            )
    except SystemExit as stop:
        # A value that our own checks refuse: one line instead of tyro's box.
        cause = stop.__context__
        while cause is not None:
            if isinstance(cause, AlbertError):
                raise cause from None
            cause = cause.__context__
        sys.stderr.write(complaint.getvalue())
        raise


if __name__ == "__main__":
    main()
