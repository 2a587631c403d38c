"""Prints how large the parts of the package are, read from its syntax alone.

    python tools/figures.py

Lines of each part; the longest files, functions and classes; and the closures
of two modules: the files of this package that they import, directly or through
others, by import statements at the top of a file. The closures are static, no
module is imported: what the `__init__.py` of the package imports when a public
name is first used is not in them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_albert"
SHOWN = 8  # of the longest files, functions and classes
CLOSURES = ("modeling.pretraining", "pretraining.run")


def main() -> None:
    """Prints all figures."""
    lines = {path: len(path.read_text().splitlines()) for path in sources()}
    total = sum(lines.values())
    beside = {"tests": 0, "benchmarks": 0}
    for path in (ROOT / "tests").rglob("*.py"):
        kind = "benchmarks" if "benchmarks" in path.parts else "tests"
        beside[kind] += len(path.read_text().splitlines())
    print(f"{total:,} lines in {len(lines)} files")
    for kind, count in beside.items():
        print(f"{kind}: {count:,} lines, {count / total:.2f} for each of these")
    parts: dict[str, int] = {}
    for path, count in lines.items():
        part = path.relative_to(PACKAGE).parts[0]
        parts[part] = parts.get(part, 0) + count
    print("\nparts")
    for part, count in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{count:7,}  {count / total:6.1%}  {part}")
    print("\nlongest files")
    show({name_of(path): count for path, count in lines.items()})
    for title, kinds in (
        ("functions", (ast.FunctionDef, ast.AsyncFunctionDef)),
        ("classes", (ast.ClassDef,)),
    ):
        print(f"\nlongest {title}")
        show(
            {
                f"{name_of(path)}:{node.lineno} {node.name}": node.end_lineno
                - node.lineno
                + 1
                for path in lines
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, kinds)
            }
        )
    for module in CLOSURES:
        files = closure(module)
        size = sum(lines[path] for path in files)
        print(f"\nclosure of {module}: {len(files)} files, {size:,} lines")
        print("  " + " ".join(sorted(map(name_of, files))))


def sources() -> list[Path]:
    """The files of the package, without those of a docstring alone."""
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if len(ast.parse(path.read_text()).body) > 1
    )


def name_of(path: Path) -> str:
    """The path of a file below the package."""
    return path.relative_to(PACKAGE).as_posix()


def show(counts: dict[str, int]) -> None:
    """Prints the largest counts."""
    largest = sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]
    for name, count in largest:
        print(f"{count:7,}  {name}")


def closure(module: str) -> set[Path]:
    """The files that a module's import statements lead to, itself included.

    Imports inside functions run later, or never, and do not count.
    """
    found: set[Path] = set()
    waiting = [PACKAGE / f"{module.replace('.', '/')}.py"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported(path)
    return found


def imported(path: Path) -> Iterator[Path]:
    """The files of the package that a file imports at its top level."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            prefix, _, rest = node.module.partition(".")
            if prefix == "keras_albert" and rest:
                place = PACKAGE / rest.replace(".", "/")
                if place.is_dir():  # modules of a package
                    yield from (place / f"{x.name}.py" for x in node.names)
                else:
                    yield place.with_suffix(".py")


if __name__ == "__main__":
    main()
