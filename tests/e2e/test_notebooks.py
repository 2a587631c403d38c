"""The notebooks of examples/notebooks run, with hardly any work."""

import json
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

pytestmark = pytest.mark.any_backend

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").rglob("*.ipynb"))
SECONDS = 600  # for a cell, on a machine with other work


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(content)
    for cell in content["cells"]:
        assert not cell.get("outputs") and not cell.get("execution_count")


@pytest.mark.parametrize(
    "path",
    [
        path
        if path.stem == "fine_tune_and_serve"
        else pytest.param(path, marks=pytest.mark.proof)
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_runs(path, tmp_path, pretrained_folder, monkeypatch):
    if "served" in path.read_text(encoding="utf-8"):
        pytest.importorskip("tensorflow_text")
    monkeypatch.setenv("KERAS_ALBERT_SMALL", "1")
    monkeypatch.setenv("KERAS_ALBERT_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("KERAS_ALBERT_ENCODER", str(pretrained_folder))
    monkeypatch.setenv(
        "MPLBACKEND", "module://matplotlib_inline.backend_inline"
    )
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    pictures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures, "a notebook shows a plot"
    assert not (path.parent / "work").exists()
