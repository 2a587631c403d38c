"""The package as others install it: metadata, contents, types, interpreters."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from commands import output_of
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import keras_albert

ROOT = Path(__file__).parents[2]
FIND_PYTHON = ROOT / "tools" / "find_python.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """A source distribution, and a wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # Of a copy, as setuptools leaves files beside the sources. The tests'
    # folder is there, so that a distribution could wrongly contain it.
    copy = folder / "copy"
    copy.mkdir()
    for name in ("keras_albert", "tests", "pyproject.toml", "README.md"):
        (copy / name).symlink_to(ROOT / name)
    for name in ("LICENSE", "NOTICE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    code = "from setuptools.build_meta import build_sdist as s; print(s('..'))"
    output = output_of(sys.executable, "-c", code, cwd=copy)
    sdist = folder / output.split()[-1]
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    output_of(*PIP, "wheel", *options, "--wheel-dir", folder, sdist, cwd=copy)
    (wheel,) = folder.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def test_contents(built):
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "keras_albert").rglob("*.py")
    }
    about = f"keras_albert-{keras_albert.__version__}.dist-info"
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        assert {name for name in names if not name.startswith(about)} == {
            *sources,
            "keras_albert/py.typed",
        }
        for name in ("LICENSE", "NOTICE"):
            packed = wheel.read(f"{about}/licenses/{name}")
            assert packed == (ROOT / name).read_bytes()
        metadata = wheel.read(f"{about}/METADATA").decode()
    assert f"\nVersion: {keras_albert.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: <3.14,>=3.11\n" in metadata
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"LICENSE", "NOTICE", "README.md", "pyproject.toml"}
    assert sources | wanted | {"keras_albert/py.typed"} <= names
    assert not any(name.startswith("tests/data") for name in names)


def test_the_wheel_works_where_it_is_installed(built, tmp_path):
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--target", site]
    output_of(*PIP, "install", *options, built["wheel"])
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(site)}}
    version = f"keras-albert {keras_albert.__version__}\n"
    command = sys.executable, "-m", "keras_albert.cli", "--version"
    assert output_of(*command, **place) == version
    code = "import keras_albert as ka; print(ka.__file__, ka.AlbertConfig())"
    out = output_of(sys.executable, "-c", code, **place)
    assert out.startswith(str(site / "keras_albert"))
    assert "hidden_size=768" in out


def test_supported_versions_are_the_same_everywhere():
    script = FIND_PYTHON.read_text()
    first, last = (
        int(re.search(rf"^{name}=(\d+)$", script, re.MULTILINE)[1])
        for name in ("FIRST", "LAST")
    )
    supported = SpecifierSet(f">=3.{first},<3.{last + 1}")
    assert SpecifierSet(PROJECT["requires-python"]) == supported
    lines = "\n".join(PROJECT["classifiers"])
    classified = re.findall(r"Python :: 3\.(\d+)$", lines, re.MULTILINE)
    assert {*map(int, classified)} == {*range(first, last + 1)}


def pins(path: Path) -> dict[str, str]:
    """{package: version} of a file of constraints."""
    lines = path.read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.lower().replace("_", "-"): v for name, v in pairs}


def requirements() -> dict[str, SpecifierSet]:
    """{package: versions} of what users may install, the tools left out."""
    texts = list(PROJECT["dependencies"])
    for extra, dependencies in PROJECT["optional-dependencies"].items():
        if extra not in ("dev", "docs", "proof"):
            texts += dependencies
    parsed = [Requirement(text) for text in texts]
    return {
        each.name.lower().replace("_", "-"): each.specifier
        for each in parsed
        if each.name != PROJECT["name"]
    }


def test_tested_versions_are_allowed():
    """And every lower bound is one of them."""
    for file in ("constraints.txt", "constraints-oldest.txt"):
        tested = pins(ROOT / file)
        for name in tested.keys() & requirements().keys():
            assert tested[name] in requirements()[name], (file, name)
    for name, versions in requirements().items():
        (lower,) = (each for each in versions if each.operator == ">=")
        assert Version(lower.version) == Version(tested[name]), name


