"""Full-state checkpoints: everything that the next step depends on.

OUTPUT/checkpoints/step-00001200/
    state/          weights, optimizer, dropout seeds, running means: Orbax, or
                    of a run of several processes on JAX a file of NumPy
    manifest.json   the step, what the run was made from, and size and SHA-256
                    of every file in state/

A folder of that name is complete: it is written under another name and renamed.
What befell it later (a truncated file, a bad sector) its manifest tells.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_albert.distribution.backend import (
    one_process,
    random_states,
    set_random_states,
    to_numpy,
)
from keras_albert.errors import AlbertError
from keras_albert.storage import (
    DiskFull,
    check_room,
    checksum,
    read_json,
    unfinished_folder,
    write_json,
    write_out,
)

STATE_FOLDER = "state"
ARRAYS_FILE = "arrays.npz"  # in the place of Orbax's files
MANIFEST_FILE = "manifest.json"
PREFIX = "step-"
COMPLETE = re.compile(rf"{PREFIX}\d{{8,}}")
DAMAGED = "damaged-"

State = dict[str, dict[str, np.ndarray]]  # group -> position -> array


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    step: int
    """optimizer steps done; the position in the data follows from it"""
    state: State
    """see `state_of`"""
    logs: dict[str, float] | None
    """training means, where the step ends an interval of the log"""
    origin: dict
    """what the run was made from: to go on with anything else is refused"""


class Checkpoints:
    """The checkpoints of a run, in a folder.

    Args:
        folder: made when the first one is saved.
        keep: how many of the newest stay.
        origin: see `Checkpoint`; JSON.
    """

    def __init__(self, folder: Path, keep: int, origin: dict):
        self.folder = folder
        self.keep = keep
        self.origin = origin

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        names = [path.name for path in self.folder.glob(f"{PREFIX}*")]
        return sorted(
            int(name.removeprefix(PREFIX))
            for name in names
            if COMPLETE.fullmatch(name)  # a user may keep copies beside them
        )

    def save(self, step: int, state: State, logs: dict | None) -> None:
        """Writes a checkpoint whole or not at all.

        Raises:
            AlbertError: it cannot be written; earlier ones stay.
        """
        unfinished = None
        try:
            # Asked before, because Orbax prints pages of tracebacks from its
            # threads when it finds out by itself.
            check_room(self.folder, _size_of(state))
            self.folder.mkdir(exist_ok=True)
            unfinished = unfinished_folder(self.folder / "checkpoint")
            _save_state(unfinished, state)
            content = {
                "step": step,
                "logs": logs,
                "origin": self.origin,
                "files": _digests(unfinished),
            }
            write_json(unfinished / MANIFEST_FILE, content)
            write_out(unfinished)
            final = self._path(step)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            os.replace(unfinished, final)
        except Exception as error:  # Orbax has many for a full disk
            if unfinished:
                shutil.rmtree(unfinished, ignore_errors=True)
            reason = str(error).strip().split("\n")[0][:200]
            if isinstance(error, DiskFull):
                reason = error.reason
            raise AlbertError(
                f"{self.folder}: the checkpoint of step {step} cannot be "
                f"written ({reason}). Make room, then give the same command "
                "again."
            ) from error

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint; None where there never was one.

        Damaged ones are renamed.

        Raises:
            AlbertError: all are damaged, or the run was made from other data,
                another config or on another backend.
        """
        for path in self.folder.glob("checkpoint.unfinished-*"):
            shutil.rmtree(path)  # of a killed process
        steps, damaged = self.steps(), []
        for step in reversed(steps):
            try:
                found = self._read(step)
            except AlbertError as error:
                print(
                    f"warning: {error} The checkpoint before it is used.",
                    file=sys.stderr,
                )
                damaged.append(step)
                continue
            self._check_origin(found)
            for each in damaged:
                self._put_aside(each)
            return found
        if steps:
            raise AlbertError(
                f"{self.folder}: every checkpoint is damaged. Choose another "
                "output to begin anew."
            )
        return None

    def read(self, step: int) -> Checkpoint:
        """One that another process has found.

        Raises:
            AlbertError: it is not here, or not usable.
        """
        if not self._path(step).is_dir():
            raise AlbertError(
                f"{self._path(step)}: no such checkpoint here, but process 0 "
                "has one. Every process must see the same output folder: put "
                "it where all do, or copy it to every host."
            )
        found = self._read(step)
        self._check_origin(found)
        return found

    def prune(self, best: int | None) -> None:
        """Removes all but the newest, and that of step `best`."""
        for step in self.steps()[: -self.keep]:
            if step != best:
                shutil.rmtree(self._path(step))

    def _put_aside(self, step: int) -> None:
        """A damaged one must not count among the newest that are kept."""
        aside = self.folder / f"{DAMAGED}{self._path(step).name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(self._path(step), aside)

    def _path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08d}"

    def _read(self, step: int) -> Checkpoint:
        path = self._path(step)
        content = read_json(path / MANIFEST_FILE)
        try:
            expected = content["files"]
            found = _digests(path)
            damaged = [
                name
                for name in sorted(expected.keys() | found.keys())
                if expected.get(name) != found.get(name)
            ]
            if damaged:
                raise AlbertError(f"{path}: {damaged[0]} is damaged.")
            state = _load_state(path)
            return Checkpoint(step, state, content["logs"], content["origin"])
        except (KeyError, TypeError, AttributeError):
            raise AlbertError(f"{path / MANIFEST_FILE}: damaged.") from None

    def _check_origin(self, found: Checkpoint) -> None:
        differing = [
            name
            for name in sorted(self.origin.keys() | found.origin.keys())
            if not _same(self.origin.get(name), found.origin.get(name))
        ]
        if differing:
            raise AlbertError(
                f"{self._path(found.step)}: the run was begun with another "
                f"{', '.join(differing)}. Give the same to go on with it, or "
                "choose another output."
            )


