"""Runs exported models (SavedModel, LiteRT, ONNX) behind `Predictor`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.exports.litert import LITERT_FILE, run_litert
from keras_albert.exports.onnx.format import ONNX_FILE, run_onnx
from keras_albert.finetuning.predictor import Predictor
from keras_albert.storage import checksum_of_folder, local_path, read_json
from keras_albert.tasks.config import EarlyExit
from keras_albert.tasks.task_file import check_task
from keras_albert.text.tokenizer import Tokenizer
from keras_albert.training.model_folder import (
    ASIDE,
    EXPORT_FILE,
    TASK_FILE,
    ModelFolder,
)

SAVED_MODEL_FILE = "saved_model.pb"
# Names of the output of models that have a single one.
LOGITS, VECTOR = "logits", "embedding"
# Name of the output of graphs that stop early: how many layers were computed.
LAYERS = "layers"

# from token ids, int32 [B, S] or (choices) [B, C, S], to outputs by name
Run = Callable[[np.ndarray], Mapping[str, np.ndarray]]
# function from the name of a signature and its inputs by name, texts [B] or
# (choices) [B, C], to the values of each row, by the name of the output
CallSignature = Callable[[str, Mapping[str, list]], dict[str, list]]


@dataclasses.dataclass(frozen=True)
class Exported:
    """Runs an exported model; replaces the Keras model in a `Predictor`."""

    run: Run
    # the signatures that `call_signature` knows; none if it takes no texts
    signatures: frozenset[str] = frozenset()
    call_signature: CallSignature | None = None
    early_exit: EarlyExit | None = None  # when the exported graph stops
    # whether the first batch of each shape takes longer, as in `AlbertModel`
    compiles_each_shape: bool = False

    def predict_on_batch(self, x: Mapping[str, np.ndarray]):
        """The outputs for a batch; the mask is derived from the ids."""
        outputs = dict(self.run(x["token_ids"]))
        outputs.pop(LAYERS, None)
        (name, *others) = outputs
        if not others and name in (LOGITS, VECTOR):
            return outputs[name]
        return outputs


def share_of_equal(answers: Sequence[Mapping], others: Sequence) -> float:
    """The share of rows of `Predictor.decode` with equal predictions.

    Numbers are equal if they differ by at most a hundredth.
    """

    def equal(row: Mapping, other: Mapping) -> bool:
        a, b = row["prediction"], other["prediction"]
        return np.allclose(a, b, 0, 0.01) if is_numeric(a) else a == b

    pairs = zip(answers, others, strict=True)
    return float(np.mean([equal(*pair) for pair in pairs]))


def is_numeric(prediction) -> bool:
    """Whether a prediction is a number or a vector, and not labels."""
    values = prediction if isinstance(prediction, list) else [prediction]
    return bool(values) and isinstance(values[0], float)


def _aside(folder: Path) -> Path:
    """The folder with the vocabulary and the settings of an export."""
    in_saved_model = (folder / SAVED_MODEL_FILE).is_file()
    return folder / ASIDE if in_saved_model else folder


def export_settings(folder: str | Path) -> dict:
    """The content of export.json: format, data type and number of weights."""
    return read_json(_aside(with_version(folder)) / EXPORT_FILE)


def newest_version(folder: Path) -> int:
    """The highest version in a SavedModel's folder; 0 if there is none."""
    names = [path.name for path in folder.glob("*")]
    return max([int(name) for name in names if name.isdecimal()], default=0)


def with_version(folder: str | Path) -> Path:
    """The newest version in a SavedModel's folder; other folders unchanged."""
    folder = local_path(folder)
    newest = folder / str(newest_version(folder))
    return newest if (newest / SAVED_MODEL_FILE).is_file() else folder


def is_exported(folder: str | Path) -> bool:
    """Whether `keras-albert export` wrote a folder, or a version in it."""
    return (_aside(with_version(folder)) / EXPORT_FILE).is_file()


def checksum_of_export(folder: str | Path) -> str:
    """The checksum of the newest version of an exported model."""
    return checksum_of_folder(with_version(folder))


