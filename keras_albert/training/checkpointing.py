"""Full-state checkpoints: everything that the next step depends on.

OUTPUT/checkpoints/step-00001200/
    state/arrays.npz  weights, optimizer, dropout seeds and running means
    manifest.json     the step, what the run was made from, and size and SHA-256
                      of every file in state/

A checkpoint is written under another name and renamed when it is complete.
Every folder with a name like the above was therefore complete at that time. The
checksums of its manifest reveal damage that happened later.
"""

import dataclasses
import os
import re
import shutil
import sys
from pathlib import Path

import keras
import numpy as np

from keras_albert.distribution.backend import (
    one_process,
    random_states,
    set_random_states,
    to_numpy,
)
from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.settings import flatten
from keras_albert.storage import (
    MANIFEST_FILE,
    check_disk_space,
    checksum,
    disk_full_reason,
    files_of,
    fsync_folder,
    raise_disk_error,
    read_json,
    remedy_of,
    unfinished_folder,
    write_json,
)

STATE_FOLDER = "state"
ARRAYS_FILE = "arrays.npz"
PREFIX = "step-"
COMPLETE = re.compile(rf"{PREFIX}\d{{8,}}")
DAMAGED = "damaged-"

State = dict[str, dict[str, np.ndarray]]  # group -> position -> array


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint of a training run."""

    step: int
    """optimizer steps done; the position in the data follows from it"""
    state: State
    """see `state_of`"""
    logs: dict[str, float] | None
    """training means, where the step ends an interval of the log"""
    origin: dict
    """what the run was made from: to go on with anything else is refused"""


class DamagedCheckpoint(AlbertError):
    """A file of a checkpoint is missing, or not as it was written."""


class Checkpoints:
    """The checkpoints of a run, in a folder.

    Args:
        folder: the folder, which is made with the first checkpoint.
        keep: number of newest checkpoints that are kept.
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
        """Writes a checkpoint atomically, or raises AlbertError."""
        unfinished = None
        try:
            # Before anything is written: a full disk then leaves no rest.
            arrays = [a for group in state.values() for a in group.values()]
            check_disk_space(self.folder, sum(array.nbytes for array in arrays))
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
            fsync_folder(unfinished)
            # A folder gets its final name only when all of its files are on the
            # disk: a process that is killed here leaves no half checkpoint.
            final = self._path(step)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            os.replace(unfinished, final)
        except Exception as error:
            if unfinished:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise_disk_error(error, self.folder)
            reason = disk_full_reason(error) or reason_of(error)
            raise AlbertError(
                f"{self.folder}: the checkpoint of step {step} cannot be "
                f"written ({reason}). {remedy_of(error)}, then give the same "
                "command again."
            ) from error

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint; None if there is no checkpoint.

        Damaged ones are renamed. AlbertError if all are, or for another origin.
        """
        for path in self.folder.glob("checkpoint.unfinished-*"):
            shutil.rmtree(path)  # of a killed process
        steps, damaged = self.steps(), []
        for step in reversed(steps):
            try:
                found = self._read(step)
            except DamagedCheckpoint as error:
                hint = (
                    "" if step == steps[0] else " The one before it is tried."
                )
                print(f"warning: {error}{hint}", file=sys.stderr)
                damaged.append(step)
                continue
            # Damaged checkpoints are renamed only now: if the origin differs,
            # the folder belongs to another run and stays unchanged.
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
        """Reads a checkpoint that another process has found."""
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
        """Removes all checkpoints but the newest and that of step `best`."""
        for step in self.steps()[: -self.keep]:
            if step != best:
                shutil.rmtree(self._path(step))

    def _put_aside(self, step: int) -> None:
        """Renames a damaged checkpoint, so that it is not among the newest."""
        aside = self.folder / f"{DAMAGED}{self._path(step).name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(self._path(step), aside)

    def _path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08d}"

    def _read(self, step: int) -> Checkpoint:
        path = self._path(step)
        try:
            content = read_json(path / MANIFEST_FILE)
        except AlbertError as error:
            raise DamagedCheckpoint(str(error)) from None
        try:
            expected = content["files"]
            found = _digests(path)
            damaged = [
                name
                for name in sorted(expected)  # others may have been added
                if expected[name] != found.get(name)
            ]
            if damaged:
                raise DamagedCheckpoint(f"{path}: {damaged[0]} is damaged.")
            state = _load_state(path)
            return Checkpoint(step, state, content["logs"], content["origin"])
        except (KeyError, TypeError, AttributeError):
            raise DamagedCheckpoint(
                f"{path / MANIFEST_FILE}: damaged."
            ) from None

    def _check_origin(self, found: Checkpoint) -> None:
        differing = [
            f"{name} ({found.origin[name]!r:.60} there, "
            f"{self.origin.get(name)!r:.60} here)"
            for name in sorted(found.origin)  # a newer entry may be missing
            if not _same(self.origin.get(name), found.origin[name])
        ]
        if differing:
            raise AlbertError(
                f"{self._path(found.step)}: the run was begun with another "
                f"{', '.join(differing)}. Give the same to go on with it, or "
                "choose another output."
            )


def _same(here, there) -> bool:
    """Whether two origins are equal; a newer setting may be missing there."""
    if isinstance(here, dict) and isinstance(there, dict):
        return there == {name: here.get(name) for name in there}
    return here == there


def state_of(model: keras.Model) -> State:
    """A copy of all variables that training changes, of a compiled model.

    Arrays are named by their position in their group; scalars become [1].
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
        if arrays
    }


