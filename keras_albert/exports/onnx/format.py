"""A fine-tuned model as one ONNX file, for ONNX Runtime and others.

Token ids in, the task's outputs out; texts are tokenized outside, with the
spiece.model beside it. Any batch size and length.
"""

from pathlib import Path

from keras_albert.errors import AlbertError, optional_import
from keras_albert.finetuning.predictor import Predictor

ONNX_FILE = "model.onnx"


def write_onnx(predictor: Predictor, path: Path, weights: str) -> None:
    """Writes its model as a function of `token_ids`, see `onnx_model`.

    Args:
        predictor: on any backend.
        path: the file to write.
        weights: "float32", or "int8": kernels and the word embeddings in 8
            bits with a scale for each output and each piece; activations are
            quantized as they come.

    Raises:
        AlbertError: a package is missing; the model is quantized.
    """
    onnx = optional_import("onnx", "onnx", "exporting as ONNX")
    from keras_albert.exports.onnx.encoder import onnx_model

    graph = onnx_model(
        predictor.model, predictor.reads_pairs, int8=weights == "int8"
    )
    onnx.save(graph, path)


def run_onnx(path: Path, threads: int):
    """Token ids [B, S] -> outputs by name, see `load_exported`."""
    onnxruntime = optional_import("onnxruntime", "onnx", f"running {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime has its own kinds, all of them
        reason = str(error).strip().splitlines()[0][:200]
        raise AlbertError(
            f"{path}: damaged, or not an ONNX model ({reason}). Export it "
            "again."
        ) from None
    names = [output.name for output in session.get_outputs()]

    def run(token_ids):
        values = session.run(names, {"token_ids": token_ids})
        return dict(zip(names, values, strict=True))

    return run
