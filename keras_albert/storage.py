"""Writes files and folders atomically, and never over another run.

Files and folders have temporary names until they are complete.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_albert.errors import AlbertError

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
MANIFEST_FILE = "manifest.json"  # of shards and of checkpoints

# Errors of a disk or of a network's file system. They are no mistakes of the
# user, and may be gone at the next start.
DISK_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT}

IN_USE = "another process is"  # how the message of a locked folder begins


class DiskFull(AlbertError):
    """A file could not be written because the disk or a quota is full."""

    def __init__(self, path: str | Path, reason: str):
        super().__init__(
            f"{path}: cannot be written ({reason}). Make room and give the "
            "same command again."
        )
        self.filename, self.reason = path, reason

    def __reduce__(self):
        """Lets pickle rebuild the error when a worker process passes it on.

        By default pickle would call the class with the message alone.
        """
        return type(self), (self.filename, self.reason)


@contextlib.contextmanager
def raises_disk_full(
    path: str | Path, unfinished: Path | None = None
) -> Iterator[None]:
    """Context manager that converts errors of a full disk to DiskFull.

    The error of the system does not name the file if the disk becomes full
    while `path` is written. Libraries (HDF5, safetensors, TensorFlow) raise
    errors of their own. `unfinished` is the temporary name of `path`, if any.
    """
    try:
        yield
    except Exception as error:
        reason = disk_full_reason(error)
        if reason is None:
            raise
        place = getattr(error, "filename", None) or path
        if unfinished and Path(place).is_relative_to(unfinished):
            place = path / Path(place).relative_to(unfinished)
        raise DiskFull(place, reason) from None


def disk_full_reason(error: Exception) -> str | None:
    """The system's message on a full disk; None for any other error."""
    if isinstance(error, AlbertError):  # it already has a clear message
        return error.reason if isinstance(error, DiskFull) else None
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = os.strerror(number)
        # The second pattern occurs in messages of HDF5.
        in_text = reason in text or f"errno = {number}," in text
        if in_text or getattr(error, "errno", None) == number:
            return reason
    return None


def raise_disk_error(error: Exception, path: str | Path) -> None:
    """Raises an error of a disk again, with the file; ignores all others."""
    number = getattr(error, "errno", None)
    if number in DISK_ERRORS:
        raise OSError(number, os.strerror(number), str(path)) from None


def remedy_of(error: Exception) -> str:
    """The beginning of a sentence: what to do if a file cannot be written."""
    return "Make room" if disk_full_reason(error) else "Correct that"