def has_finite_weights(state: State) -> bool:
    """Whether no weight in a state is infinite or NaN."""
    return all(
        np.isfinite(array).all()
        for group in ("trainable", "non_trainable")
        for array in state.get(group, {}).values()
    )


def restore_model(model: keras.Model, state: State) -> None:
    """Sets the weights and the built optimizer to a saved state."""
    for group in ("trainable", "non_trainable", "optimizer"):
        _restore_group(model, state, group)


def restore_metrics(model: keras.Model, state: State) -> None:
    """Sets the running means of a model that has called `evaluate`."""
    _restore_group(model, state, "metrics")


def restore_random(state: State) -> None:
    """Sets the backend's generators, if they are part of the state."""
    saved = state.get("random", {})
    set_random_states([saved[str(i)] for i in range(len(saved))])


def _restore_group(model: keras.Model, state: State, group: str) -> None:
    # Variables are compared by position and shape, not by name: Keras numbers
    # the names of layers anew for each model that a process makes.
    variables = _groups(model)[group]
    saved = state.get(group, {})
    shapes = [tuple(variable.shape) for variable in variables]
    found = [saved[str(i)].shape for i in range(len(saved))]
    if group == "optimizer" and len(found) != len(shapes):
        raise AlbertError(
            f"The checkpoint has {len(found)} variables of the optimizer, "
            f"expected {len(shapes)}. With `accumulate` on TensorFlow, a run "
            "that began on one device cannot go on on several, nor the other "
            "way round: give the --distribution with which it began."
        )
    # All shapes are compared before the first variable is assigned, so that an
    # error leaves the variables unchanged. Scalars are stored as [1].
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


def _digests(folder: Path) -> dict[str, list]:
    """Size and SHA-256 of every file in a folder, except the manifest."""
    digests = {}
    for path in files_of(folder):
        if path != folder / MANIFEST_FILE:
            name = path.relative_to(folder).as_posix()
            digests[name] = [path.stat().st_size, checksum(path)]
    return digests


def _save_state(folder: Path, state: State) -> None:
    (folder / STATE_FOLDER).mkdir()
    np.savez(folder / STATE_FOLDER / ARRAYS_FILE, **flatten(state))


def _load_state(folder: Path) -> State:
    path = folder / STATE_FOLDER / ARRAYS_FILE
    if not path.is_file():
        return _load_orbax_state(folder)
    state: State = {}
    with np.load(path) as arrays:
        for name in arrays.files:
            group, _, position = name.partition(".")
            state.setdefault(group, {})[position] = arrays[name]
    return state


def _load_orbax_state(folder: Path) -> State:
    """Reads a checkpoint of version 0.1.0.dev, which Orbax wrote."""
    if not one_process():  # Orbax would wait for the other processes for ever
        raise AlbertError(
            f"{folder}: the checkpoint was written by Orbax, in a run of one "
            "process. Go on in one process."
        )
    if keras.backend.backend() != "jax":  # Orbax imports it: not for a GPU
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    orbax = optional_import(
        "orbax.checkpoint", "orbax", f"the checkpoint {folder}"
    )
    return orbax.v1.load((folder / STATE_FOLDER).resolve())
