"""Uploads a model to the Hugging Face Hub."""

import dataclasses
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Protocol

from keras_albert.download import hub_name
from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.finetuning.config import PushRun
from keras_albert.finetuning.convert import with_task, write_as
from keras_albert.finetuning.model_card import CARD_FILE, hub_card, write_card
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import check_model
from keras_albert.storage import files_of, local_path
from keras_albert.tasks.task_file import load_with_task
from keras_albert.training.model_folder import ModelFolder

_OF_THE_HUB = ".gitattributes"  # which the Hub itself puts into a repository


class Finished(Protocol):
    """A finished run, whose folder has the model."""

    @property
    def folder(self) -> Path:
        """The output folder."""


def push_run(run: PushRun) -> None:
    """The command `push`."""
    options = dataclasses.asdict(run)
    push(options.pop("output"), options.pop("input"), **options)


def push(
    target: str,
    model: AlbertModel | Predictor | Finished | str | Path,
    *,
    to: str = PushRun.to,
    private: bool = PushRun.private,
    overwrite: bool = PushRun.overwrite,
    dry_run: bool = PushRun.dry_run,
) -> list[str]:
    """Uploads a model, its vocabulary, task and card to the Hugging Face Hub.

    `load` and `Predictor.load` then take `target`. The token is that of
    `hf auth login`, or of the environment variable HF_TOKEN.

    Args:
        target: `hf://organization/name`; the repository is made if absent.
        model: a model, a Predictor, a finished run, or anything that `load`
            takes. README.md of a folder is its card; others get a short one.
        to: the format of the files: "keras-albert", "huggingface", "kerashub"
            or "sentence-transformers".
        private: if the repository is made: whether only its owners see it. Some
            organizations make repositories private by default.
        overwrite: whether to replace all files; the history keeps them.
        dry_run: only print the files. Needs neither token nor network.

    Returns:
        The names of the files, sorted.

    Raises:
        AlbertError: the name is not valid, there is no token, the repository
            has files already, the Hub refuses, huggingface_hub is not
            installed, or the format has no such model.
    """
    if not isinstance(target, str):
        raise AlbertError(
            "the first argument of `push` is the repository, and the second "
            f"one the model. Received: {type(target).__name__} as repository."
        )
    PushRun("", target, to, private, overwrite, dry_run)  # checks them
    name = hub_name(target)
    purpose = f"{target}: an upload"
    hub = optional_import("huggingface_hub", "huggingface", purpose)
    utils = optional_import("huggingface_hub.utils", "huggingface", purpose)
    try:
        utils.validate_repo_id(name)
    except ValueError as error:
        raise AlbertError(f"{target}: {reason_of(error)}") from None
    if not dry_run and hub.get_token() is None:
        raise AlbertError(
            f"{target}: there is no token of the Hub. Run `hf auth login`, or "
            "set HF_TOKEN to a token that may write."
        )
    loaded, card = _loaded(model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        write_as(to, loaded, folder)
        write_card(folder, hub_card(loaded.model, to, target, card))
        paths = files_of(folder)
        names = [path.relative_to(folder).as_posix() for path in paths]
        sizes = [path.stat().st_size for path in paths]
        if dry_run:
            for each, size in zip(names, sizes, strict=True):
                print(f"{size:14,}  {each}")
        else:
            _upload(hub, folder, target, private, overwrite)
    would = "would go" if dry_run else "went"
    print(f"{len(names)} files, {sum(sizes) / 1e6:.1f} MB {would} to {target}")
    return names


def _loaded(model: AlbertModel | Predictor | Finished | str | Path):
    """The model with its task, and the text of its card or None."""
    folder = getattr(model, "folder", None)
    if isinstance(folder, Path):  # of a finished run
        model = folder
    if isinstance(model, Predictor):
        loaded = ModelFolder(model.model, model.tokenizer, model.settings())
        return with_task(loaded, {}, model.labels), None
    if not isinstance(model, str | os.PathLike):
        check_model(model)
        loaded = ModelFolder.without_task(model)
        return with_task(loaded, {}), None
    path = local_path(model) / CARD_FILE
    is_there = path.is_file()
    card = path.read_text("utf-8", "replace") if is_there else None
    return with_task(load_with_task(model), {}), card


def _upload(
    hub: ModuleType, folder: Path, target: str, private: bool, overwrite: bool
) -> None:
    api, name = hub.HfApi(), hub_name(target)
    try:
        # Else the default of the organization, which may be private, too.
        visibility = {"private": True} if private else {}
        api.create_repo(name, exist_ok=True, **visibility)
        there = [n for n in api.list_repo_files(name) if n != _OF_THE_HUB]
        if there and not overwrite:
            raise AlbertError(
                f"{target}: the repository is not empty, it has {there[0]} and "
                f"{len(there) - 1} more. Choose another name, or replace its "
                "files: overwrite=True, --overwrite."
            )
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Upload an ALBERT model with keras-albert",
            delete_patterns="*" if there else None,
        )
    except AlbertError:
        raise
    except Exception as error:  # of the network, or what the Hub refuses
        raise AlbertError(
            f"{target}: cannot be uploaded ({reason_of(error)}). Check the "
            "name, whether the token may write there, and the connection."
        ) from error
