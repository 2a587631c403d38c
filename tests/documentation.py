"""The pages of the documentation, and the code that they show."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\bkeras[-_]albert(?:\.cli)?[ \t]+([^\n]*)")


class Block(NamedTuple):
    """A block of code of a page."""

    place: str
    """page and line, as "docs/models.md:42" """
    code: str


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of a language, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        if match[1] == language:
            line = text.count("\n", 0, match.start()) + 2
            place = f"{page.relative_to(ROOT)}:{line}"
            found.append(Block(place, match[2]))
    return found


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `keras-albert` command line of the page."""
    return [
        shlex.split(match[1], comments=True)
        for block in blocks(page, "sh")
        for line in block.code.replace("\\\n", " ").splitlines()
        if not line.startswith("#")
        for match in COMMAND.finditer(line)
    ]
