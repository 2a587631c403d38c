"""The notebooks of examples/notebooks run, with hardly any work."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").rglob("*.ipynb"))
SECONDS = 600  # for a cell, on a machine with other work


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_stored_without_outputs():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        for cell in cells(path):
            assert not cell.get("outputs"), path
            assert not cell.get("execution_count"), path


@pytest.fixture
def small(tmp_path, pretrained_folder, monkeypatch):
    """Settings with which the notebooks do hardly any work."""
    monkeypatch.setenv("KERAS_ALBERT_SMALL", "1")
    monkeypatch.setenv("KERAS_ALBERT_WORK", str(tmp_path / "made-here"))
    monkeypatch.setenv("KERAS_ALBERT_ENCODER", str(pretrained_folder))


@pytest.mark.usefixtures("small", "eagerly")
def test_the_code_of_one_runs(monkeypatch):
    """In this process, which has imported the libraries already."""
    pytest.importorskip("tensorflow_text")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    (path,) = (p for p in NOTEBOOKS if p.stem == "fine_tune_and_serve")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr("sys.path", [*sys.path])
    names = {}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert plt.get_fignums(), "a notebook shows a plot"
    plt.close("all")
    assert not (path.parent / "made-here").exists()


@pytest.mark.proof
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    if "served" in path.read_text(encoding="utf-8"):
        pytest.importorskip("tensorflow_text")
    monkeypatch.setenv(
        "MPLBACKEND", "module://matplotlib_inline.backend_inline"
    )
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
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
    assert not (path.parent / "made-here").exists()
