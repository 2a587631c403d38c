"""Writes and runs a model as one LiteRT (TensorFlow Lite) file for devices.

The file takes token ids of any batch size and length. The device tokenizes
texts itself, with the spiece.model that is exported beside the file.
"""

import tempfile
from pathlib import Path

from keras_albert.errors import AlbertError, optional_import
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.weight_checks import check_not_quantized

LITERT_FILE = "model.tflite"


def write_litert(predictor: Predictor, path: Path, weights: str) -> None:
    """Converts a model to a function from `token_ids` to its outputs.

    `weights` are "float32"; "float16", which halves the size and computes in
    float32; or "int8": matrices and the embedding table are stored in 8 bits
    with a scale for each channel ("dynamic range quantization").
    """
    import tensorflow as tf

    from keras_albert.exports.saved_model.signatures import serving_module

    check_not_quantized(predictor.model)
    module, signatures = serving_module(
        predictor, only={"token_ids"}, rows_leave=False
    )
    function = signatures["token_ids"]
    with tempfile.TemporaryDirectory() as folder:
        # Only a conversion from a SavedModel keeps the names of the outputs.
        tf.saved_model.save(module, folder, {"serving_default": function})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if weights != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if weights == "float16":
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())


def run_litert(path: Path, threads: int):
    """A function from token ids [B, S] to the outputs, see `load.Run`."""
    library = optional_import(
        "ai_edge_litert.interpreter", "litert", f"running {path}"
    )
    try:
        interpreter = library.Interpreter(str(path), num_threads=threads)
    except ValueError as error:
        raise AlbertError(
            f"{path}: damaged, or not a LiteRT model ({error}). Export it "
            "again."
        ) from None
    run = interpreter.get_signature_runner()
    return lambda token_ids: run(token_ids=token_ids)
