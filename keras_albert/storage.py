"""Files and folders: written whole or not at all, never over another run.

What is being written has another name until it is complete; a rename, which
the file system does at once or not at all, then gives it its own.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_albert.errors import AlbertError

RUN_FILE = "run.json"


class DiskFull(AlbertError):
    """A file could not be written because nothing more may be stored there."""

    def __init__(self, path: str | Path, reason: str):
        super().__init__(
            f"{path}: cannot be written ({reason}). Make room and give the "
            "same command again; nothing unfinished is left."
        )
        self.path, self.reason = Path(path), reason


@contextlib.contextmanager
def room_at(path: str | Path) -> Iterator[None]:
    """Says which file was being written when the disk became full.

    The error of the system names no file where the disk fills up while a file
    is written, and libraries (HDF5, safetensors, TensorFlow) raise errors of
    their own.

    Raises:
        DiskFull: no space was left, or a quota or size limit was reached.
    """
    try:
        yield
    except Exception as error:
        reason = _no_room(error)
        if reason is None:
            raise
        raise DiskFull(
            getattr(error, "filename", None) or path, reason
        ) from None


def _no_room(error: Exception) -> str | None:
    """What the system says of a full disk; None for any other error."""
    if isinstance(error, AlbertError):  # it has a message of its own
        return None
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = os.strerror(number)
        told = reason in text or f"errno = {number}," in text  # HDF5 has that
        if told or getattr(error, "errno", None) == number:
            return reason
    return None


def check_room(path: str | Path, size: int) -> None:
    """Raises DiskFull unless so many bytes are free where `path` is to be.

    For files that HDF5 writes: it ends the whole process when it finds no
    room to close one.
    """
    path = Path(path)
    there = next(each for each in path.absolute().parents if each.is_dir())
    free = shutil.disk_usage(there).free
    if free < size:
        needed = f"{size / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB free"
        raise DiskFull(path, needed)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, that becomes `path` when all went well."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        try:
            with room_at(path):
                yield unfinished
                _write_out(unfinished)
        except DiskFull as error:
            if error.path == unfinished:
                raise DiskFull(path, error.reason) from None
            raise
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_out(path: Path) -> None:
    """Waits until a file is on the disk: a power cut may come."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_json(path: Path, content: dict) -> None:
    """Writes a small file."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """No other process has this lock file meanwhile.

    The system releases it when the process ends, however it ends.

    Raises:
        AlbertError: another process has it; `refusal` is the message.
    """
    import filelock  # half of what `keras-albert --help` may take

    try:
        lock = filelock.FileLock(path).acquire(blocking=False)
    except filelock.Timeout:
        raise AlbertError(refusal) from None
    with lock:
        yield


# Output folders.
def check_not_a_file(path: str | Path) -> None:
    """AlbertError if an output folder, or one it is to be in, is a file."""
    path = Path(path)
    for folder in (path, *path.parents):
        if os.path.exists(folder):  # Path's own fails below a file
            if not folder.is_dir():
                raise AlbertError(
                    f"{folder}: expected a folder to write to, found a file. "
                    "Choose another output."
                )
            break


def check_free(path: str | Path) -> None:
    """AlbertError if an output folder is a file or already holds something."""
    path = Path(path)
    check_not_a_file(path)
    if path.is_dir() and any(path.iterdir()):
        raise AlbertError(
            f"{path}: the output folder is not empty, it may hold another run. "
            "Choose another output, or move the old one away; nothing was "
            "changed."
        )


def new_folder(path: str | Path) -> Path:
    """Makes the folder of a run; see `check_free`."""
    check_free(path)
    path = Path(path)
    with _making(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[None]:
    """AlbertError where the system refuses to make an output folder."""
    try:
        yield
    except OSError as error:
        raise AlbertError(
            f"{folder}: the output folder cannot be made ({error.strerror}). "
            "Mend that, or choose another output."
        ) from None


@contextlib.contextmanager
def written_whole(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, that becomes `folder` when all went well.

    Raises:
        AlbertError: `folder` is a file or already holds something, or the
            disk is full.
    """
    check_free(folder)
    folder = Path(folder).resolve()
    with _making(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = unfinished_folder(folder)
    try:
        with room_at(folder):
            yield unfinished
            write_out(unfinished)
        try:
            os.replace(unfinished, folder)
        except OSError:
            check_free(folder)  # another process was first
            raise
    except DiskFull as error:
        if error.path.is_relative_to(unfinished):  # which is removed below
            path = folder / error.path.relative_to(unfinished)
            raise DiskFull(path, error.reason) from None
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_out(folder: Path) -> None:
    """Waits until all files of a folder are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            _write_out(path)


def unfinished_folder(output: Path) -> Path:
    """A fresh folder beside `output`, to be renamed to it when complete."""
    prefix = f"{output.name}.unfinished-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
    folder.chmod(0o777 & ~_umask())  # mkdtemp's are for their owner alone
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder; its content alone where a link or mount names it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def settings_of(run) -> dict:
    """The fields of a run as JSON has them."""
    return json.loads(json.dumps(dataclasses.asdict(run), default=str))


def flat(settings: dict) -> dict:
    """{"a": {"b": 1}, "c": 2} is {"a.b": 1, "c": 2}."""
    flattened = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            inner = flat(value)
            flattened |= {f"{name}.{key}": inner[key] for key in inner}
        else:
            flattened[name] = value
    return flattened


def read_json(path: str | Path):
    """The content of a JSON file, or an AlbertError that names the file."""
    path = Path(path)
    if not path.is_file():
        raise AlbertError(f"{path}: no such file.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AlbertError(f"{path}: not a JSON file ({error}).") from None
