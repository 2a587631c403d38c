"""Real English that every CPython carries, as files for the demo.

Two sources: the Python reference (`pydoc_data.topics`) and the docstrings of
the standard library. Standard library only; the same Python gives the same
files.

    python examples/python_corpus.py FOLDER

writes to FOLDER
    train.txt      documents for pretraining: a sentence a line, blank line
                   between documents
    held_out.txt   documents to measure pretraining on
    chapters.train.tsv, chapters.test.tsv
                   passages of the reference with the chapter they are from;
                   the test passages are part of held_out.txt, and no sentence
                   of held_out.txt is in train.txt
"""

import ast
import os
import random
import re
import sys
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

SEED = 1
PASSAGE_SENTENCES = 2
FEWEST_PASSAGES = 20  # of a chapter that counts as a class
HELD_OUT_SHARE = 0.2  # of the passages of each chapter
HELD_OUT_EVERY = 20  # one module in so many is held out
SKIPPED_FOLDERS = {
    "__pycache__",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}
# What has docstrings, and what may hold it.
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
STATEMENTS = ast.stmt, ast.excepthandler, ast.match_case


def paragraphs(text: str) -> list[str]:
    """The prose of a text, a string a paragraph; code and tables left out."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        words = paragraph.split()
        prose = sum(c.isalpha() or c.isspace() for c in paragraph)
        if (
            len(words) >= 6
            and paragraph[-1] in ".:?!)"
            and prose > 0.75 * len(paragraph)
            and ">>>" not in paragraph
        ):
            found.append(paragraph)
    return found


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, split where a capital follows a stop."""
    return re.split(r"(?<=[.?!:]) +(?=[A-Z\"(])", paragraph)


def chapters() -> dict[str, list[str]]:
    """Sentences of each topic of the reference, longest topic first.

    Topics overlap ("try" is a part of "compound"): a paragraph belongs to the
    longest topic that has it.
    """
    seen, result = set(), {}
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        fresh = [p for p in paragraphs(topics[name]) if p not in seen]
        seen.update(fresh)
        result[name] = [s for p in fresh for s in sentences(p)]
    return result


def passages(lines: list[str]) -> list[list[str]]:
    """Sentences, in groups of a few."""
    groups = [
        lines[start : start + PASSAGE_SENTENCES]
        for start in range(0, len(lines), PASSAGE_SENTENCES)
    ]
    return [g for g in groups if len(g) == PASSAGE_SENTENCES]


def library_files() -> list[Path]:
    """The modules of the standard library, sorted by path."""
    found = []
    for folder, folders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in files if name[-3:] == ".py"]
    return sorted(found)


def docstrings(tree: ast.Module) -> list[str]:
    """Those of a module, its classes and its functions, outer ones first."""
    found, nodes = [], [tree]
    for node in nodes:  # which grows: breadth first
        if isinstance(node, DOCUMENTED):
            found.append(ast.get_docstring(node) or "")
        # Expressions, most of a tree, have no docstrings.
        nodes += [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, STATEMENTS)
        ]
    return found


def modules() -> list[list[str]]:
    """Sentences of the docstrings of each module of the standard library."""
    documents = []
    for path in library_files():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # a template, or broken on purpose
            continue
        lines = [
            sentence
            for docstring in docstrings(tree)
            for paragraph in paragraphs(docstring)
            for sentence in sentences(paragraph)
        ]
        if len(lines) >= 2 * PASSAGE_SENTENCES:
            documents.append(lines)
    return documents


def main(folder: Path) -> None:
    """Writes the four files."""
    rng = random.Random(SEED)
    train, held_out = [], []
    rows = {"train": [], "test": []}
    for name, lines in chapters().items():
        groups = passages(lines)
        if len(groups) < FEWEST_PASSAGES:
            if lines:
                train.append(lines)
            continue
        tested = set(
            rng.sample(range(len(groups)), round(HELD_OUT_SHARE * len(groups)))
        )
        for index, group in enumerate(groups):
            part = "test" if index in tested else "train"
            rows[part].append((" ".join(group), name))
        # A held-out passage splits its chapter: what is left over on either
        # side of it is a document.
        run = []
        for index, group in enumerate(groups):
            if index in tested:
                held_out.append(group)
                train.append(run)
                run = []
            else:
                run = run + group
        train.append(run)
    for index, lines in enumerate(modules()):
        (train if index % HELD_OUT_EVERY else held_out).append(lines)

    # The same sentence can stand in several places.
    hidden = {sentence for lines in held_out for sentence in lines}
    train = [[s for s in lines if s not in hidden] for lines in train]
    train = [lines for lines in train if lines]

    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in (("train", train), ("held_out", held_out)):
        text = "\n\n".join("\n".join(lines) for lines in documents)
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        words = len(text.split())
        print(f"{name}.txt: {len(documents):,} documents, {words:,} words")
    for part, examples in rows.items():
        rng.shuffle(examples)
        path = folder / f"chapters.{part}.tsv"
        lines = ["text\tlabel", *("\t".join(row) for row in examples)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        count = len({label for _, label in examples})
        print(f"{path.name}: {len(examples):,} passages, {count} chapters")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
