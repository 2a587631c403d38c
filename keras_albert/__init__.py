"""ALBERT for Keras 3: pretrain, fine-tune and serve on TF, JAX and PyTorch.

Names are imported when first used, so that the command line's help does not
wait for a backend.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

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
    "ExampleConfig": "config",
    "GraphTokenizer": "text.graph",
    "Lamb": "training.optimizer",
    "ShardSet": "data.shards",
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

# Editors and type checkers read these imports; they never run. `as` tells
# them that a name is public. Sorted, isort would repeat `from` for each name.
if TYPE_CHECKING:
    # isort: off
    from keras_albert.checkpoints.huggingface import (
        save_huggingface as save_huggingface,
    )
    from keras_albert.checkpoints.keras_hub_presets import (
        save_keras_hub as save_keras_hub,
    )
    from keras_albert.checkpoints.tf1 import load_tf1 as load_tf1
    from keras_albert.config import (
        AlbertConfig as AlbertConfig,
        AlbertError as AlbertError,
        ExampleConfig as ExampleConfig,
        VARIANTS as VARIANTS,
    )
    from keras_albert.data.pretraining import (
        phased_dataset as phased_dataset,
        pretraining_dataset as pretraining_dataset,
        validation_dataset as validation_dataset,
    )
    from keras_albert.data.shards import ShardSet as ShardSet
    from keras_albert.modeling.backbone import AlbertBackbone as AlbertBackbone
    from keras_albert.modeling.classification import (
        AlbertForMultipleChoice as AlbertForMultipleChoice,
        AlbertForSequenceClassification as AlbertForSequenceClassification,
        AlbertForTokenClassification as AlbertForTokenClassification,
    )
    from keras_albert.modeling.masked_lm import (
        AlbertForMaskedLM as AlbertForMaskedLM,
        AlbertForPretraining as AlbertForPretraining,
    )
    from keras_albert.modeling.question_answering import (
        AlbertForQuestionAnswering as AlbertForQuestionAnswering,
        AlbertForQuestionAnsweringV2 as AlbertForQuestionAnsweringV2,
    )
    from keras_albert.modeling.text_embedding import (
        AlbertForTextEmbedding as AlbertForTextEmbedding,
    )
    from keras_albert.modeling.warm_start import warm_start as warm_start
    from keras_albert.text.graph import GraphTokenizer as GraphTokenizer
    from keras_albert.text.tokenizer import Tokenizer as Tokenizer
    from keras_albert.training.folders import (
        Predictor as Predictor,
        load as load,
        load_model as load_model,
        load_pretrained as load_pretrained,
    )
    from keras_albert.training.losses import (
        WeightedCrossEntropy as WeightedCrossEntropy,
    )
    from keras_albert.training.optimizer import Lamb as Lamb
    from keras_albert.training.schedules import (
        WarmupPolynomialDecay as WarmupPolynomialDecay,
    )
    # isort: on


def __getattr__(name: str) -> Any:
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