def test_type_checkers_see_every_public_name():
    tree = ast.parse(Path(keras_albert.__file__).read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    expected = sorted(
        f"from keras_albert.{home} import {name} as {name}"
        for name, home in keras_albert._HOMES.items()
    )
    found = [
        f"from {node.module} import {alias.name} as {alias.asname}"
        for node in block.body
        for alias in node.names
    ]
    assert sorted(found) == expected, "\n".join(expected)


def own_functions(public) -> dict[str, object]:
    """The functions and methods of a public name that this package defines."""
    if not inspect.isclass(public):
        return {public.__name__: public} if callable(public) else {}
    functions = {}
    for kind in reversed(public.__mro__):
        if not kind.__module__.startswith("keras_albert"):
            continue
        for name, value in vars(kind).items():
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if isinstance(value, property):
                value = value.fget
            value = getattr(value, "func", value)  # of cached_property
            value = inspect.unwrap(getattr(value, "__func__", value))
            if inspect.isfunction(value):
                functions[f"{kind.__qualname__}.{name}"] = value
    return functions


def test_public_signatures_are_annotated():
    pytest.importorskip("tensorflow_text")  # for GraphTokenizer
    functions = {}
    for name in keras_albert.__all__:
        functions |= own_functions(getattr(keras_albert, name))
    incomplete = {}
    for path, function in functions.items():
        signature = inspect.signature(function)
        exempt = {"self", "cls"}
        missing = [
            each.name
            for each in signature.parameters.values()
            if each.annotation is each.empty and each.name not in exempt
        ]
        returns = signature.return_annotation is not signature.empty
        if not returns and not path.endswith(".__init__"):
            missing.append("return")
        if missing:
            incomplete[path] = missing
    assert incomplete == {}


def find_python(*commands: str, **environment) -> tuple[int, str, str]:
    """(exit status, what was printed, the error)."""
    result = subprocess.run(
        ["/bin/sh", str(FIND_PYTHON), *commands],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout, result.stderr


def fake(folder: Path, name: str, line: str | None) -> str:
    """A command that answers the script's question with `line`, or fails."""
    path = folder / name
    answer = "exit 127" if line is None else f"echo {line}"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_that_is_supported_is_taken(tmp_path):
    assert find_python(sys.executable) == (0, f"{sys.executable}\n", "")
    for name, version in (
        ("python3", "3.14.0"),
        ("python3.13", None),
        ("python3.12", "3.12.9"),
        ("python3.11", "3.11.2"),
    ):
        line = version and f"{version} Linux x86_64 glibc yes"
        fake(tmp_path, name, line)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert find_python(PATH=path) == (0, "python3.12\n", "")
    fake(tmp_path, "python3", "3.13.1 Darwin x86_64 - yes")  # of Rosetta
    assert find_python(PATH=path)[1] == "python3.12\n"
    fake(tmp_path, "python3", "3.13.1 Darwin arm64 - yes")
    assert find_python(PATH=path)[1] == "python3\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("3.14.0 Linux x86_64 glibc yes", "3.11 to 3.13, but found:"),
        ("2.7.18 Linux x86_64 glibc no", "is 2.7.18"),
        ("3.12.1 Linux x86_64 glibc no", "apt install python3.12-venv"),
        (None, "does not run"),
        ("3.12.1 Linux x86_64 - yes", "need glibc"),
        ("3.12.1 Linux riscv64 glibc yes", "no wheels for Linux on riscv64"),
        ("3.12.1 Darwin x86_64 - yes", "Intel Macs"),
        ("3.12.1 Windows AMD64 - yes", "use WSL 2"),
        ("3.12.1 FreeBSD amd64 - yes", "no wheels for FreeBSD"),
    ],
)
def test_what_is_not_supported_is_said_in_one_sentence(
    answer, expected, tmp_path
):
    status, out, error = find_python(fake(tmp_path, "python", answer))
    assert (status, out) == (1, "")
    assert expected in error
    assert error.startswith("error: ") and error.count("\n") == 1
