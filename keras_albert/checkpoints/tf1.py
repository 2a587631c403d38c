"""Reads TF1 checkpoints of the original ALBERT, on every backend.

They are released archives, results of its runs, or TF-Hub modules.
"""

import re
from pathlib import Path

import numpy as np

from keras_albert.checkpoints.transfer import imported
from keras_albert.errors import AlbertError, optional_import, reason_of
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.classification import AlbertForSequenceClassification
from keras_albert.modeling.config import CONFIG_FILE, AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.weight_checks import check_plausible
from keras_albert.storage import local_path
from keras_albert.text.tokenizer import Tokenizer

RELEASED_PREFIX = "model.ckpt-best"  # in the archives of the original
# In a TF-Hub module: the path of the weights, and the prefix of their names.
HUB_PREFIX = Path("variables", "variables")
HUB_SCOPE = "module/"
HUB_ASSETS = "assets"

# The kernel of the projection in brightmart/albert_zh, modeling.py.
WIDE_PROJECTION = "bert/embeddings/word_embeddings_2"

# In a checkpoint of TensorFlow 2, the variable that describes its objects.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Variables that are not weights of the model: optimizer slots and the step.
_SKIPPED = re.compile(
    r"(/adam_[mv](_\d+)?|/AdamWeightDecayOptimizer.*|(^|/)global_step)$"
)


def find_tf1(source: Path) -> list[Path]:
    """The paths, without `.index`, of the TF1 checkpoints at `source`.

    Of several in a folder, one with the name of the released ones is meant.
    """
    if source.name.endswith(".index") and source.is_file():
        return [source.with_name(source.name.removesuffix(".index"))]
    if _index(source).is_file():
        return [source]
    if not source.is_dir():
        return []
    if _index(source / HUB_PREFIX).is_file():
        return [source / HUB_PREFIX]
    found = [
        path.with_name(path.name.removesuffix(".index"))
        for path in sorted(source.glob("*.index"))
    ]
    released = [path for path in found if path.name == RELEASED_PREFIX]
    return released or found


def load_tf1_model(
    prefix: Path, backbone: bool = False, **build_options
) -> AlbertModel:
    """Loads a TF1 checkpoint; the head is chosen by the names of its weights.

    `prefix` is its path without `.index`. `albert_config.json` must be beside
    it (for a TF-Hub module in the module or its assets); a `*.model` vocabulary
    is optional. The other arguments are those of `load_huggingface`.
    """
    tensors = read_tf1(prefix)
    if WIDE_PROJECTION in tensors:
        raise AlbertError(
            f"{prefix}: a model of brightmart/albert_zh, which adds positions "
            "and segments behind the projection of the embedding and not "
            "before it: another architecture, which this package does not "
            "have. Its releases with `google` in the name can be loaded."
        )
    config_file = _beside(prefix, CONFIG_FILE)
    config = AlbertConfig.from_json(config_file)
    stored = sum(value.size for value in tensors.values())
    check_plausible(config, stored, str(config_file))
    encoder = AlbertBackbone(
        config, tokenizer=_vocabulary(prefix), **build_options
    )
    model = encoder if backbone else _with_head(encoder, tensors, prefix)
    imported(model, tensors, "tf1", str(prefix), ignore_heads=backbone)
    return model


def load_tf1(model: AlbertModel, prefix: str | Path) -> None:
    """Sets every weight of a model from a TF1 checkpoint.

    Heads that the model does not have are ignored; other weights must match.

    Args:
        model: a model with the architecture of the checkpoint.
        prefix: path without `.index`, such as `albert_base/model.ckpt-best`.

    Raises:
        AlbertError: weights are missing, unused or of another shape (the
            message lists all of them). The model is then unchanged.
    """
    imported(model, read_tf1(prefix), "tf1", str(prefix), ignore_heads=True)


