"""Makes token shards on many machines, with Apache Beam.

The plan, the units and the bytes of the shards equal those of
`keras_albert.corpus.prepare`. Beam distributes the units among workers and
repeats those that fail. Paths may be all that Beam supports: local paths that
all workers can read, gs://, s3:// or hdfs://.
"""

import fnmatch
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.documents import InputFile
from keras_albert.corpus.write_shards import (
    TokenizationSettings,
    Unit,
    UnitReport,
    manifest_of,
    plan,
    write_shard,
)
from keras_albert.errors import AlbertError, optional_import


def prepare_with_beam(run: PrepareRun) -> None:
    """Runs the pipeline with the options `run.beam`, and waits for its end.

    The shards are written directly to the output. `manifest.json` is written
    last; without it the folder is not accepted as a folder of shards. The
    runner raises errors of workers as errors of its own.
    """
    beam = _import_beam()
    settings = TokenizationSettings.of(run)
    files = _find_files(run.input)
    _check_free(str(run.output))
    units = plan(files, run.shard_bytes, run.column, _open)
    output = str(run.output)
    with _pipeline(run.beam) as pipeline:
        reports = (
            pipeline
            | "Units" >> beam.Create(list(enumerate(units)))
            | "Spread" >> beam.Reshuffle()
            | "Tokenize" >> beam.Map(_make, settings, output)
        )
        _ = (
            pipeline
            | "Once" >> beam.Create([output])
            | "Manifest"
            >> beam.Map(_finish, settings, beam.pvalue.AsList(reports))
        )


def _pipeline(options: tuple[str, ...]):
    beam = _import_beam()
    try:
        return beam.Pipeline(
            options=beam.options.pipeline_options.PipelineOptions(
                [f"--{option}" for option in options]
            )
        )
    except ValueError as error:
        raise AlbertError(
            "`beam` must be options of an Apache Beam pipeline. Received: "
            f"{' '.join(options)}. {error}"
        ) from None


def _import_beam():
    return optional_import("apache_beam", "beam", "running as a Beam pipeline")


def _filesystems():
    return _import_beam().io.filesystems.FileSystems


def _uncompressed() -> str:
    """The option that keeps Beam from decompressing .gz files itself."""
    return _import_beam().io.filesystem.CompressionTypes.UNCOMPRESSED


def _open(path: str) -> BinaryIO:
    return _filesystems().open(path, compression_type=_uncompressed())


def _find_files(patterns: tuple[str, ...]) -> list[InputFile]:
    """Finds the files that match the patterns, without duplicates.

    The files of each pattern are sorted. Their dates are set to 0, because
    workers on other machines may see other dates.
    """
    files = {}
    for pattern in map(os.path.expanduser, patterns):
        matches = _filesystems().match(_beam_patterns(pattern))
        matched = {
            found.path: InputFile(found.path, found.size_in_bytes, 0)
            for match in matches
            for found in match.metadata_list
            if not _is_hidden(found.path, pattern)
        }
        if not matched:
            raise AlbertError(f"{pattern}: no file matches. Check the pattern.")
        for path in sorted(matched):
            files.setdefault(path, matched[path])
    return list(files.values())


def _beam_patterns(pattern: str) -> list[str]:
    """The patterns by which Beam finds what `find_files` finds by this one.

    For `find_files`, "**/" is any number of folders, or none. For Beam, "**" is
    any text, and the "/" behind it must be there. Each "**/" is therefore kept
    in one half of the patterns, and left out in the other half.
    """
    first, *others = pattern.split("**/")
    kept = itertools.product(("**/", ""), repeat=len(others))
    return [
        first + "".join(a + b for a, b in zip(each, others, strict=True))
        for each in kept
    ]


def _is_hidden(path: str, pattern: str) -> bool:
    """Whether a name in the path begins with a dot that no pattern asks for.

    `find_files` leaves such files out, and Beam does not.
    """
    named = [each for each in pattern.split("/") if each.startswith(".")]
    return any(
        part.startswith(".")
        and not any(fnmatch.fnmatchcase(part, each) for each in named)
        for part in path.split("/")
    )


def _check_free(output: str) -> None:
    pattern = _filesystems().join(output, "*")
    (match,) = _filesystems().match([pattern], limits=[1])
    if match.metadata_list:
        raise AlbertError(
            f"{output}: the output folder is not empty, it may hold another "
            "run. Choose another output, or move the old one away."
        )


def _make(
    numbered: tuple[int, Unit], settings: TokenizationSettings, output: str
) -> tuple[int, UnitReport]:
    index, unit = numbered
    with tempfile.TemporaryDirectory() as work:
        report = write_shard(
            unit, index, settings, Path(work), lambda *_: None, _open
        )
        _upload(Path(work), output)
    return index, report


def _finish(
    output: str,
    settings: TokenizationSettings,
    reports: list[tuple[int, UnitReport]],
) -> None:
    ordered = sorted(reports, key=lambda numbered: numbered[0])
    manifest = manifest_of(settings, [report for _, report in ordered])
    with tempfile.TemporaryDirectory() as work:
        settings.tokenizer().save(work)
        _upload(Path(work), output)
    with tempfile.TemporaryDirectory() as work:
        manifest.write(Path(work))
        _upload(Path(work), output)


def _upload(folder: Path, output: str) -> None:
    """Copies the files of a folder; files of the same name are replaced."""
    systems = _filesystems()
    if not systems.exists(output):
        try:
            systems.mkdirs(output)
        except OSError:  # another worker was faster
            if not systems.exists(output):
                raise
    for path in sorted(folder.iterdir()):
        with (
            open(path, "rb") as source,
            systems.create(
                systems.join(output, path.name),
                compression_type=_uncompressed(),
            ) as target,
        ):
            shutil.copyfileobj(source, target)
