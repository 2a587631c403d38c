"""Help texts: the overview of all commands, and the lines of tyro's texts."""

import contextlib
import inspect
import os
import shutil
import textwrap
import threading
from collections.abc import Iterator, Mapping

# Held while arguments are parsed, since tyro reads the width of the terminal
# from an environment variable, which belongs to all threads.
_ONE_PARSER = threading.RLock()
WIDEST = 100  # columns of a help text: longer lines are hard to read


def terminal_width() -> int:
    """Columns of the terminal, at most WIDEST; 80 for a file or a pipe."""
    return min(shutil.get_terminal_size().columns, WIDEST)


@contextlib.contextmanager
def columns(width: int) -> Iterator[None]:
    """Sets the width of help texts, in one thread at a time."""
    with _ONE_PARSER:
        before = os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = str(width)
        try:
            yield
        finally:
            os.environ.pop("COLUMNS", None)
            if before is not None:
                os.environ["COLUMNS"] = before


def overview(commands: Mapping[str, type], description: str, width: int) -> str:
    """The help text of the program, with a line for each command.

    `commands` has the dataclass of the options of each command, whose docstring
    begins with what the command does.
    """
    longest = max(map(len, commands))
    lines = ["usage: keras-albert COMMAND [options]", ""]
    lines += [textwrap.fill(description, width), "", "commands:"]
    for name, run_class in commands.items():
        summary, _, _ = inspect.getdoc(run_class).partition("\n\n")
        lines.append(
            textwrap.fill(
                " ".join(summary.split()),
                width,
                initial_indent=f"  {name:{longest}}  ",
                subsequent_indent=" " * (longest + 4),
            )
        )
    return "\n".join([*lines, "", "keras-albert COMMAND --help says more."])


def wrapped(text: str, width: int) -> str:
    """Wraps the paragraphs of a help text, whose line breaks tyro keeps."""
    paragraphs: list[tuple[str, list[str]]] = []  # indent, lines
    for line in text.splitlines():
        words = line.strip()
        indent = " " * (len(line.rstrip()) - len(words))
        # Names of options are indented by up to 4 columns, texts by more.
        is_text = words and (indent == "" or len(indent) > 4)
        if is_text and paragraphs and paragraphs[-1][0] == indent:
            paragraphs[-1][1].append(words)
        else:
            paragraphs.append((indent if is_text else None, [line.rstrip()]))
    lines = []
    for indent, parts in paragraphs:
        if indent is None:
            lines += parts
            continue
        lines += textwrap.wrap(
            " ".join(part.strip() for part in parts),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    return "".join(f"{line}\n" for line in lines)
