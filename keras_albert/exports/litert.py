"""A fine-tuned model as one LiteRT (TensorFlow Lite) file for devices.

Token ids in, the task's outputs out; texts are tokenized outside, with the
spiece.model beside it. Any batch size and length.
"""

import tempfile
from pathlib import Path

from keras_albert.errors import AlbertError, optional_import
from keras_albert.finetuning.predictor import Predictor
from keras_albert.modeling.base import check_not_quantized

LITERT_FILE = "model.tflite"


def write_litert(predictor: Predictor, path: Path, weights: str) -> None:
    """Converts its model as a function of `token_ids`.

    Args:
        predictor: of a model on Keras's TensorFlow backend.
        path: the file to write.
        weights: "float32"; "float16", half the size, computing in float32; or
            "int8": matrices and the embedding table are stored in 8 bits with
            a scale for each channel, activations are quantized as they come
            ("dynamic range quantization").

    Raises:
        AlbertError: the model is quantized by Keras, or only fills masks.
    """
    if predictor.definition.serving.needs_pieces:
        raise AlbertError(
            "masked words are served as a saved_model alone: a LiteRT file "
            "has no pieces. Export that, or vectors with task='embedding' "
            "(--task embedding)."
        )
    import tensorflow as tf

    from keras_albert.exports.saved_model.signatures import serving_module

    check_not_quantized(predictor.model)
    module, signatures = serving_module(predictor, only={"token_ids"})
    function = signatures["token_ids"]
    with tempfile.TemporaryDirectory() as folder:
        # Only a SavedModel's signature keeps the names of its outputs.
        tf.saved_model.save(module, folder, {"serving_default": function})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if weights != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if weights == "float16":
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())


def run_litert(path: Path, threads: int):
    """Token ids [B, S] -> outputs by name, see `load_exported`."""
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
