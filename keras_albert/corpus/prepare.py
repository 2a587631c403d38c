"""Makes token shards on one machine, in several processes.

Until all shards are finished they are in `OUTPUT.unfinished`, a
`storage.WorkFolder`. Notes in it let the same command resume after a kill:

    shard-00000.tokens.npy ...    the finished shards
    report.json                   written at the end: the command and its files
    prepare/command.json          the command: settings, vocabulary, inputs
    prepare/unit-00000.json       the unit that a finished shard was made from
    prepare/work-.../             a shard that is being made
    prepare/lock                  locked by the process that runs

A finished shard is moved out of its work folder, and then its note is written.
A shard without a note, or with a wrong checksum, is made again.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from keras_albert.corpus.config import PrepareRun
from keras_albert.corpus.documents import InputFile, sentence_splitter
from keras_albert.corpus.shards import (
    FORMAT_VERSION,
    PARTS,
    Manifest,
    ShardEntry,
    ShardSet,
)
from keras_albert.corpus.write_shards import (
    TokenizationSettings,
    Unit,
    UnitReport,
    manifest_of,
    plan,
    total_read,
    write_shard,
)
from keras_albert.distribution.config import available_cores
from keras_albert.errors import AlbertError
from keras_albert.signals import handled, say, signals_as_ctrl_c
from keras_albert.storage import (
    REPORT_FILE,
    WorkFolder,
    check_free,
    check_replaceable,
    checksum,
    raise_disk_error,
    read_json,
    remedy_of,
    write_json,
)
from keras_albert.text.files import find_files
from keras_albert.text.unknown import PieceCount

NOTES = "prepare"
# Options that earlier versions did not note, with what they did.
ADDED_LATER = {"blank_lines": 1}
SECONDS_BETWEEN_LOOKS = 0.2  # between updates of the progress bar
MANY_SINGLE_LINES = 0.2  # share of documents from which on we say what to do


def prepare(run: PrepareRun) -> Manifest | None:
    """Tokenizes text files into a folder of token shards.

    The output folder is created at the end, with all shards. If the run is
    interrupted, finished shards are kept in `OUTPUT.unfinished`, and the same
    run resumes from them; without a finished shard nothing is kept. A finished
    run is not repeated. With `run.beam` an Apache Beam pipeline does the work,
    and None is returned instead of the manifest.

    A script that uses more than one worker must call this function below
    `if __name__ == "__main__":`, as always with multiprocessing.

    Raises AlbertError if an input or the vocabulary is missing, unreadable or
    changed while it is read; there is no text, or too much of it is unknown; or
    the output is in use, belongs to another command or cannot be written.
    """
    # A string, which "gs://" needs to stay as it is.
    run = dataclasses.replace(run, output=os.path.expanduser(run.output))
    if run.beam is not None:
        # Imported late: it needs the apache-beam extra.
        from keras_albert.corpus.beam import prepare_with_beam

        prepare_with_beam(run)
        return None
    settings = TokenizationSettings.of(run)
    files = [InputFile.of(path) for path in find_files(run.input)]
    command = _describe(run, settings, [file.path for file in files])
    output = Path(run.output).resolve()
    check_replaceable(run.output)
    made_of = {**command, "files": [dataclasses.asdict(file) for file in files]}
    folder = WorkFolder(
        output,
        report=REPORT_FILE,
        work=output.with_name(f"{output.name}.unfinished"),
        settings=f"{NOTES}/command.json",
        lock=f"{NOTES}/lock",
    )
    finished = folder.finished()
    if isinstance(finished, dict) and {**ADDED_LATER, **finished} == made_of:
        print(f"{output} holds these shards, and they are finished.")
        return Manifest.read(output)
    # The units depend on the inputs and on the size of shards alone: any number
    # of workers writes the same shards, and a run resumes with any number.
    units = plan(files, run.shard_bytes, run.column)
    try:
        with _claimed(folder, command) as work, signals_as_ctrl_c():
            # Workers read this copy of the vocabulary, since the user may
            # change the file while they run.
            settings.tokenizer().save(work)
            job = _Job(dataclasses.replace(run, vocab=work), work)
            reports = _make_all(job, units, run.workers or available_cores())
            manifest = manifest_of(settings, reports)
            manifest.write(work)
            folder.publish(made_of)
            shutil.rmtree(output / NOTES, ignore_errors=True)
    except OSError as error:
        raise_disk_error(error, error.filename or run.output)
        raise AlbertError(
            f"{run.output}: the shards cannot be written ({error}). "
            f"{remedy_of(error)}, or choose another output."
        ) from None
    _tell_of_single_lines(ShardSet.open(output), run)
    return manifest


def _describe(
    run: PrepareRun, settings: TokenizationSettings, inputs: list[str]
) -> dict:
    """Everything that the bytes of the shards depend on, except the text."""
    return {
        "format": FORMAT_VERSION,
        "vocabulary": settings.tokenizer().fingerprint,
        "lower_case": settings.lower_case,
        "keep_accents": settings.keep_accents,
        "column": settings.column,
        "blank_lines": settings.blank_lines,
        "split_sentences": settings.language,
        "splitter": sentence_splitter() if settings.language else None,
        "shard_bytes": run.shard_bytes,
        "input": inputs,
    }


def _tell_of_single_lines(shards: ShardSet, run: PrepareRun) -> None:
    """Prints how many documents have no order of sentences to learn."""
    single, advice = shards.share_of_single_lines, ""
    if single >= MANY_SINGLE_LINES and run.blank_lines == 1:
        advice += ". If blank lines stand inside documents: --blank-lines 2"
    if single >= MANY_SINGLE_LINES and run.split_sentences is None:
        advice += ". If a line is a paragraph: --split-sentences en"
    said = (
        f"{single:.1%} of the documents are a single line and give no example"
    )
    say(f"{said} of sentence order{advice}")


# The folder of an unfinished run.


@contextlib.contextmanager
def _claimed(folder: WorkFolder, command: dict) -> Iterator[Path]:
    """Locks `OUTPUT.unfinished` for this process, and creates it if needed.

    Raises AlbertError if another process or another command uses it.
    """
    check_free(folder.output)
    work = folder.work
    if folder.begun_with() is None and work.exists():
        _check_only_notes(work)
    notes = work / NOTES
    notes.mkdir(parents=True, exist_ok=True)
    with folder.locked("preparing these shards"):
        check_free(folder.output)  # the other process may have finished
        before = folder.begun_with()
        if before is None:
            folder.claim(command)
        else:
            _check_same(work, before, command)
        for unfinished in notes.glob("work-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            yield work
        except BaseException:
            _keep_or_remove(work)
            raise


def _check_only_notes(folder: Path) -> None:
    if not folder.is_dir() or any(p.name != NOTES for p in folder.iterdir()):
        raise AlbertError(
            f"{folder}: the shards are to be made here, but this is something "
            "else. Move it away, or choose another output."
        )


def _check_same(folder: Path, before: dict, command: dict) -> None:
    for name, now in command.items():
        then = {**ADDED_LATER, **before}.get(name, now)
        if now != then:
            if name == "input":
                pairs = itertools.zip_longest(then, now, fillvalue="no file")
                then, now = next((a, b) for a, b in pairs if a != b)
            raise AlbertError(
                f"{folder}: begun by another command, with {name}={then!r}; "
                f"now it is {now!r}. Give that command again to go on, or "
                "remove the folder to start afresh."
            )


def _keep_or_remove(folder: Path) -> None:
    """Prints how to resume, or removes a folder without a finished shard."""
    finished = len(list(folder.glob("shard-*.documents.npy")))
    if not finished:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for work in folder.glob(f"{NOTES}/work-*"):
        shutil.rmtree(work, ignore_errors=True)
    say(
        f"{finished} shard{'s'[: finished != 1]} finished, in {folder}: the "
        "same command goes on from there."
    )


# Makes the units, in this process or in several.


@dataclasses.dataclass(frozen=True)
class _Job:
    """The settings that are sent to every process."""

    run: PrepareRun
    """the settings of the run, with the vocabulary in `folder`"""
    folder: Path
    """`OUTPUT.unfinished`"""

    def note(self, index: int) -> Path:
        """The path of the note on a finished unit."""
        return self.folder / NOTES / f"unit-{index:05}.json"


class _Counters:
    """Shared memory of all processes: the progress of each unit.

    Each element is written by one process only, so no lock is needed.
    """

    def __init__(self, units: int):
        context = multiprocessing.get_context("spawn")
        self.sizes = context.RawArray("q", units)  # bytes of text read
        self.tokens = context.RawArray("q", units)  # tokens written
        self.stop = context.RawValue("b", 0)  # 1 when the run has ended


class _Stopped(Exception):
    """Raised in a worker process to end its unit when the run has ended."""


def _make_all(job: _Job, units: list[Unit], workers: int) -> list[UnitReport]:
    reports = _finished_before(job, units)
    missing = {i: unit for i, unit in enumerate(units) if i not in reports}
    counters = _Counters(len(units))
    with _Display(units, reports, counters) as display:
        workers = min(workers, len(missing))
        if workers > 1:
            _in_processes(job, counters, missing, workers, reports, display)
        else:
            settings = TokenizationSettings.of(job.run)
            for i, unit in missing.items():
                reports[i] = _make_unit(
                    job, settings, counters, i, unit, display.show
                )
                display.show()
    in_order = [reports[i] for i in range(len(units))]
    display.summarize(in_order)
    return in_order


def _make_unit(
    job: _Job,
    settings: TokenizationSettings,
    counters: _Counters,
    index: int,
    unit: Unit,
    show: Callable[[], None],
) -> UnitReport:
    def advance(size: int, tokens: int) -> None:
        counters.sizes[index] += size
        counters.tokens[index] += tokens
        if counters.stop.value:
            raise _Stopped
        show()

    notes = job.folder / NOTES
    with tempfile.TemporaryDirectory(prefix="work-", dir=notes) as work:
        work = Path(work)
        report = write_shard(unit, index, settings, work, advance)
        for part in unit.parts:
            if InputFile.of(part.file.path) != part.file:
                raise AlbertError(
                    f"{part.file.path}: changed while it was read. Run the "
                    "same command again."
                )
        # The shard is moved before its note is written: a kill between the two
        # leaves a shard without a note, which is made again. The other order
        # could leave a note on a shard that is not there.
        if report.shard:
            for name in report.shard.files.values():
                os.replace(work / name, job.folder / name)
        note = {"unit": dataclasses.asdict(unit)} | dataclasses.asdict(report)
        write_json(job.note(index), note)
    return report


def _finished_before(job: _Job, units: list[Unit]) -> dict[int, UnitReport]:
    """The reports of shards that an earlier run finished, by unit.

    All other shards and notes in the folder are removed.
    """
    reports = {}
    for index, unit in enumerate(units):
        report = _read_report(job, index, unit)
        if report:
            reports[index] = report
    shards = filter(None, (report.shard for report in reports.values()))
    sound = {name for shard in shards for name in shard.files.values()}
    for path in job.folder.glob("shard-*"):
        if path.name not in sound:
            path.unlink()
    notes = {job.note(index) for index in reports}
    planned = {job.note(index) for index in range(len(units))}
    for path in job.folder.glob(f"{NOTES}/unit-*.json"):
        if path not in notes:
            path.unlink()
            number = path.stem.removeprefix("unit-")
            say(
                f"shard {number}: its text has changed, or it is damaged; it "
                f"is {'made again' if path in planned else 'removed'}."
            )
    return reports


def _read_report(job: _Job, index: int, unit: Unit) -> UnitReport | None:
    """The report of a finished unit.

    None without a note, for another text, or if the checksum is wrong.
    """
    try:
        note = read_json(job.note(index))
        # Compared as JSON, in which tuples have become lists.
        if note["unit"] != json.loads(json.dumps(dataclasses.asdict(unit))):
            return None
        shard = ShardEntry(**note["shard"]) if note["shard"] else None
        if shard and any(
            checksum(job.folder / shard.files[part]) != shard.sha256[part]
            for part in PARTS
        ):
            return None
        return UnitReport(shard, PieceCount(**note["read"]), note["example"])
    except (AlbertError, FileNotFoundError, KeyError, TypeError):
        return None


def _in_processes(
    job: _Job,
    counters: _Counters,
    missing: dict[int, Unit],
    workers: int,
    reports: dict[int, UnitReport],
    display: "_Display",
) -> None:
    """Makes units in worker processes and adds to `reports`.

    If one of them fails, all processes are ended before the error is raised.
    """
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start_worker,
        (job, counters),
    ) as pool:
        try:
            # A process that is interrupted while it starts prints a traceback:
            # the workers inherit that the signals are ignored, until
            # `_start_worker` sets what they do.
            with handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
                pending = {
                    pool.submit(_work, i, unit): i
                    for i, unit in missing.items()
                }
            while pending:
                done, _ = concurrent.futures.wait(
                    pending,
                    SECONDS_BETWEEN_LOOKS,
                    concurrent.futures.FIRST_COMPLETED,
                )
                for future in done:
                    reports[pending.pop(future)] = future.result()
                display.show()
        except BrokenProcessPool:
            raise AlbertError(
                "a worker process has died: it was killed, memory ran out, or "
                'a script calls `prepare` outside of `if __name__ == "__main__"'
                "`. Run the same command again, with fewer `workers`."
            ) from None
        finally:
            # Running units look at this flag after each piece of text. Without
            # it, `shutdown` would wait until their shards are finished.
            counters.stop.value = 1
            pool.shutdown(cancel_futures=True)


# The settings of a worker process, set when it starts.
_worker: tuple[_Job, TokenizationSettings, _Counters] | None = None


def _start_worker(job: _Job, counters: _Counters) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = job, TokenizationSettings.of(job.run), counters


def _end_with_parent() -> None:
    """Ends this process when its parent ends, even if that was killed."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(index: int, unit: Unit) -> UnitReport:
    return _make_unit(*_worker, index, unit, show=lambda: None)


