"""A checkpoint from one format to another."""

from keras_albert.checkpoints.huggingface import save_huggingface
from keras_albert.checkpoints.keras_hub_presets import save_keras_hub
from keras_albert.config import ConvertRun
from keras_albert.modeling.model import AlbertModel
from keras_albert.storage import check_free, written_whole
from keras_albert.training.folders import WEIGHTS, ModelFolder, load


def convert(run: ConvertRun) -> None:
    """Reads any checkpoint and writes another; whole or not at all.

    Raises:
        AlbertError: the output is taken, the input cannot be read, or the
            other format has no such model.
    """
    check_free(run.output)
    model = load(
        run.input, gelu=run.gelu, backbone=run.backbone, dtype="float32"
    )
    _WRITERS[run.to](model, run.output)
    files = [path for path in run.output.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{type(model).__name__}, {size / 1e6:.1f} MB -> {run.output}")


def _save_ours(model: AlbertModel, folder) -> None:
    content = ModelFolder(model, model.tokenizer, {"task": WEIGHTS})
    with written_whole(folder) as unfinished:
        content.save(unfinished)


_WRITERS = {
    "keras-albert": _save_ours,
    "huggingface": save_huggingface,
    "kerashub": save_keras_hub,
}
