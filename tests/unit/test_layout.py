"""Imports go one way, and the package is light to import."""

import ast
import functools
import importlib
import os
import re
import sys
from pathlib import Path

import pytest
from commands import output_of

import keras_albert

PACKAGE = Path(__file__).parents[2] / "keras_albert"
# A part imports only from itself and from those that stand before it.
PARTS = (
    "errors",
    "private_apis",
    "settings",
    "storage",
    "signals",
    "redirection",
    "allocator",
    "download",
    "text",
    "modeling",
    "data",
    "distribution",
    "training",
    "corpus",
    "checkpoints",
    "pretraining",
    "tasks",
    "finetuning",
    "aot",
    "exports",
    "options",
    "sweep",
    "startup",
    "help_text",
    "cli",
    "python_api",
)
# These are TensorFlow graphs, or of one backend: imported inside the functions
# that need them.
GRAPHS = {
    PACKAGE / "text" / "graph_tokenizer.py",
    PACKAGE / "text" / "graph_characters.py",
    PACKAGE / "text" / "graph_alignment.py",
    PACKAGE / "text" / "graph_rows.py",
    PACKAGE / "modeling" / "fused_tf.py",
    PACKAGE / "modeling" / "linear_torch.py",
    PACKAGE / "training" / "fused_torch.py",
    PACKAGE / "pretraining" / "masking.py",
    PACKAGE / "tasks" / "question_answering" / "graph.py",
    PACKAGE / "tasks" / "graph.py",
    PACKAGE / "tasks" / "classification_graph.py",
    PACKAGE / "tasks" / "early_exit_graph.py",
    PACKAGE / "tasks" / "multiple_choice_graph.py",
    PACKAGE / "tasks" / "fill_mask_graph.py",
    PACKAGE / "tasks" / "similarity_graph.py",
    PACKAGE / "tasks" / "token_classification_graph.py",
    PACKAGE / "exports" / "saved_model" / "signatures.py",
    PACKAGE / "distribution" / "jax_mesh.py",
    PACKAGE / "distribution" / "tf_strategy.py",
    PACKAGE / "distribution" / "torch_ddp.py",
}
# `from_preset` and `save_to_preset`: KerasHub has them on the class.
UPWARD = {
    (PACKAGE / "modeling" / "base.py", f"keras_albert.{module}")
    for module in ("checkpoints.load", "training.model_folder")
}
BACKENDS = {"tensorflow", "jax", "torch", "tensorflow_text"}


def imported(tree):
    """(module, whether it stands at the top level) of every import.

    The package's version is read from the package itself.
    """
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [alias.name for alias in node.names]
            if (node.module, names) != ("keras_albert", ["__version__"]):
                yield node.module, node in top


