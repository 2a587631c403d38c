"""Files and folders that are whole or not there."""

import dataclasses
import errno
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from keras_albert import storage
from keras_albert.distribution.config import ProcessConfig
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import EvaluateRun, FinetuneRun
from keras_albert.pretraining.config import ExampleConfig, PretrainRun
from keras_albert.storage import (
    check_disk_space,
    new_folder,
    read_json,
    written_whole,
)
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.run_folder import claim_folder, holds_run

pytestmark = pytest.mark.any_backend


def fails(kind, message):
    return pytest.raises(kind, match=message)


def test_a_file_is_replaced_whole_or_stays(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with fails(OSError, "no space"), storage.replacing(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("no space left")
    assert path.read_text() == "old"
    with storage.replacing(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path], "nothing else is left"


def test_files_are_on_the_disk_before_they_have_their_names(
    tmp_path, monkeypatch
):
    calls = Mock()
    for name in ("fsync", "replace"):
        traced = Mock(wraps=getattr(os, name))
        calls.attach_mock(traced, name)
        monkeypatch.setattr(os, name, traced)
    storage.write_json(tmp_path / "a.json", {})
    with written_whole(tmp_path / "b") as folder:
        (folder / "a.txt").touch()
    names = [name for name, *_ in calls.mock_calls]
    assert names == ["fsync", "replace"] * 2


def test_a_new_file_appears_whole(tmp_path):
    path = tmp_path / "a.txt"
    with fails(OSError, "no space"), storage.new_file(path) as file:
        file.write(b"half")
        raise OSError("no space left")
    assert not list(tmp_path.iterdir())
    with storage.new_file(path) as file:
        file.write(b"whole")
        file.flush()
        assert not path.exists()
    assert path.read_text() == "whole"
    # Another process has made it while this one worked.
    with fails(AlbertError, "the file exists"), storage.new_file(path) as file:
        file.write(b"second")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path], "nothing else is left"


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    output = tmp_path / "a" / "b"
    with fails(OSError, "no space"), written_whole(output) as folder:
        (folder / "half.txt").touch()
        raise OSError("no space left")
    assert not list(output.parent.iterdir())
    with written_whole(output) as folder:
        (folder / "whole.txt").touch()
        assert not output.exists()
    assert [path.name for path in output.iterdir()] == ["whole.txt"]
    assert output.stat().st_mode == output.parent.stat().st_mode
    with fails(AlbertError, "not empty"), written_whole(output):
        pass
    other = tmp_path / "c"  # another process is faster
    with (
        fails(AlbertError, "c: the output fo.*not empty"),
        written_whole(other),
    ):
        other.mkdir()
        (other / "theirs.txt").touch()
    assert [path.name for path in other.iterdir()] == ["theirs.txt"]
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}


def test_a_folder_that_cannot_be_replaced(tmp_path, monkeypatch):
    """It is refused before anything is computed."""
    monkeypatch.chdir(tmp_path)
    with fails(AlbertError, "nor the current folder"), written_whole("."):
        pytest.fail("it was begun")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with fails(AlbertError, "a mount point"), written_whole(tmp_path / "a"):
        pytest.fail("it was begun")
    assert not list(tmp_path.iterdir())


def test_room_is_that_of_the_folder_itself(tmp_path, monkeypatch):
    """It may be a link to another disk."""
    asked = Mock(return_value=SimpleNamespace(free=9))
    monkeypatch.setattr(shutil, "disk_usage", asked)
    check_disk_space(tmp_path, 9)
    check_disk_space(tmp_path / "new" / "newer", 9)
    assert [call.args for call in asked.call_args_list] == [(tmp_path,)] * 2
    with pytest.raises(AlbertError, match="are needed"):
        check_disk_space(tmp_path, 10)


def test_json_keeps_every_letter(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, {"é": [1, None]})
    assert "é" in path.read_text(encoding="utf-8")
    assert read_json(path) == {"é": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(path, {"a": float("nan")})
    assert read_json(path) == {"é": [1, None]}


def test_json_has_names_of_files_that_are_not_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9 \\ud83d")
    storage.write_json(tmp_path / "a.json", {name: 1})
    assert read_json(tmp_path / "a.json") == {name: 1}
    (tmp_path / name).touch()
    assert storage.checksum_of_folder(tmp_path)


def test_a_run_that_was_killed_as_it_began(tmp_path):
    folder = storage.WorkFolder(tmp_path / "run", "report.json")
    folder.claim({"seed": 1})
    assert folder.begun_with() == {"seed": 1}
    (tmp_path / "run" / "run.json").write_text("")
    with fails(AlbertError, r"run\.json: empty: .* remove the folder .*run,"):
        folder.begun_with()


def test_which_run_a_folder_holds(tmp_path):
    """Only the same one may go on; what changes no weight is free."""
    folder = tmp_path / "run"
    run = PretrainRun(data=Path("shards"), output=folder)
    assert not holds_run(folder, run)
    folder.mkdir()
    assert not holds_run(folder, run), "an empty folder is free"
    (folder / "notes.txt").touch()
    with fails(AlbertError, "not empty"):
        holds_run(folder, run)
    (folder / "notes.txt").unlink()
    claim_folder(folder, run)
    assert holds_run(folder, run)
    with fails(AlbertError, "not empty"):
        claim_folder(folder, run)
    free = {
        "output": Path("elsewhere"),
        "checkpoint_every": 4,
        "keep_checkpoints": 9,
        "tensorboard": True,
        "distribution": "model",
        "model_parallel": 2,
        "steps_per_execution": 2,
        "processes": ProcessConfig(wait=5),
    }
    assert holds_run(folder, dataclasses.replace(run, **free))
    tuned = FinetuneRun("model", tmp_path / "a.tsv", tmp_path / "tuned")
    claim_folder(tuned.output, tuned)
    again = dataclasses.replace(tuned, any_text=True)
    assert holds_run(tuned.output, again)
    for field in dataclasses.fields(run):
        other = {
            "data": Path("others"),
            "optimizer": OptimizerConfig(beta_1=0.5),
            "examples": ExampleConfig(ngram=2),
        }.get(field.name, free.get(field.name, 7))
        # The constructor's checks have nothing to do with this.
        changed = dataclasses.replace(run)
        object.__setattr__(changed, field.name, other)
        if field.name not in free:
            with fails(AlbertError, rf"{field.name}.* there, "):
                holds_run(folder, changed)
    with fails(AlbertError, "steps=125000 there, 200000 here"):
        holds_run(folder, dataclasses.replace(run, steps=200_000))


def test_two_runs_find_a_folder_free_at_once(tmp_path, monkeypatch):
    """The second to write its settings is told, and those of the first stay."""
    run = PretrainRun(data=Path("shards"), output=tmp_path / "run")
    claim_folder(run.output, run)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "check_free", lambda path: None)
        with fails(AlbertError, r"run: another run has just taken.*Choose an"):
            claim_folder(run.output, dataclasses.replace(run, seed=3))
    assert holds_run(run.output, run)