def _same(here, there) -> bool:
    """Equal; settings but for those that did not exist then."""
    if isinstance(here, dict) and isinstance(there, dict):
        return there == {name: here.get(name) for name in there}
    return here == there


def state_of(model: keras.Model) -> State:
    """A copy of all that training changes, of a compiled model.

    Arrays by their position among the variables of a group; scalars as [1].
    """
    groups = {
        group: [to_numpy(variable) for variable in variables]
        for group, variables in _groups(model).items()
    }
    groups["random"] = random_states()
    return {
        # Copies: on PyTorch the arrays would change with the variables.
        group: {str(i): np.array(a, ndmin=1) for i, a in enumerate(arrays)}
        for group, arrays in groups.items()
        if arrays  # Orbax keeps no empty group
    }


def restore_model(model: keras.Model, state: State) -> None:
    """Sets weights and the built optimizer to what `state_of` read.

    Raises:
        AlbertError: the state is that of another model.
    """
    for group in ("trainable", "non_trainable", "optimizer"):
        _restore_group(model, state, group)


def restore_metrics(model: keras.Model, state: State) -> None:
    """Sets the running means; the model has been called in `evaluate`."""
    _restore_group(model, state, "metrics")


def restore_random(state: State) -> None:
    """Sets the backend's generators, if they are part of the state."""
    saved = state.get("random", {})
    set_random_states([saved[str(i)] for i in range(len(saved))])


def _restore_group(model: keras.Model, state: State, group: str) -> None:
    variables = _groups(model)[group]
    saved = state.get(group, {})
    shapes = [tuple(variable.shape) for variable in variables]
    found = [saved[str(i)].shape for i in range(len(saved))]
    if [shape or (1,) for shape in shapes] != found:
        raise AlbertError(
            f"The checkpoint is of another model: its {group} variables have "
            f"the shapes {found}, expected {shapes}. Choose another output."
        )
    for i, variable in enumerate(variables):
        variable.assign(np.reshape(saved[str(i)], shapes[i]))


def _groups(model: keras.Model) -> dict[str, list[keras.Variable]]:
    return {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,  # dropout seeds
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }


def _size_of(state: State) -> int:
    """Bytes of all arrays."""
    return sum(
        array.nbytes for group in state.values() for array in group.values()
    )


def _digests(folder: Path) -> dict[str, list]:
    """Size and SHA-256 of every file below, but for the manifest."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST_FILE:
            name = path.relative_to(folder).as_posix()
            digests[name] = [path.stat().st_size, checksum(path)]
    return digests


def _save_state(folder: Path, state: State) -> None:
    if one_process():
        _orbax().save((folder / STATE_FOLDER).resolve(), state)
        return
    # Orbax would wait for all of JAX's processes, of which one writes.
    (folder / STATE_FOLDER).mkdir()
    _save_arrays(folder / STATE_FOLDER / ARRAYS_FILE, state)


def _save_arrays(path: Path, state: State) -> None:
    arrays = {
        f"{group}.{i}": array
        for group, of_group in state.items()
        for i, array in of_group.items()
    }
    np.savez(path, **arrays)


def _load_state(folder: Path) -> State:
    arrays_file = folder / STATE_FOLDER / ARRAYS_FILE
    if not arrays_file.is_file() and one_process():
        return _orbax().load((folder / STATE_FOLDER).resolve())
    state: State = {}
    with contextlib.ExitStack() as stack:
        if not arrays_file.is_file():
            # Orbax would wait here, too: a process of its own reads.
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            arrays_file = Path(scratch) / ARRAYS_FILE
            done = subprocess.run(
                [sys.executable, "-m", __name__, str(folder), scratch],
                capture_output=True,
                text=True,
                env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            )
            if done.returncode:
                raise AlbertError(
                    f"{folder}: the checkpoint of a run of one process cannot "
                    f"be read ({done.stderr.strip()[-200:]}). Go on in one "
                    "process."
                )
        arrays = stack.enter_context(np.load(arrays_file))
        for name in arrays.files:
            group, _, i = name.partition(".")
            state.setdefault(group, {})[i] = arrays[name]
    return state


def _orbax():
    # It takes seconds, and what only evaluates does without.
    from orbax.checkpoint import v1

    return v1


if __name__ == "__main__":  # see `_load_state`
    _save_arrays(
        Path(sys.argv[2]) / ARRAYS_FILE, _load_state(Path(sys.argv[1]))
    )