@functools.cache
def trees():
    """Every module, parsed; not while tests are collected, as it takes long."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {path: ast.parse(path.read_text()) for path in files}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.any_backend
def test_imports_go_one_way():
    assert {part_of(path) for path in trees()} == {*PARTS, "__init__"}
    for path, tree in trees().items():
        if part_of(path) == "__init__":
            continue
        position = PARTS.index(part_of(path))
        for module, at_top in imported(tree):
            assert module != "keras_albert", (path, "name its module")
            if module.startswith("keras_albert."):
                target = module.split(".")[1]
                is_below = PARTS.index(target) <= position
                assert is_below or (path, module) in UPWARD, (path, module)
            if module.split(".")[0] in BACKENDS and path not in GRAPHS:
                assert not at_top, (path, module)


@pytest.mark.any_backend
def test_nobody_else_knows_a_task_by_its_kind():
    """Other parts have tasks from the registry and ask them what they are."""
    kinds = "classification|token_classification|multiple_choice|embedding"
    private = re.compile(rf"keras_albert\.tasks\.({kinds}|fill_mask)(_graph)?")
    for path, tree in trees().items():
        if part_of(path) != "tasks":
            for module, _ in imported(tree):
                assert not private.fullmatch(module), (path, module)


# Comparisons with the name of a task outside of tasks/, and why they stay.
OF_NAMES = {
    # `finetune --help` and a wrong option must not wait for Keras, which the
    # registry imports.
    "finetuning/option_checks.py: run.task in BENCHMARK_TASKS",
    # Whether a value is the name of a task at all.
    "sweep/plan.py: task not in (None, *FINETUNE_TASKS)",
    # A model that was only pretrained has no task of the registry.
    "finetuning/evaluate.py: loaded.task['task'] == PRETRAINING",
    # Whether a user gives another task than the one in the model's folder.
    "finetuning/predictor.py: given.get('task', loaded.task['task']) == "
    "loaded.task['task']",
    # The paper's hyper-parameters are a table of published tasks.
    "finetuning/run.py: run.task in RECIPES",
    # The loop over the table of the options that only some tasks take.
    "finetuning/option_checks.py: run.task in tasks",
}


def compared(tree):
    """All comparisons of a module with the name of a task, as code.

    One side of it is called a task, or is a table of tasks/names.py.
    """
    tables = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "keras_albert.tasks.names"
        for alias in node.names
    }
    of_task = re.compile(r"(^|\.)task(\.name)?$|\['task'\]$")
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = map(ast.unparse, (node.left, *node.comparators))
            text = ast.unparse(node)
            if " is " not in text and (
                any(map(of_task.search, sides))
                or tables & set(re.findall(r"\w+", text))
            ):
                yield text


@pytest.mark.any_backend
def test_tasks_answer_what_kind_they_are():
    """Outside of tasks/, no other code compares the name of a task."""
    found = set()
    for path, tree in trees().items():
        name = path.relative_to(PACKAGE).as_posix()
        if part_of(path) in PARTS[PARTS.index("tasks") + 1 :]:
            found |= {f"{name}: {text}" for text in compared(tree)}
    assert found == OF_NAMES


@pytest.mark.any_backend
def test_closures(monkeypatch):
    """Pretraining loads no task and no table; a model loads little."""
    monkeypatch.syspath_prepend(PACKAGE.parent / "tools")
    figures = importlib.import_module("figures")
    files = set(map(figures.name_of, figures.closure("pretraining.run")))
    assert "pretraining/masking.py" not in files, "TensorFlow comes late"
    parts = {file.split("/")[0] for file in files}
    of_others = {"tasks", "finetuning", "exports", "aot", "checkpoints"}
    assert not parts & of_others
    of_data = {file for file in files if file.startswith("data/")}
    assert of_data == {"data/input_pipeline.py"}, "no table, GLUE or RACE"
    assert "modeling/question_answering.py" not in files
    files = set(map(figures.name_of, figures.closure("modeling.pretraining")))
    parts = {file.split("/")[0] for file in files}
    assert parts == {"errors.py", "private_apis.py", "modeling"}
    assert len(files) <= 8


def printed(code):
    return output_of(sys.executable, "-c", code).splitlines()


@pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND", "tensorflow") != "jax",
    reason="JAX, which is the lightest, shows of all three what loads",
)
def test_import_brings_no_backend_that_keras_does_not():
    """Keras's own backend may load others: what follows adds none to them."""
    before, alone, together = printed(
        "import sys\n"
        f"show = lambda: print(sorted({BACKENDS} & set(sys.modules)))\n"
        "import keras_albert; show()\n"
        "import keras; show()\n"
        "keras_albert.AlbertBackbone; show()\n"
    )
    assert before == "[]"
    assert together == alone


@pytest.mark.any_backend
def test_a_module_that_is_half_imported_is_known(tmp_path, monkeypatch):
    """Keras may be imported in the middle of one; then it is too early."""
    folders = [*keras_albert.__path__, str(tmp_path)]
    monkeypatch.setattr(keras_albert, "__path__", folders)
    (tmp_path / "probe.py").write_text(
        "from keras_albert import _is_half_imported\n"
        "found = _is_half_imported(__name__)\n"
    )
    try:
        probe = importlib.import_module("keras_albert.probe")
        assert probe.found
        assert not keras_albert._is_half_imported("keras_albert.probe")
    finally:
        del sys.modules["keras_albert.probe"], keras_albert.probe


@pytest.mark.any_backend
def test_help_loads_nothing_heavy():
    """Nor do a mistyped name and the tokenizer load Keras or a backend."""
    lines = printed(
        "import sys\n"
        "from keras_albert.cli import main\n"
        "for arguments in ['--help'], ['pretrain', '--help'], ['--version']:\n"
        "    try: main(arguments)\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "try: main('finetune --model=a --train=b.tsv --output=c'.split())\n"
        "except SystemExit as stop: assert stop.code == 2\n"
        f"print({ {'keras', 'numpy', *BACKENDS} } & set(sys.modules))\n"
        "import keras_albert.text.tokenizer\n"
        f"print({ {'keras', *BACKENDS} } & set(sys.modules))\n"
    )
    text = "\n".join(lines)
    for expected in (
        "fine-tune and serve",
        "0.00176",
        f"keras-albert {keras_albert.__version__}",
    ):
        assert expected in text
    assert lines[-2:] == ["set()"] * 2
