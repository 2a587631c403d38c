"""Converts a checkpoint from one format to another."""

import dataclasses
from pathlib import Path

from keras_albert.checkpoints.huggingface import save_huggingface
from keras_albert.checkpoints.keras_hub import save_keras_hub
from keras_albert.checkpoints.load import load
from keras_albert.checkpoints.sentence_transformers import (
    save_sentence_transformers,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import ConvertRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.backbone import AlbertBackbone, encoder_of
from keras_albert.modeling.classification import default_labels
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import check_free, files_of
from keras_albert.tasks.infer import head_task
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task_file import load_with_task
from keras_albert.training.model_folder import ModelFolder


def convert(run: ConvertRun) -> None:
    """Reads a checkpoint of any format and writes it in another.

    Nothing is written if there is an error.
    """
    check_free(run.output)
    if run.backbone:
        named = [
            name
            for name, value in run.predictor_arguments.items()
            if value is not None
        ]
        if named:
            raise AlbertError(
                "an encoder has no task and no labels. Received --backbone and "
                f"{', '.join(named)}. Leave them out."
            )
        model = load(run.input, gelu=run.gelu, backbone=True, dtype="float32")
        loaded = ModelFolder.without_task(model)
    else:
        loaded = load_with_task(run.input, run.gelu)
        loaded = with_task(loaded, run.predictor_arguments, run.labels)
    write_as(run.to, loaded, run.output)
    size = sum(path.stat().st_size for path in files_of(run.output))
    name = type(loaded.model).__name__
    print(f"{name}, {size / 1e6:.1f} MB -> {run.output}")


def with_task(
    loaded: ModelFolder, given: dict, labels: tuple[str, ...] | None = None
) -> ModelFolder:
    """Adds the task of the head, so that the result can predict.

    A model without such a head or a vocabulary is returned unchanged. `given`
    are arguments of `Predictor`, and `labels` names for the classes.
    """
    is_given = any(value is not None for value in given.values())
    is_ready = (
        loaded.tokenizer is not None
        and not isinstance(loaded.model, AlbertBackbone)
        and ALL_TASKS[head_task(loaded.model)].is_learned
    )
    if not is_given and not is_ready:
        return loaded
    predictor = Predictor.of(loaded, **given)
    model, labels = predictor.model, labels or loaded.task.get("labels")
    if labels and hasattr(model, "labels"):
        model.labels = tuple(labels)  # which other formats store
    return dataclasses.replace(loaded, model=model, task=predictor.settings())


def write_as(to: str, loaded: ModelFolder, folder: Path) -> None:
    """Writes a model in one of FORMATS into a new folder."""
    _WRITERS[to](loaded, folder)
    model, vectors = loaded.model, (AlbertBackbone, AlbertForTextEmbedding)
    if to == "sentence-transformers" and not isinstance(model, vectors):
        print(
            f"note: {to} cannot store the head of {type(model).__name__}: only "
            "its encoder was written, which makes a vector of a text as the "
            "mean of those of its tokens"
        )
    file = encoder_of(model).wordpiece_file
    if file and loaded.tokenizer is None:
        print(
            f"note: {file} was left out: only vocabularies of SentencePiece "
            "are read and written. Copy it yourself, for "
            "transformers.BertTokenizer"
        )
    if to != "keras-albert" and loaded.task.get("early_exit"):
        print(
            f"note: {to} computes all layers: the rule by which inference "
            "stops early was left out"
        )
    labels = tuple(loaded.task.get("labels") or ())
    if to == "kerashub" and labels != default_labels(len(labels)):
        print(
            f"note: {to} has no names of labels: those of this model were left "
            f"out. Give them with --labels {' '.join(labels)}"
        )
    if to != "keras-albert" and loaded.task.get("long_texts"):
        print(f"note: {to} has no windows: long texts are cut in it")
    if to != "keras-albert" and (limit := loaded.task.get("threshold")):
        print(
            f"note: {to} has no thresholds: those of this model were left out "
            f"({', '.join(f'{each:.4g}' for each in limit)})"
        )


_WRITERS = {
    "keras-albert": ModelFolder.save_new,
    "huggingface": lambda loaded, folder: save_huggingface(
        loaded.model, folder
    ),
    "sentence-transformers": lambda loaded, folder: save_sentence_transformers(
        loaded.model, folder
    ),
    "kerashub": lambda loaded, folder: save_keras_hub(loaded.model, folder),
}
