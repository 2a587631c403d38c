"""Writes and runs a model as one ONNX file, for ONNX Runtime and others.

The file takes token ids of any batch size and length. Texts are tokenized
outside, with the spiece.model that is exported beside it.
"""

from pathlib import Path

from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.finetuning.predictor import Predictor

ONNX_FILE = "model.onnx"


def write_onnx(predictor: Predictor, path: Path, weights: str) -> None:
    """Writes the model as a function of `token_ids`, see `onnx_model`.

    `weights` are "float32", or "int8": kernels and word embeddings are stored
    in 8 bits with a scale for each output and each piece.
    """
    onnx = optional_import("onnx", "onnx", "exporting as ONNX")
    from keras_albert.exports.onnx.heads import onnx_model

    graph = onnx_model(
        predictor.model,
        predictor.reads_pairs,
        int8=weights == "int8",
        early_exit=predictor.early_exit,
    )
    onnx.save(graph, path)


def run_onnx(path: Path, threads: int):
    """A function from token ids [B, S] to the outputs, see `load.Run`."""
    onnxruntime = optional_import("onnxruntime", "onnx", f"running {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime has its own classes
        raise AlbertError(
            f"{path}: damaged, or not an ONNX model ({reason_of(error):.200}). "
            "Export it again."
        ) from None
    names = [output.name for output in session.get_outputs()]

    def run(token_ids):
        values = session.run(names, {"token_ids": token_ids})
        return dict(zip(names, values, strict=True))

    return run
