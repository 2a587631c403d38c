"""A fine-tuned classifier as one SavedModel: strings in, labels out.

The graph is traced by Keras's TensorFlow backend, in a worker process when
this one runs another backend, so that every server can run the result.
"""

import os
import subprocess
import sys

from keras_albert.config import (
    AlbertError,
    ExportRun,
)
from keras_albert.storage import check_free, written_whole
from keras_albert.training.benchmarks import ALL_TASKS
from keras_albert.training.distribution import traces_for_tensorflow
from keras_albert.training.folders import ModelFolder, Predictor
from keras_albert.training.tasks import PAIR


def export(run: ExportRun) -> None:
    """Writes the SavedModel folder, whole or not at all.

    Signature `serving_default`: `text` (and `pair`, for a model of pairs),
    strings [B], to `label` string [B], `score` float32 [B], `probabilities`
    float32 [B, C] and the `labels` string [B, C] they belong to. Text that is
    too long is cut off as in training; malformed UTF-8 is ignored.

    Raises:
        AlbertError: no classifier in the folder, the output exists, or a
            package is missing.
    """
    check_free(run.output)
    if traces_for_tensorflow():
        _export_here(run)
    else:
        _export_in_worker(run)
    size = sum(f.stat().st_size for f in run.output.rglob("*") if f.is_file())
    print(f"SavedModel of {size / 1e6:.1f} MB -> {run.output}")


def _export_in_worker(run: ExportRun) -> None:
    worker = subprocess.run(
        [sys.executable, "-m", "keras_albert.cli", "export"]
        + ["--model", str(run.model), "--output", str(run.output)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if worker.returncode == 2:  # a message for the user
        raise AlbertError(
            worker.stderr.splitlines()[-1].removeprefix("error: ")
        )
    if worker.returncode:
        raise RuntimeError(f"The TensorFlow worker failed:\n{worker.stderr}")


def _export_here(run: ExportRun) -> None:
    loaded = ModelFolder.load(run.model)
    classifier = Predictor.of(loaded)
    if not ALL_TASKS[classifier.task].has_classes:
        raise AlbertError(
            f"{run.model} was trained for {classifier.task}: only a "
            "classifier can be exported yet."
        )
    # Imported late: TensorFlow is not a dependency of the other backends.
    import tensorflow as tf

    from keras_albert.text.graph import GraphTokenizer

    tokenizer = GraphTokenizer(classifier.tokenizer)
    labels = tf.constant(classifier.labels)

    module = tf.Module(name="albert_classifier")
    module.tokenizer = tokenizer
    # The module sees the variables' values and no Keras object: else every
    # weight would be stored twice.
    module.weights = [v.value for v in classifier.model.variables]
    model = classifier.model

    def answer(packed):
        probabilities = tf.nn.softmax(model(packed, training=False))
        best = tf.argmax(probabilities, axis=-1)
        return {
            "label": tf.gather(labels, best),
            "score": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
            # Beside each row, as servers want one batch size for all outputs.
            "labels": tf.tile([labels], [tf.shape(probabilities)[0], 1]),
        }

    def strings(name):
        return tf.TensorSpec([None], tf.string, name)

    def serve_text(text):
        ids = tokenizer(text)
        return answer(tokenizer.pack(ids, None, classifier.sequence_length))

    def serve_pair(text, pair):
        ids = tokenizer(text), tokenizer(pair)
        return answer(tokenizer.pack(*ids, classifier.sequence_length))

    if PAIR in ALL_TASKS[classifier.task].inputs(classifier.columns):
        serve, signature = serve_pair, [strings("text"), strings("pair")]
    else:
        serve, signature = serve_text, [strings("text")]
    module.serve = tf.function(
        serve, input_signature=signature, autograph=False, jit_compile=False
    )
    with written_whole(run.output) as unfinished:
        tf.saved_model.save(
            module, str(unfinished), {"serving_default": module.serve}
        )