def check_disk_space(path: str | Path, size: int) -> None:
    """Raises DiskFull unless `size` bytes are free on the disk of `path`.

    HDF5 ends the whole process if the disk is full when it closes a file.
    """
    path = Path(path)
    path = path.absolute()
    there = next(each for each in (path, *path.parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if free < size:
        needed = f"{size / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB free"
        raise DiskFull(path, needed)


@contextlib.contextmanager
def replacing(path: Path, mark: object = "") -> Iterator[Path]:
    """Context manager that replaces a file atomically.

    Yields a temporary path to write to, which differs for each `mark`. It is
    renamed to `path` at the end, or removed if there is an error. Raises
    DiskFull if the disk is full.
    """
    unfinished = path.with_name(f"unfinished-{mark}{path.name}")
    try:
        with raises_disk_full(path, unfinished):
            yield unfinished
            _fsync_file(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fsync_file(path: Path) -> None:
    """Waits until a file is on the disk, to survive a power failure."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_json(path: Path, content: dict) -> None:
    """Writes a JSON file atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # The name of a file may not be UTF-8. Python has lone surrogates in its
    # place, which JSON holds only as escapes.
    text = re.sub(
        "[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text
    )
    with replacing(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: str | Path) -> list[Path]:
    """All files in a folder, at any depth, in the order of their names."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def checksum_of_folder(folder: Path) -> str:
    """SHA-256 of the names and contents of all files of a folder."""
    parts = (
        f"{path.relative_to(folder).as_posix()} {checksum(path)}"
        for path in files_of(folder)
    )
    return hashlib.sha256(os.fsencode("\n".join(parts))).hexdigest()


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Context manager that holds a lock file, or raises AlbertError(`refusal`).

    The system releases the lock when the process ends, even if it is killed.
    """
    import filelock  # imported late, since it would slow `keras-albert --help`

    try:
        lock = filelock.FileLock(path).acquire(blocking=False)
    except filelock.Timeout:
        raise AlbertError(refusal) from None
    with lock:
        yield


# Output files.
def check_absent(path: Path) -> None:
    """Raises AlbertError if an output file exists, or a folder of its name."""
    if os.path.lexists(path):
        kind = "a folder of this name" if path.is_dir() else "the file"
        raise AlbertError(
            f"{path}: {kind} exists. Choose another output; nothing was "
            "changed."
        )


def check_new_file(path: Path, suffix: str | None = None) -> None:
    """Raises AlbertError unless an output file can be made.

    It must not exist, its folder must, and its name must end in `suffix`.
    """
    check_absent(path)
    if suffix is not None and path.suffix.lower() != suffix:
        raise AlbertError(
            f"{path}: expected a name that ends in {suffix}, which is the "
            f"format of this file. Name it {path.with_suffix(suffix).name}."
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise AlbertError(f"{path}: there is no folder {folder}. Make it.")
    if not os.access(folder, os.W_OK):
        raise AlbertError(
            f"{path}: cannot be made: {folder} is read-only, or you lack the "
            "permission to write to it. Choose another output."
        )


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Context manager that yields a new file, which appears when it is whole.

    Raises AlbertError if another process has made the file meanwhile, and
    DiskFull if the disk is full.
    """
    with replacing(path, mark=f"{os.getpid()}-") as unfinished:
        with open(unfinished, "wb") as file:
            yield file
        check_absent(path)


def local_path(value: str | os.PathLike) -> Path:
    """The path of a file or folder; "~" at its start is the user's own folder.

    A shell replaces "~" only at the start of a word: not in --output=~/run, nor
    in a file of options or in Python.
    """
    return Path(os.path.expanduser(value))


# Output folders.
def check_not_a_file(path: str | Path) -> None:
    """Raises AlbertError if an output folder, or a parent of it, is a file."""
    path = Path(path)
    # os.path.exists, as Path.exists raises below a file.
    there = next(filter(os.path.exists, (path, *path.parents)), None)
    if there is not None and not there.is_dir():
        raise AlbertError(
            f"{there}: expected a folder to write to, found a file. Choose "
            "another output."
        )


def check_free(path: str | Path) -> None:
    """Raises AlbertError if an output folder is a file or not empty."""
    path = Path(path)
    check_not_a_file(path)
    if path.is_dir() and any(path.iterdir()):
        raise AlbertError(
            f"{path}: the output folder is not empty, it may hold another run. "
            "Choose another output, or move the old one away; nothing was "
            "changed."
        )


def check_replaceable(path: str | Path) -> None:
    """Raises AlbertError if a folder could not be renamed to this path."""
    folder, is_here = Path(path).resolve(), False
    with contextlib.suppress(OSError):  # it does not exist, or "." is gone
        is_here = os.path.samefile(folder, ".")
    if os.path.ismount(folder) or is_here:
        raise AlbertError(
            f"{path}: the output must not be a mount point, nor the current "
            "folder: it is written beside its place, and renamed when it is "
            "complete. Name a folder in it."
        )


def new_folder(path: str | Path) -> Path:
    """Creates an output folder, or returns it if it exists and is empty.

    Raises AlbertError if it is a file or not empty, or cannot be created.
    """
    check_free(path)
    path = Path(path)
    with _making(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[None]:
    """Context manager that converts errors of creating a folder to AlbertError.

    `folder` is the output folder that the message names.
    """
    try:
        yield
    except OSError as error:
        raise AlbertError(
            f"{folder}: the output folder cannot be made ({error.strerror}). "
            "Correct that, or choose another output."
        ) from None


class WorkFolder:
    """The output folder of a command that can be interrupted and repeated.

    A run claims the folder by writing its settings there, unless an earlier,
    interrupted run of the same command has done so. It locks the folder while
    it works. At its end it publishes the result with a report. From this report
    the same command later knows that the run is finished.

    Args:
        output: the folder of the result.
        work: the folder in which the run works, and which `publish` renames to
            `output`; by default `output` itself.
        report: path in `work` of the file that only a finished run has.
        settings: path in `work` of the file that a run writes first.
        lock: path in `work` of the lock file.
    """

    def __init__(
        self,
        output: Path,
        report: str,
        work: Path | None = None,
        settings: str = RUN_FILE,
        lock: str = ".lock",
    ):
        self.output = output
        self.work = output if work is None else work
        self._report = report
        self._settings = self.work / settings
        self._lock = self.work / lock

    def begun_with(self) -> Any:
        """The settings with which a run began here; None if none has begun."""
        path = self._settings
        if not path.is_file():
            return None
        if not path.stat().st_size:
            raise AlbertError(
                f"{path}: empty: a run begins just now, or was killed as it "
                f"began. If none is running, remove the folder {self.work}, "
                "and give the same command again."
            )
        return read_json(path)

    def finished(self) -> Any:
        """The report of the run; None if it is not finished."""
        path = self.output / self._report
        return read_json(path) if path.is_file() else None

    def claim(self, settings: dict) -> None:
        """Creates the folder and writes the settings of the run into it.

        Raises AlbertError if the output is a file, is not empty or cannot be
        created; or if another run has claimed it at the same time.
        """
        check_free(self.output)
        content = json.dumps(settings, indent=2) + "\n"
        with _making(self.work):
            self._settings.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Mode "x" fails if the file exists: of two runs that start at the
            # same time, the system lets only one create it.
            with (
                raises_disk_full(self._settings),
                open(self._settings, "x", encoding="utf-8") as file,
            ):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except DiskFull:
            remove_folder(self.work)
            raise
        except FileExistsError:
            raise AlbertError(
                f"{self.output}: another run has just taken this output "
                "folder. Choose another output."
            ) from None

    def locked(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Context manager that keeps other processes out of the folder.

        Args:
            doing: what this run does, for the message to the others.
        """
        return locked(
            self._lock,
            f"{self.output}: {IN_USE} {doing}. Wait for it, or "
            "choose another output.",
        )

    def publish(self, report: dict) -> None:
        """Marks the run as finished and moves its folder to the output."""
        write_json(self.work / self._report, report)
        if self.work != self.output:
            if self.output.is_dir():
                self.output.rmdir()  # empty; Windows cannot rename onto it
            self.work.rename(self.output)


@contextlib.contextmanager
def written_whole(folder: str | Path) -> Iterator[Path]:
    """Context manager that writes a folder atomically.

    Yields a temporary folder to write to. It is renamed to `folder` at the end,
    or removed if there is an error. Raises AlbertError if `folder` is a file,
    not empty, or cannot be replaced, or the disk is full.
    """
    folder = local_path(folder)
    check_free(folder)
    check_replaceable(folder)
    folder = folder.resolve()
    with _making(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = unfinished_folder(folder)
    try:
        with raises_disk_full(folder, unfinished):
            yield unfinished
            fsync_folder(unfinished)
        try:
            os.replace(unfinished, folder)
        except OSError:
            check_free(folder)  # raises if another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def fsync_folder(folder: Path) -> None:
    """Waits until all files of a folder are on the disk."""
    for path in files_of(folder):
        _fsync_file(path)


def unfinished_folder(output: Path) -> Path:
    """Creates a temporary folder beside `output`, to be renamed to it."""
    # Not tempfile.mkdtemp, which gives permissions to the owner alone.
    mark = f"unfinished-{secrets.token_hex(4)}"
    folder = output.with_name(f"{output.name}.{mark}")
    folder.mkdir()
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder, or only its content if it is a link or mount point."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def read_toml(path: Path) -> dict:
    """Reads a TOML file; raises AlbertError if it is not one."""
    try:
        # Editors on Windows begin files with a byte order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise AlbertError(f"{path}: not a TOML file ({error}).") from None


def read_json(path: str | Path):
    """Reads a JSON file; raises AlbertError if it is missing or not JSON."""
    path = Path(path)
    if not path.is_file():
        raise AlbertError(f"{path}: no such file.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AlbertError(f"{path}: not a JSON file ({error}).") from None
