"""ALBERT for Keras 3: pretrain, fine-tune and serve on TF, JAX and PyTorch.

Names are imported when first used, so that the command line's help does not
wait for a backend.
"""

import importlib
import sys

__version__ = "0.1.0"

_HOMES = {
    "AlbertBackbone": "modeling.backbone",
    "AlbertConfig": "config",
    "AlbertError": "config",
    "AlbertForMaskedLM": "modeling.masked_lm",
    "AlbertForMultipleChoice": "modeling.classification",
    "AlbertForPretraining": "modeling.masked_lm",
    "AlbertForQuestionAnswering": "modeling.question_answering",
    "AlbertForQuestionAnsweringV2": "modeling.question_answering",
    "AlbertForSequenceClassification": "modeling.classification",
    "AlbertForTextEmbedding": "modeling.text_embedding",
    "AlbertForTokenClassification": "modeling.classification",
    "EncoderBlock": "modeling.encoder_block",
    "ExampleConfig": "config",
    "FactorizedEmbedding": "modeling.embeddings",
    "GraphTokenizer": "text.graph",
    "Lamb": "training.optimizer",
    "ShardSet": "data.shards",
    "SharedEncoder": "modeling.encoder",
    "Predictor": "training.folders",
    "Tokenizer": "text.tokenizer",
    "VARIANTS": "config",
    "WarmupPolynomialDecay": "training.schedules",
    "WeightedCrossEntropy": "training.losses",
    "load": "training.folders",
    "load_model": "training.folders",
    "load_pretrained": "training.folders",
    "load_tf1": "checkpoints.tf1",
    "phased_dataset": "data.pretraining",
    "pretraining_dataset": "data.pretraining",
    "save_huggingface": "checkpoints.huggingface",
    "save_keras_hub": "checkpoints.keras_hub_presets",
    "validation_dataset": "data.pretraining",
    "warm_start": "modeling.warm_start",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


# Where Keras is loaded already nothing is saved by waiting, and
# `keras.models.load_model` needs our classes registered.
if "keras" in sys.modules:
    for _home in sorted(set(_HOMES.values()) - {"text.graph"}):
        importlib.import_module(f"{__name__}.{_home}")
