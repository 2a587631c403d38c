"""Imports go one way, and the package is light to import."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_albert

PACKAGE = Path(__file__).parents[2] / "keras_albert"
# A part imports only from itself and from those that stand before it.
FLOORS = (
    "errors",
    "private_apis",
    "storage",
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
    "sweep",
    "cli",
)
# These are TensorFlow graphs, or of one backend: imported inside the functions
# that need them.
GRAPHS = {
    PACKAGE / "text" / "graph_tokenizer.py",
    PACKAGE / "text" / "graph_characters.py",
    PACKAGE / "text" / "graph_alignment.py",
    PACKAGE / "text" / "graph_rows.py",
    PACKAGE / "pretraining" / "masking.py",
    PACKAGE / "tasks" / "question_answering" / "graph.py",
    PACKAGE / "tasks" / "graph.py",
    PACKAGE / "tasks" / "classification_graph.py",
    PACKAGE / "tasks" / "multiple_choice_graph.py",
    PACKAGE / "tasks" / "fill_mask_graph.py",
    PACKAGE / "tasks" / "token_classification_graph.py",
    PACKAGE / "exports" / "saved_model" / "signatures.py",
    PACKAGE / "distribution" / "jax_mesh.py",
    PACKAGE / "distribution" / "tf_strategy.py",
    PACKAGE / "distribution" / "torch_ddp.py",
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


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.any_backend
def test_there_are_sources():
    parts = {part_of(path) for path in sources()}
    assert parts == {*FLOORS, "__init__"}


@pytest.mark.any_backend
@pytest.mark.parametrize("path", sources(), ids=str)
def test_imports_go_one_way(path):
    part = part_of(path)
    if part == "__init__":
        return
    for module, _ in imported(ast.parse(path.read_text())):
        assert module != "keras_albert", "name the module it is from"
        if module.startswith("keras_albert."):
            target = module.split(".")[1]
            assert FLOORS.index(target) <= FLOORS.index(part), module


@pytest.mark.any_backend
def test_nobody_else_knows_a_task_by_its_kind():
    """Other parts have tasks from the registry and ask them what they are."""
    kinds = {
        "classification",
        "token_classification",
        "multiple_choice",
        "embedding",
        "fill_mask",
    }
    for path in sources():
        if part_of(path) == "tasks":
            continue
        for module, _ in imported(ast.parse(path.read_text())):
            parts = module.split(".")
            if parts[:2] == ["keras_albert", "tasks"]:
                kind = parts[-1].removesuffix("_graph")
                assert kind not in kinds, (path, module)


@pytest.mark.any_backend
@pytest.mark.parametrize("path", sources(), ids=str)
def test_no_backend_at_import(path):
    if path in GRAPHS:
        return
    for module, at_top in imported(ast.parse(path.read_text())):
        if module.split(".")[0] in BACKENDS:
            assert not at_top, module


@pytest.mark.any_backend
def test_closures():
    """Pretraining loads no task and no table; a model loads little."""
    path = PACKAGE.parent / "tools" / "figures.py"
    spec = importlib.util.spec_from_file_location("figures", path)
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    files = set(map(figures.name_of, figures.closure("pretraining.run")))
    assert "pretraining/masking.py" not in files, "TensorFlow comes late"
    parts = {file.split("/")[0] for file in files}
    assert not parts & {"tasks", "finetuning", "exports", "aot"}
    assert "data/tables.py" not in files
    files = set(map(figures.name_of, figures.closure("modeling.pretraining")))
    assert files == {
        "errors.py",
        "private_apis.py",
        "modeling/config.py",
        "modeling/base.py",
        "modeling/layers.py",
        "modeling/encoder.py",
        "modeling/backbone.py",
        "modeling/pretraining.py",
    }, "what reads texts comes late"


def python(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_import_brings_no_backend_that_keras_does_not():
    loaded = (
        "import sys; print(sorted({'tensorflow', 'jax', 'torch'} "
        "& set(sys.modules)))"
    )
    alone = python(f"import keras; {loaded}")
    together = python(
        "import keras, keras_albert; keras_albert.AlbertBackbone; " + loaded
    )
    assert together == alone
    assert python(f"import keras_albert; {loaded}") == "[]"


def test_every_public_name_exists():
    import keras_albert

    for name in keras_albert.__all__:
        if name != "GraphTokenizer":  # needs tensorflow-text
            assert getattr(keras_albert, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Albert'"):
        _ = keras_albert.Albert


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "fine-tune and serve"),
        (["pretrain", "--help"], "0.00176"),
        (["--version"], f"keras-albert {keras_albert.__version__}"),
    ],
)
def test_help_loads_nothing_heavy(arguments, expected):
    heavy = {"keras", "numpy", *BACKENDS}
    out = python(
        "import atexit, sys\n"
        f"show = lambda: print(sorted({heavy} & set(sys.modules)))\n"
        "atexit.register(show)\n"
        "from keras_albert.cli import main\n"
        f"main({arguments})\n"
    )
    assert expected in out
    assert out.endswith("[]")
