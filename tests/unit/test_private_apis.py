"""Private APIs of the frameworks are used in one file only.

Those that have no test here are proven where they are used.
"""

import ast
import logging
import os
from itertools import chain
from pathlib import Path

import keras
import numpy as np
import pytest
from small import CONFIG

import keras_albert as ka
from keras_albert import private_apis

PACKAGE = Path(private_apis.__file__).parent
HOME = PACKAGE / "private_apis.py"
# Private in spelling only: documented methods of the standard library.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


KERAS_CLASSES = (
    keras.Model,
    keras.callbacks.Callback,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.Embedding,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.random.SeedGenerator,
)
KERAS_PRIVATE = {
    *filter(is_private, chain.from_iterable(map(dir, KERAS_CLASSES)))
}


def private_imports(tree: ast.AST) -> list[str]:
    """Modules of other packages that are private by their names."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    others = (name for name in names if not name.startswith("keras_albert."))
    return [
        name
        for name in others
        if name.startswith(("keras.src", "tensorflow.python"))
        or any(map(is_private, name.split(".")))
    ]


def defined_names(tree: ast.AST) -> set[str]:
    """Names of functions, classes, fields, and of what is set on `self`."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(ast.Name("self"), name, ast.Store()):
                names.add(name)
    return names


def private_uses(tree: ast.AST, own: set[str]) -> list[str]:
    """Private attributes that are read or overridden, but are not our own."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            ours = node.attr in own - KERAS_PRIVATE | DOCUMENTED
            if not ours:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ClassDef):
            found += [
                f"line {part.lineno}: def {part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef)
                and part.name in KERAS_PRIVATE
            ]
    return found


@pytest.mark.any_backend
def test_no_other_file_uses_private_apis():
    trees = {
        path: ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != HOME
    }
    own = set().union(*map(defined_names, trees.values()))
    for path, tree in trees.items():
        assert private_imports(tree) == [], path
        assert private_uses(tree, own) == [], path


SOURCE = """
from jax._src import distributed
from tensorflow.python.eager import context
import keras.src.backend
from numpy import linalg
from keras_albert.text.model_inputs import _rows
class Optimizer:
    def _clip_gradients(self): ...
model._symbolic_build()
row._replace(a=self._ours)
"""


@pytest.mark.any_backend
def test_private_apis_are_recognized():
    tree = ast.parse(SOURCE)
    assert private_imports(tree) == [
        "jax._src.distributed",
        "tensorflow.python.eager.context",
        "keras.src.backend",
    ]
    assert private_uses(tree, {"_ours", "_clip_gradients"}) == [
        "line 8: def _clip_gradients",
        "line 9: model._symbolic_build",
    ]


@pytest.mark.any_backend
def test_each_says_where_it_was_seen_and_why_it_is_needed():
    parts = [
        node
        for node in ast.parse(HOME.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert len(parts) > 5
    for part in parts:
        text = ast.get_docstring(part)
        assert "Uses: `" in text, part.name
        assert "No public way: " in text, part.name
        line = text.partition("Seen in: ")[2].split("\n")[0]
        package, version = line.split(". ")[0].rstrip(".").split(" ")
        assert package in ("Keras", "jax", "PyTorch", "TensorFlow"), part.name
        assert version.count(".") in (1, 2), part.name


def test_a_model_and_its_metrics_are_built_for_a_batch():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = (keras.KerasTensor((2, n), "float32") for n in (4, 3))
    private_apis.build_for_batch(model, (x, y, None))
    assert [tuple(v.shape) for v in model.trainable_variables] == [(4, 3), (3,)]
    assert model.optimizer.built
    assert {"loss", "mae"} <= set(model.get_metrics_result())


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="a list that PyTorch has"
)
def test_adapters_are_parameters():
    """Or several processes would not average their gradients."""
    model = ka.AlbertForPretraining(ka.AlbertBackbone(CONFIG))
    model.backbone.enable_lora(2)
    found = [x for x in model.parameters() if x.requires_grad]
    expected = [variable.value for variable in model.trainable_variables]
    assert {*map(id, found)} == {*map(id, expected)}


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's own")
def test_jax_alone_has_no_service_and_is_no_pod(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TPU_", "MEGASCALE_")):
            monkeypatch.delenv(name)
    assert private_apis.jax_key_value_service() is None
    assert private_apis.is_tpu_pod() is False


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's own"
)
def test_only_warnings_of_retracing_are_left_out():
    tf = pytest.importorskip("tensorflow")
    logger, handler = logging.getLogger("tensorflow"), logging.Handler()
    said = []
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)

    def call_with_many_shapes(function):
        function = tf.function(function)
        for size in range(8):
            function(tf.zeros((size,)))

    try:
        call_with_many_shapes(lambda x: x)
        assert "triggered tf.function retracing" in said[0]
        said.clear()
        with private_apis.without_retracing_warnings():
            call_with_many_shapes(lambda x: x + 1)
            logger.warning("another one")
        assert said == ["another one"]
        said.clear()
        for _ in range(6):  # TensorFlow counts all models as one function
            model = ka.AlbertBackbone(CONFIG)
            for size in (3, 5, 7):
                model.predict_on_batch({"token_ids": np.full((4, size), 7)})
        assert not said
    finally:
        logger.removeHandler(handler)