# The progress bar.


class _Display(contextlib.AbstractContextManager):
    """A progress bar, if stderr is a terminal, and a line at the end."""

    def __init__(
        self,
        units: list[Unit],
        reports: dict[int, UnitReport],
        counters: _Counters,
    ):
        self._sizes = [unit.size for unit in units]
        self._reports = reports
        self._counters = counters
        self._start = time.monotonic()
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.fields[shards]}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "", total=sum(self._sizes), completed=self._done(), **self._fields()
        )

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def show(self) -> None:
        self._bar.update(self._task, completed=self._done(), **self._fields())

    def _done(self) -> int:
        return sum(
            size if i in self._reports else min(size, self._counters.sizes[i])
            for i, size in enumerate(self._sizes)
        )

    def _fields(self) -> dict[str, str]:
        return {
            "shards": f"{len(self._reports)} of {len(self._sizes)} shards",
            "speed": self._speed(),
        }

    def _speed(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-6)
        return f"{sum(self._counters.tokens) / seconds:,.0f} tokens/s"

    def summarize(self, reports: list[UnitReport]) -> None:
        """Prints the totals of the run, if there is any shard."""
        shards = [report.shard for report in reports if report.shard]
        if not shards:
            return
        documents, tokens = (
            sum(shard.counts[part] for shard in shards)
            for part in ("documents", "tokens")
        )
        unknown = 100 * total_read(reports).share
        say(
            f"{documents:,} documents, {tokens:,} tokens, {self._speed()}, "
            f"{unknown:.2f} % unknown; {len(shards)} "
            f"shard{'s'[: len(shards) != 1]}"
        )
