"""A hook of MkDocs: the page "Options", with the help text of every command."""

import contextlib
import io
import os

from mkdocs.structure.files import File, Files

from keras_albert.cli import COMMANDS, main

COLUMNS = "100"


def on_files(files: Files, config) -> Files:
    """Adds the page, which is in no folder, to those of the site."""
    os.environ["COLUMNS"] = COLUMNS
    text = "# Options\n\nWhat `keras-albert COMMAND --help` prints.\n"
    for command in COMMANDS:
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.suppress(SystemExit),
        ):
            main([command, "--help"])
        text += f"\n## {command}\n\n```text\n{printed.getvalue()}```\n"
    files.append(File.generated(config, "options.md", content=text))
    return files
