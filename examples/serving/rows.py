"""What both clients are asked on their command lines: rows of inputs."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Row = dict[str, "str | list[str] | list[int]"]
"""Values by the names of a signature's inputs."""


class NoAnswer(RuntimeError):
    """The server refused, or there is none; the message says which."""


class BadRows(ValueError):
    """A mistake in what was given: says where, and what is expected."""


def command_line(
    description: str, address: str, default: str
) -> argparse.ArgumentParser:
    """The options of both clients.

    Args:
        description: of the client.
        address: the name of the option for the server's address.
        default: of the address.
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog="A row of answers is printed as a line of JSON. Status: 0, or "
        "1 when the server refused or did not answer, or 2 for a mistake on "
        "the command line or in FILE.",
    )
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help="texts, a row each")
    add("--pair", action="append", help="the second text of a row")
    add("--question", action="append", help="a row's question")
    add(
        "--context",
        action="append",
        help="where a row's answer is; given once, any input is that of all "
        "rows",
    )
    add(
        "--rows",
        metavar="FILE",
        help="instead: a JSON object with all inputs a line, such as "
        '{"text": "a", "choices": ["b", "c"]}; - is standard input',
    )
    add(address, default=default, help="(%(default)s)")
    add("--model", default="albert", help="its name there (%(default)s)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="instead of the newest one")
    which.add_argument("--label", help="of a version, such as stable")
    add("--signature", default="serving_default", help="(%(default)s)")
    add(
        "--batch-size",
        type=_positive,
        default=32,
        help="rows of a request, no more than the server's max_batch_size "
        "(%(default)s)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=10.0,
        help="seconds to wait for an answer (%(default)s)",
    )
    add(
        "--retries",
        type=_count,
        default=3,
        help="how often a request is repeated while there is no server, after "
        "0.5, 1, 2 ... seconds (%(default)s)",
    )
    return parser


def print_answers(server: str, answers: Callable[[], Iterator]) -> int:
    """Prints a line of JSON for each row; returns the exit status.

    Args:
        server: its address, for messages.
        answers: asks.
    """
    try:
        for answer in answers():
            print(json.dumps(answer, ensure_ascii=False))
    except BadRows as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NoAnswer as error:
        print(f"error: {server}: {error}", file=sys.stderr)
        return 1
    return 0


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1e6")
    return number


def _count(value: str) -> int:
    number = int(value)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def rows_of(options: argparse.Namespace) -> list[Row]:
    """The rows that the command line asks about.

    Raises:
        BadRows: there are none, or they are not whole.
    """
    given = {
        name: getattr(options, name)
        for name in ("text", "pair", "question", "context")
        if getattr(options, name)
    }
    if options.rows is not None:
        if given:
            raise BadRows(
                f"--rows has all inputs. Leave out: {', '.join(given)}."
            )
        return list(_read(options.rows))
    if not given:
        raise BadRows(
            "Give texts, or a question and its context, or --rows FILE."
        )
    count = max(map(len, given.values()))
    for name, values in given.items():
        if len(values) not in (1, count):
            numbers = ", ".join(f"{len(v)} {n}" for n, v in given.items())
            raise BadRows(
                f"A row needs one of each input. Received: {numbers}. Give "
                f"{count} of {name}, or one for all rows."
            )
    return [
        {
            name: values[row if len(values) > 1 else 0]
            for name, values in given.items()
        }
        for row in range(count)
    ]


def _read(path: str) -> Iterator[Row]:
    try:
        lines = (
            sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise BadRows(f"{path}: cannot be read ({error}).") from None
    count = 0
    for number, line in enumerate(lines.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadRows(f"{path}:{number}: not JSON ({error}).") from None
        if not isinstance(row, dict) or not row:
            raise BadRows(
                f'{path}:{number}: expected an object such as {{"text": "a"}}. '
                f"Received: {line[:80]}"
            )
        count += 1
        yield row
    if not count:
        raise BadRows(f"{path}: no rows.")