def tf1_head(prefix: Path) -> str | None:
    """The task that a TF1 checkpoint was fine-tuned for, by its weights' names.

    None if there is no such head.
    """
    import tensorflow as tf

    try:
        names = {name for name, _ in tf.train.list_variables(str(prefix))}
    except (tf.errors.OpError, RuntimeError, ValueError):
        return None  # loading the checkpoint will say what is wrong with it
    if "cls/squad/output_bias" in names or "start_logits/dense/kernel" in names:
        return "question answering"
    return "classification" if "output_bias" in names else None


def read_tf1(prefix: str | Path) -> dict[str, np.ndarray]:
    """Reads all weights of a TF1 checkpoint by name, without optimizer slots.

    `prefix` is its path without `.index`. Raises AlbertError if the checkpoint
    is missing or damaged, or TensorFlow is not installed.
    """
    prefix = local_path(prefix)
    if not _index(prefix).is_file():
        raise AlbertError(
            f"{prefix}.index: no such file. A TF1 checkpoint is named by its "
            "path without `.index`."
        )
    tf = optional_import("tensorflow", "tensorflow", "a TF1 checkpoint")
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = reader.get_variable_to_shape_map()
        if OBJECT_GRAPH in names:
            raise AlbertError(
                f"{prefix}: a checkpoint of TensorFlow 2 or a SavedModel. "
                "Expected one of TensorFlow 1, with the names of the original. "
                "Give the model that it was made from."
            )
        return {
            name.removeprefix(HUB_SCOPE): reader.get_tensor(name)
            for name in names
            if not _SKIPPED.search(name)
        }
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise AlbertError(
            f"{prefix}: the checkpoint is damaged or incomplete "
            f"({reason_of(error)}). Fetch it again."
        ) from None


def _index(prefix: Path) -> Path:
    return prefix.parent / f"{prefix.name}.index"  # "." has no name


def _beside(prefix: Path, name: str) -> Path:
    """The path of a file beside the checkpoint, or in a TF-Hub module."""
    folder = prefix.parent
    places = [folder / name]
    if folder.name == HUB_PREFIX.parent.name:
        module = folder.parent
        places = [module / name, module / HUB_ASSETS / name, *places]
    for place in places:
        if place.is_file():
            return place
    message = (
        f"{places[0]}: no such file, and a checkpoint does not say how many "
        "layers and heads it has. "
    )
    others = {each for p in places for each in p.parent.glob("*config*.json")}
    if others:  # as of Chinese models: albert_config_tiny_g.json
        names = ", ".join(sorted(each.name for each in others))
        remedy = f"Copy or rename the right one to {name}. Found: {names}."
    else:
        remedy = (
            "Put it there; for a released size: "
            f'VARIANTS["base_v2"].to_json({str(places[0])!r}).'
        )
    raise AlbertError(message + remedy)


def _vocabulary(prefix: Path) -> Tokenizer | None:
    folder = prefix.parent
    if folder.name == HUB_PREFIX.parent.name:
        folder = folder.parent / HUB_ASSETS
    return Tokenizer(folder) if any(folder.glob("*.model")) else None


def _with_head(
    encoder: AlbertBackbone, tensors: dict[str, np.ndarray], prefix: Path
) -> AlbertModel:
    if "cls/predictions/output_bias" in tensors:
        if "cls/seq_relationship/output_bias" in tensors:
            return AlbertForPretraining(encoder)
        return AlbertForMaskedLM(encoder)
    if "cls/squad/output_bias" in tensors:
        return AlbertForQuestionAnswering(encoder)
    if "start_logits/dense/kernel" in tensors:
        return AlbertForQuestionAnsweringV2(encoder)
    if "output_bias" in tensors:
        labels = len(tensors["output_bias"])
        if labels < 2:
            raise AlbertError(
                f"{prefix}: its head has one output, which may be a regression "
                "(STS-B) or a multiple choice (RACE). Make the model that it "
                "is and set its weights with load_tf1(model, "
                f"{str(prefix)!r}), or load the encoder alone (backbone=True)."
            )
        return AlbertForSequenceClassification(encoder, num_labels=labels)
    return encoder