def load_exported(folder: str | Path, threads: int = 1) -> Predictor:
    """The predictor of a folder that `keras-albert export` wrote.

    If the folder has several versions of a SavedModel, the newest is loaded.
    `threads` is the number of threads of LiteRT and ONNX Runtime.
    """
    folder = with_version(folder)
    found = [name for name in _RUNNERS if (folder / name).is_file()]
    aside = _aside(folder)
    if not (aside / TASK_FILE).is_file() or len(found) != 1:
        raise AlbertError(
            f"{folder}: not an exported model ({TASK_FILE} with one of "
            f"{', '.join(_RUNNERS)}). Give a folder that `keras-albert export` "
            "wrote."
        )
    (name,) = found
    settings = read_json(aside / TASK_FILE)
    try:
        check_task(settings)
    except AlbertError as error:
        raise AlbertError(
            f"{aside / TASK_FILE} has been changed: {error} Export the model "
            "again."
        ) from None
    exported = _RUNNERS[name](folder / name, threads)
    rule = settings.pop("early_exit", None)  # the graph has it, no Predictor
    exported = dataclasses.replace(
        exported,
        run=_by_rows(exported.run),
        early_exit=rule and EarlyExit(**rule),
    )
    return Predictor.of(ModelFolder(exported, Tokenizer(aside), settings))


def _by_rows(run: Run) -> Run:
    """Wraps a runner of rows [R, S], so that it also takes ids [B, C, S].

    C is the number of choices, or of texts, of an example. Exported models only
    take rows.
    """

    def run_rows(token_ids: np.ndarray) -> Mapping[str, np.ndarray]:
        outputs = run(token_ids.reshape(-1, token_ids.shape[-1]))
        if token_ids.ndim == 2:
            return outputs
        shape = token_ids.shape[:-1]
        return {
            # logits [B C, 1] -> [B, C], vectors [B C, D] -> [B, C, D]
            name: value.reshape(*shape, *value.shape[1:][name != VECTOR :])
            for name, value in outputs.items()
        }

    return run_rows


def _load_saved_model(path: Path, threads: int) -> Exported:
    tf = optional_import("tensorflow", "export", f"running {path}")
    # The graph uses its operations. It has no wheels for Windows.
    optional_import("tensorflow_text", "export", f"running {path}")
    try:
        loaded = tf.saved_model.load(str(path.parent))
    except Exception as error:  # such as IndexError for a truncated file
        raise AlbertError(
            f"{path.parent}: damaged, or not a SavedModel "
            f"({reason_of(error):.200}). Export it again."
        ) from None

    def outputs(signature: str, **inputs) -> dict[str, np.ndarray]:
        found = loaded.signatures[signature](**inputs)
        return {name: value.numpy() for name, value in found.items()}

    def run(token_ids: np.ndarray) -> dict[str, np.ndarray]:
        found = outputs("token_ids", token_ids=tf.constant(token_ids, "int32"))
        return {
            name: np.char.decode(value.astype("S"), "utf-8")
            if value.dtype == object  # bytes
            else value
            for name, value in found.items()
        }

    def call_signature(
        signature: str, inputs: Mapping[str, list]
    ) -> dict[str, list]:
        texts = {name: tf.constant(value) for name, value in inputs.items()}
        return {
            name: [_as_text(row) for row in value.tolist()]
            for name, value in outputs(signature, **texts).items()
        }

    return Exported(run, frozenset(loaded.signatures), call_signature)


def _as_text(value):
    """Decodes bytes, also in lists; other values are returned unchanged."""
    if isinstance(value, list):
        return [*map(_as_text, value)]
    return value.decode() if isinstance(value, bytes) else value


_RUNNERS = {
    LITERT_FILE: lambda path, threads: Exported(
        run_litert(path, threads),
        compiles_each_shape=True,  # it allocates all tensors anew
    ),
    ONNX_FILE: lambda path, threads: Exported(run_onnx(path, threads)),
    SAVED_MODEL_FILE: _load_saved_model,
}