def test_folders_that_cannot_be_made(tmp_path, monkeypatch):
    """One that is used; below a file; where the system refuses."""
    folder = new_folder(tmp_path / "a" / "b")
    assert new_folder(folder) == folder, "an empty folder is free"
    file = folder / "kept.txt"
    file.write_text("kept")
    with fails(AlbertError, "not empty"):
        new_folder(folder)
    with fails(AlbertError, "found a file"):
        new_folder(file)
    assert file.read_text() == "kept"

    def write(path):
        with written_whole(path):
            pass

    for make in (new_folder, write):
        with fails(AlbertError, "kept.txt: expected a folder"):
            make(file / "a" / "b")

    error = PermissionError(13, "Permission denied", "unfinished")
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=error))
    for make in (new_folder, write):
        with fails(AlbertError, r"new: the output .* \(Permission denied\)"):
            make(tmp_path / "new")


def test_a_run_from_before_an_option_existed(tmp_path):
    """It has the option's default."""
    run = PretrainRun(data=Path("shards"), output=tmp_path / "run")
    folder = claim_folder(run.output, run)
    settings = read_json(folder / "run.json")
    del settings["short_steps"], settings["examples"]["pack"]
    storage.write_json(folder / "run.json", settings)
    assert holds_run(folder, run)
    packed = dataclasses.replace(run, examples=ExampleConfig(pack=True))
    with fails(AlbertError, "pack=False there, True here"):
        holds_run(folder, packed)


def test_a_folder_behind_a_link_is_emptied(tmp_path):
    folder, link = tmp_path / "folder", tmp_path / "link"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").touch()
    link.symlink_to(folder)
    other = tmp_path / "other"
    other.mkdir()
    (folder / "further").symlink_to(other)
    storage.remove_folder(link)
    assert link.is_symlink() and list(folder.iterdir()) == []
    assert other.is_dir(), "what a link inside it stands for"
    storage.remove_folder(folder)
    assert not folder.exists()


def test_a_checksum_is_of_names_and_contents(tmp_path):
    file, found = tmp_path / "a", []
    for content in ("1", "2"):
        file.write_text(content)
        found.append(storage.checksum_of_folder(tmp_path))
    file.rename(tmp_path / "b")
    found.append(storage.checksum_of_folder(tmp_path))
    assert len({*found}) == 3


def test_without_room_nothing_is_left(tmp_path, small_disk):
    """The message names the file by the name that it would have had."""
    path, output = tmp_path / "a.json", tmp_path / "out"
    large, full = {"a": "b" * 2_000}, storage.DiskFull
    message = rf"{path}: cannot be written \(File too large\)\. Make room"
    with fails(full, message), small_disk(999):
        storage.write_json(path, large)
    message = rf"{output}/a\.json: cannot"
    with fails(full, message), small_disk(999), written_whole(output) as made:
        storage.write_json(made / "a.json", large)
    message = rf"{output}: cannot be"
    with fails(full, message), small_disk(999), written_whole(output) as made:
        (made / "b").write_bytes(bytes(2_000))
    run = EvaluateRun(model=tmp_path / ("a" * 2_000), data=tmp_path)
    with fails(full, r"run\.json: cannot be written"), small_disk(999):
        claim_folder(output, run)
    # It may be checked before.
    storage.check_disk_space(output, 1)
    with fails(full, r"out: .*1,000,000,000,000.0 MB a"):
        storage.check_disk_space(output, 10**18)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "disk"), "No space left on device"),
        (OSError(errno.EDQUOT, "disk"), os.strerror(errno.EDQUOT)),
        # As HDF5, safetensors and TensorFlow have it.
        (RuntimeError("write failed: errno = 28, error"), "No space left"),
        (ValueError("I/O error: No space left on device (os error 28)"), "No "),
        (OSError(errno.EACCES, "Permission denied"), None),
        (ValueError("errno = 280,"), None),
        (AlbertError("No space left on device"), None),
    ],
)
def test_what_a_full_disk_says(tmp_path, error, reason):
    with pytest.raises(Exception) as found, storage.raises_disk_full(tmp_path):
        raise error
    if reason is None:
        assert found.value is error
    else:
        # Also from a worker process.
        for said in (found.value, pickle.loads(pickle.dumps(found.value))):
            assert isinstance(said, storage.DiskFull)
            assert f"{tmp_path}: cannot be written ({reason}" in str(said)
