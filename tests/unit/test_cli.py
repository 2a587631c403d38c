"""Options from files, and mistakes in them."""

import dataclasses
import errno
import gc
import importlib.abc
import importlib.machinery
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from keras_albert import cli, startup
from keras_albert.cli import (
    COMMANDS,
    NO_READER_STATUS,
    _parse,
    main as command,
    run_of,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import OWN_VALIDATION
from keras_albert.pretraining.config import PretrainRun
from keras_albert.startup import _garbage_collector_off, load_backend
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.run_folder import claim_folder

pytestmark = pytest.mark.any_backend

TOML = """
data = "shards"
output = "pretrained"
steps = 500
warmup_steps = 50
remat = true

[optimizer]
learning_rate = 0.01
beta_1 = 0.8

[examples]
ngram = 2
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(errno.EIO, 74), (errno.ESTALE, 74), (errno.EACCES, 2), (None, 2)],
)
def test_status_after_an_error_of_the_disk(number, status, monkeypatch, capsys):
    """Other than after a mistake, a script may start the command again."""
    error = OSError(number, "no luck") if number else OSError("no luck")
    monkeypatch.setattr(cli, "_run", Mock(side_effect=error))
    with pytest.raises(SystemExit) as stop:
        command(["sizes"])
    assert stop.value.code == status
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.fixture
def toml(tmp_path):
    return write_toml(tmp_path, TOML)


def write_toml(folder, content):
    path = folder / "run.toml"
    path.write_text(content)
    return str(path)


def test_a_file_is_its_options(toml):
    run = _parse(["pretrain", "--file", toml])
    assert (str(run.data), run.steps, run.remat) == ("shards", 500, True)
    assert run.optimizer == OptimizerConfig(learning_rate=0.01, beta_1=0.8)
    assert run.examples.ngram == 2
    assert run.batch_size == PretrainRun.batch_size


@pytest.mark.parametrize(
    "options",
    [
        ["--steps=70", "--file", "FILE", "--set=steps=60"],
        ["--set", "steps=60", "--file=FILE", "--steps", "70"],
    ],
)
def test_options_win_over_set_and_set_over_the_file(toml, options):
    options = [option.replace("FILE", toml) for option in options]
    run = _parse(
        ["pretrain", *options, "--set", "optimizer.learning-rate=0.002"]
        + ["--set", "remat=false", "--set", "config=a=b.json"]
    )
    assert run.steps == 70
    assert run.optimizer == OptimizerConfig(learning_rate=0.002, beta_1=0.8)
    assert not run.remat
    assert str(run.config) == "a=b.json"


def test_what_a_file_gives_is_taken_back(tmp_path):
    path = write_toml(
        tmp_path,
        'data = "shards"\noutput = "out"\nvalidation_steps = 3\n'
        'validation = "held-out"\nwarm_start = "model"\n'
        "[optimizer]\nema_momentum = 0.9\n",
    )
    options = ["pretrain", "--file", path, "--set=validation_steps=none"]
    options += ["--set=validation=None", "--set=warm_start=NONE"]
    options += ["--set=optimizer.ema_momentum=none"]
    run = _parse(options)
    given = PretrainRun(data=run.data, output=run.output)
    assert run == given, "as if only these two had been given"
    run = _parse([*options, "--validation-steps=5"])
    assert run == dataclasses.replace(given, validation_steps=5)


def test_lists(tmp_path, capsys):
    """Of options that take several values."""
    needed = 'vocab = "v"\noutput = "o"\n'
    lists = 'input = ["a.txt", "b.txt"]\nbeam = ["runner=DirectRunner"]\n'
    given = ["prepare", "--file", write_toml(tmp_path, needed + lists)]
    run = _parse(given)
    assert run.input == ("a.txt", "b.txt")
    assert run.beam == ("runner=DirectRunner",)
    assert _parse([*given, "--set", "beam=none"]).beam is None
    learned = ["finetune", "--model=m", "--train=t", "--output=o"]
    learned += ["--task=embedding", "--set=embedding.dimensions=64"]
    assert _parse(learned).embedding.dimensions == (64,)
    write_toml(tmp_path, needed + 'input = "a.txt"\n')
    assert _parse(given).input == ("a.txt",)
    twice = ["prepare", "--input", "a.txt", "--input=b.txt", *given[1:]]
    assert "`--input` is given twice" in refusal(twice, capsys)
    for content in ("5", "[1, 2]", '[["a"]]', "true"):
        path = write_toml(tmp_path, f"model = {content}")
        error = refusal(["evaluate", "--data=a", f"--file={path}"], capsys)
        assert "`model` must be a text or a list of texts. Rec" in error


def test_run_json_of_a_run_is_a_file(toml, tmp_path):
    run = _parse(["pretrain", "--file", toml, "--output", str(tmp_path / "o")])
    folder = claim_folder(run.output, run)
    path = folder / "run.json"
    assert _parse(["pretrain", "--file", str(path)]) == run
    path.write_text("[1]")
    with pytest.raises(AlbertError, match="expected options"):
        _parse(["pretrain", "--file", str(path)])


def refusal(arguments, capsys):
    """The one line that wrong arguments end with, besides status 2."""
    with pytest.raises(SystemExit) as stop:
        command(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error, error
    return error


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("stepps = 3", [], "run.toml: there is no option `stepps`. Did you"),
        ("[optimizer]\nlearning_rat = 1.0", [], "`optimizer.learning_rate`?"),
        ("[optimiser]\nbeta_1 = 0.5", [], "Did you mean `optimizer.beta_1`?"),
        ("", ["--set", "optimizer.lr=1"], "no option `optimizer.lr`. See"),
        ("", ["--set", "optimizer.beta1=1"], "mean `optimizer.beta_1`?"),
        ("steps = ", [], "not a TOML file"),
        ("remat = 1", [], "`remat` must be true or false. Received: 1"),
        ("steps = 0", [], "steps=0"),
        ("steps_per_execution = 3", [], "`steps` must be a multiple of `st"),
        ("steps = 9\nsteps_per_execution = 3", [], "`validate_every` must be"),
        (
            "checkpoint_every = 3\nsteps_per_execution = 2\nsteps = 4000",
            [],
            "`checkpoint_every` must be a multiple of `steps_per_execution`",
        ),
        (
            "short_steps = 3\nsteps_per_execution = 2\nsteps = 4000",
            [],
            "`short_steps` must be a multiple of `steps_per_execution`",
        ),
        ("steps = 1.5", [], "`steps` must be an integer. Received: 1.5"),
        ('seed = "x"', [], "`seed` must be an integer. Received: 'x'"),
        ("optimizer = 3", [], "`optimizer` is a section. Give one of its"),
        (
            "[optimizer]\noptimizer = 'sgd'",
            [],
            "one of lamb, adamw, muon. Received",
        ),
        ("", ["--set", "optimizer.beta_1=x"], "must be a number. Rec"),
        ("loop = ['scan']", [], "`loop` must be one of unrolled, scan. Rece"),
        ("", ["--set", "steps=none"], "`steps` must be an integer. Received: "),
        ("", ["--set", "loop=None"], "one of unrolled, scan. Received: 'None'"),
        ("", ["--set", "data=none"], "must be a text, a number or a path. Rec"),
        ("", ["--set", "step=3"], "--set: there is no option `step`."),
        ("", ["--set", "steps"], "`--set` takes option=value"),
        ("", ["--file=absent.toml"], "absent.toml: no such file. `--file`"),
    ],
)
def test_mistakes_in_files(tmp_path, capsys, content, options, message):
    path = write_toml(tmp_path, content)
    given = ["pretrain", "--data=a", "--output=b", f"--file={path}", *options]
    assert message in refusal(given, capsys)


FINETUNE = ("finetune", "--model", "m", "--train", "t", "--output", "o")


def test_a_recipe_is_of_its_task():
    run = _parse([*FINETUNE, "--recipe", "paper", "--task", "CoLA"])
    assert (run.task, run.learning_rate, run.batch_size) == ("CoLA", 1e-5, 16)
    assert (run.steps, run.warmup_steps, run.dropout) == (5_336, 320, 0.0)
    assert run == _parse([*FINETUNE, "--recipe=paper", "--task=CoLA"])


def test_a_recipe_without_the_model_of_a_file(tmp_path):
    """The recipe has the size again."""
    path = write_toml(tmp_path, 'recipe = "small"\nwarm_start = "first"')
    given = ["pretrain", "--data=a", "--output=b", f"--file={path}"]
    assert _parse(given).variant is None
    assert _parse([*given, "--set", "warm_start=none"]).variant == "small"


def test_a_recipe_in_a_file(tmp_path):
    path = tmp_path / "my --task CoLA.toml"
    path.write_text('recipe = "paper"\ntask = "RTE"\n')
    given = [*FINETUNE, "--file", str(path)]
    assert _parse(given).warmup_steps == 200
    given += ["--set=recipe=WNLI"]
    assert _parse(given).warmup_steps == 250
    given += ["--recipe=CoLA"]
    assert _parse(given).warmup_steps == 320


def test_options_win_over_a_recipe(tmp_path):
    path = write_toml(tmp_path, 'task = "RTE"\nbatch_size = 8')
    run = _parse([*FINETUNE, "--steps=300", "--recipe=paper", "--file", path])
    assert (run.task, run.steps, run.batch_size) == ("RTE", 300, 8)
    assert (run.learning_rate, run.warmup_steps) == (3e-5, None)
    assert run.warmup_share == 200 / 800
    run = _parse([*FINETUNE, "--recipe=paper", "--task=RTE", "--epochs", "5"])
    assert (run.epochs, run.steps, run.warmup_share) == (5, None, 0.25)
    run = _parse([*FINETUNE, "--recipe=RTE", "--warmup-share=0.1"])
    assert (run.steps, run.warmup_steps, run.warmup_share) == (800, None, 0.1)
    run = _parse([*FINETUNE, "--recipe=RTE", "--warmup-steps=7"])
    assert (run.steps, run.warmup_steps) == (800, 7)
    # Both spellings of an option.
    run = _parse([*FINETUNE, "--recipe=RTE", "--warmup_share", "0.1"])
    assert (run.warmup_steps, run.warmup_share) == (None, 0.1)
    # The rates of one task for another one.
    run = _parse([*FINETUNE, "--recipe=MRPC"])
    assert (run.task, run.learning_rate) == ("classification", 2e-5)


def test_a_recipe_of_pretraining():
    given = ["pretrain", "--data=d", "--output=o", "--recipe=small"]
    run = _parse(given)
    assert (run.variant, run.optimizer.optimizer) == ("small", "muon")
    steps = run.steps, run.warmup_steps, run.short_steps
    assert steps == (12_000, 1_200, 5_647)
    examples = run.examples.masked_lm_prob, run.examples.max_predictions
    assert examples == (0.4, 51)
    run = _parse([*given, "--steps", "34", "--batch-size=8"])  # shares stay
    assert (run.warmup_steps, run.short_steps, run.batch_size) == (3, 16, 8)
    assert _parse([*given, "--steps=20_000"]).warmup_steps == 2_000
    assert _parse([*given, "--warm-start=m"]).variant is None
    assert _parse([*given, "--config=c.json"]).variant != "small"


@pytest.mark.parametrize(
    ("arguments", "validation"),
    [
        ([], OWN_VALIDATION),
        (["--validation", "none"], None),
        (["--validation=None"], None),
        (["--validation", "a.tsv", "--set=validation=none"], Path("a.tsv")),
    ],
)
def test_what_to_validate_on(arguments, validation, tmp_path):
    """And run.json, which says null of nothing, means the same."""
    run = _parse([*FINETUNE, *arguments])
    assert run.validation == validation
    run = dataclasses.replace(run, output=tmp_path / "run")
    folder = claim_folder(run.output, run)
    assert _parse(["finetune", "--file", str(folder / "run.json")]) == run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fintune --help", "no command `fintune`. Did you mean `finetune`"),
        ("zzz", "no command `zzz`. The commands are vocab, prepare, pretrain"),
        ("--file run.toml", "no command `--file`. The commands are"),
        ("predict a.txt --model m", "options only. Received: 'a.txt'. Write"),
        ("pretrain --optimizer.beta1=1", "mean `--optimizer.beta-1`?"),
        ("embed --recipe=paper", "and `finetune`. Received: embed"),
        ("pretrain --recipe=paper", "must be small. Received: 'paper'"),
        ("FINETUNE --epoch=3", "no option `--epoch`. Did you mean `--epochs`"),
        ("FINETUNE --recipes=CoLA", "Did you mean `--recipe`?"),
        ("FINETUNE --qqq", "See `keras-albert finetune --help`."),
        ("FINETUNE --label=a", "Did you mean `--columns.label`?"),
        ("FINETUNE --no-epochs", "`finetune` has no option `--no-epochs`"),
        ("FINETUNE --recipe paper", "Received: --recipe paper without"),
        ("FINETUNE --recipe", "Received: --recipe paper without"),
        ("FINETUNE --recipe=paper --task=tokens", "Received: tokens"),
    ],
)
def test_what_was_meant(capsys, arguments, message):
    arguments = arguments.replace("FINETUNE", " ".join(FINETUNE)).split(" ")
    assert message in refusal(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--freeze=all", "one of embeddings, encoder, backbone. Received: 'a"),
        ("--exits all", "one of own, shared, drawn. Received: 'all'"),
        ("--embedding.pooling=all", "one of mean, cls, max, weighted_layers,"),
        ("--epochs 1.5", "an integer. Received: '1.5'"),
        ("--learning_rate=all", "a number. Received: 'all'"),
        ("--embedding.dimensions 3 all", "an integer. Received: 'all'"),
    ],
)
def test_values_of_another_kind(capsys, arguments, message):
    name = re.split("[ =]", arguments)[0]
    error = refusal([*FINETUNE, *arguments.split()], capsys)
    assert error.startswith(f"error: `{name}` must be {message}")
    for option in ("--epochs", "--freeze", "--validation"):
        given = [*FINETUNE, option, "--seed=3"]
        assert f"error: `{option}` needs a value." in refusal(given, capsys)


def test_spellings_of_options():
    run = _parse([*FINETUNE, "--skip_bad", "--no-remat", "--columns.text=a"])
    assert run.skip_bad and not run.remat and run.columns.text == "a"
    assert _parse([*FINETUNE, "--freeze=None"]).freeze is None
    assert _parse([*FINETUNE, "--set=freeze=none"]).freeze is None
    given = {"model": "m", "train": "t", "output": "o"}
    assert run_of("finetune", {**given, "freeze": None}).freeze is None
    for name, options, message in (
        ("finetune", given | {"freeze": "all"}, "`freeze` must be one of embe"),
        (
            "pretrain",
            {"data": "m", "output": "o", "variant": "all"},
            "`variant` must be one of base_v1, base_v2, large",
        ),
    ):
        with pytest.raises(AlbertError, match=rf"^{name}\(\): {message}"):
            run_of(name, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("evaluate --errors-file=rows.csv", "rows.csv: the file exists. Ch"),
        ("evaluate --errors-file=.", "a folder of this name exists. Choose"),
        ("evaluate --errors-file=a.xlsx", "in .csv, which is the format of"),
        ("evaluate --errors-file=a/b.csv", "a/b.csv: there is no folder"),
        ("evaluate --exit-curve=old.png", "old.png: the file exists. Choose"),
        ("evaluate --exit-curve=a.pdf", "of this file. Name it a.png."),
        ("predict --output=rows.csv", "rows.csv: the file exists. Choose"),
    ],
)
def test_no_file_is_overwritten(
    tmp_path, monkeypatch, capsys, options, message
):
    """The command is refused before it looks for the model."""
    monkeypatch.chdir(tmp_path)
    for name in ("rows.csv", "old.png"):
        Path(name).write_text(name)
    given = [*options.split(), "--model=absent", "--data=rows.csv"]
    assert message in refusal(given, capsys)
    for name in ("rows.csv", "old.png"):
        assert Path(name).read_text() == name
    assert len([*tmp_path.iterdir()]) == 2


def test_no_file_where_nothing_can_be_written(tmp_path, monkeypatch, capsys):
    """As in a file system that is only read, also by root."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    given = ["predict", "--output=new.jsonl", "--model=absent"]
    Path("rows.csv").touch()
    said = refusal([*given, "--data=rows.csv"], capsys)
    assert "new.jsonl: cannot be made" in said


def test_letters_that_the_locale_lacks():
    """Labels are printed in any case: otherwise a run could not end."""
    program = (
        "import keras_albert.cli as cli\n"
        "cli._run = lambda arguments: print('\u65e5')\n"
        "cli.main(['evaluate'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout) == (0, b"\\u65e5\n"), done.stderr


def test_the_users_own_folder(tmp_path, monkeypatch):
    """A shell does not replace "~" in --train=~/rows.csv, nor in a file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "run.toml"
    file.write_text('output = "~/run"')
    arguments = ["--model=m", "--train=~/rows.csv", "--file=~/run.toml"]
    run = _parse(["finetune", *arguments])
    assert (run.train, run.output) == (tmp_path / "rows.csv", tmp_path / "run")
    assert run.validation == OWN_VALIDATION
    arguments = ["--model", "~/a", "hf://b/c", "--data=x"]
    run = _parse(["evaluate", *arguments])
    assert run.model == (str(tmp_path / "a"), "hf://b/c")


def test_the_commands_are_listed(capsys):
    for arguments in ([], ["help"], ["--help"], ["-h"]):
        command(arguments)
        lines = capsys.readouterr().out.splitlines()
        listed = [line.split()[0] for line in lines if line.startswith("  ")]
        assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
        assert max(map(len, lines)) <= 80


def help_lines(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        command(arguments)
    assert not stop.value.code
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [60, 300])
def test_help_is_as_wide_as_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_lines(["help", "compile"], capsys)
    width = min(columns, 100)
    assert width - 15 < max(map(len, lines)) <= width
    assert os.environ["COLUMNS"] == str(columns)


def test_paragraphs_of_a_help_text_are_whole(capsys, monkeypatch):
    """A line ends where the next word has no room."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_lines(["finetune", "--help"], capsys)
    begin = lines.index("  --model STR") + 1
    text = lines[begin : lines.index("  --train PATH")]
    assert " ".join(map(str.strip, text)).endswith(
        "needs the same head; any other head is dropped (required)"
    )
    for line, after in itertools.pairwise(text):
        assert len(line) + 1 + len(after.split()[0]) > 80


class BrokenKeras(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for a Keras that makes 1,000 lists and cannot be imported."""

    def find_spec(self, name, path, target=None):
        if name == "keras":
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def __init__(self, error=None):
        self.error = error or ImportError("broken")

    def exec_module(self, module):
        self.collects = gc.isenabled()
        self.made = [[] for _ in range(1000)]
        raise self.error


def test_no_garbage_is_collected_during_imports(monkeypatch):
    finder = BrokenKeras()
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    before = gc.get_freeze_count()
    with pytest.raises(AlbertError, match=r"cannot load .* \(broken\)"):
        load_backend()
    assert not finder.collects and gc.isenabled()
    assert gc.get_freeze_count() >= before + len(finder.made)


@pytest.mark.parametrize(
    ("limited", "remedy"),
    [(True, "Raise the limit of this process"), (False, "Set KERAS_BACKEND")],
)
def test_too_little_memory_for_a_backend(monkeypatch, limited, remedy):
    """The same message has other causes where memory is not limited."""
    monkeypatch.setattr(startup, "_memory_is_limited", lambda: limited)
    cause = "_sentencepiece.so: failed to map segment from shared object"
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    finder = BrokenKeras(ImportError(cause))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(AlbertError, match=remedy):
        load_backend()


def test_any_error_of_an_import(monkeypatch):
    """protobuf raises TypeError if two packages need different versions."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    finder = BrokenKeras(TypeError("Descriptors cannot be created directly"))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(AlbertError, match=r"\(Descriptors .*\)\. Set KERAS"):
        load_backend()
    finder.error = OSError(errno.ESTALE, "Stale file handle")
    with pytest.raises(OSError, match="Stale"):
        load_backend()


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_closed_standard_error():
    """What is said there must not go to the standard output, into a file."""
    program = 'exec "$0" -m keras_albert.cli finetune --qqq 2>&-'
    done = subprocess.run(
        ["sh", "-c", program, sys.executable], stdout=subprocess.PIPE
    )
    assert (done.returncode, done.stdout) == (2, b"")


def test_collections_stay_as_they_are(monkeypatch):
    """Where the caller has switched them off, or Keras is imported."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    gc.disable()
    try:
        with _garbage_collector_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    monkeypatch.setitem(sys.modules, "keras", None)
    frozen = gc.get_freeze_count()
    with _garbage_collector_off():
        assert gc.isenabled()
    # Not more; objects that were frozen before may have been freed.
    assert gc.get_freeze_count() <= frozen


def test_a_reader_that_has_gone():
    """As `head` goes: neither a message nor a traceback."""
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "keras_albert.cli", "finetune", "--help"]
    done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (NO_READER_STATUS, b"")


def test_a_command_cleans_up_at_sigterm(monkeypatch):
    """As at Ctrl-C; by default a process ends at once, and leaves its files."""
    cleaned = []

    def interrupted(arguments):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(arguments)

    monkeypatch.setattr(cli, "_run", interrupted)
    with pytest.raises(SystemExit) as ended:
        command(["sizes"])
    assert ended.value.code == 130 and cleaned == [["sizes"]]
