"""The command `whiten`: vectors that tell texts apart, without training."""

import dataclasses
import itertools

from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.data.tables import (
    Field,
    check_table,
    evenly_spaced,
    naming_columns,
    read_parts,
    read_text,
)
from keras_albert.errors import AlbertError
from keras_albert.finetuning.config import WhitenRun
from keras_albert.finetuning.predictor import Predictor
from keras_albert.finetuning.report import print_skipped
from keras_albert.modeling.config import IDF, IDF_POOLINGS
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.storage import check_free
from keras_albert.tasks.names import EMBEDDING
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.task_file import load_with_task
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.unknown import check_readable, count_in_table


def whiten(run: WhitenRun) -> None:
    """Computes and writes the model; nothing is written after an error."""
    import_tensorflow()  # before it could open a GPU of the backend
    check_free(run.output)
    check_table(run.data)
    loaded = load_with_task(run.model)
    is_embedder = isinstance(loaded.model, AlbertForTextEmbedding)
    if is_embedder:
        _check_fits(run, loaded.model.pooling)
    task = ALL_TASKS.get(loaded.task["task"])
    task = task.name if task and task.makes_vectors else EMBEDDING
    source = Predictor.of(loaded, task=task)
    texts, model = _texts(run, source), source.model
    if not is_embedder:
        pooling = run.pooling or (IDF if run.words else "mean")
        model = AlbertForTextEmbedding(model.backbone, pooling)
        if pooling in IDF_POOLINGS:
            model.adapt(texts)
    print(f"{run.model} reads {len(texts):,} texts", flush=True)
    if not (is_embedder and run.words):
        model = model.whitened(texts, run.dimensions)
    if run.words:
        model = model.with_words(texts, run.words)
    dataclasses.replace(source, model=model).save(run.output)
    print(f"vectors with {model.size} dimensions -> {run.output}")


def _check_fits(run: WhitenRun, pooling: str) -> None:
    """Raises AlbertError unless the options fit a model that makes vectors."""
    if run.pooling not in (None, pooling):
        raise AlbertError(
            f"{run.model} makes vectors by {pooling} pooling. Received: "
            f"pooling={run.pooling!r}. Leave --pooling out, or give the "
            "pretrained model that it was made from."
        )
    if run.words and run.dimensions is not None:
        raise AlbertError(
            f"{run.model} makes vectors, which --words keeps as they are. "
            f"Received: dimensions={run.dimensions}. Leave --dimensions out."
        )


def _texts(run: WhitenRun, predictor: Predictor) -> list[str]:
    """The different texts of the table, or some if there are too many."""
    fields = {name: Field(name, read_text) for name in run.columns}
    with naming_columns("--columns"):
        (table,) = read_parts(run.data, fields, run.skip_bad)
    print_skipped(table)
    texts = dict.fromkeys(itertools.chain(*table.values.values()))
    texts.pop("", None)  # the blank lines of a .txt file
    texts = list(texts)
    texts = [texts[i] for i in evenly_spaced(len(texts), run.max_texts)]
    tokenizer = predictor.tokenizer
    rows = text_rows(tokenizer, texts, None, predictor.sequence_length)
    found = count_in_table(tokenizer, rows, {"text": texts}, ["text"])
    check_readable(*found, run.data, run.any_text)
    return texts
