"""ALBERT for Keras 3: pretrain, fine-tune and serve on TF, JAX and PyTorch.

Names are imported when first used, so that help does not wait for a backend.
"""

import difflib
import importlib
import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AlbertBackbone": "modeling.backbone",
    "AlbertConfig": "modeling.config",
    "AlbertEnsemble": "modeling.ensemble",
    "AlbertError": "errors",
    "AlbertForMaskedLM": "modeling.pretraining",
    "AlbertForMultipleChoice": "modeling.classification",
    "AlbertForPretraining": "modeling.pretraining",
    "AlbertForQuestionAnswering": "modeling.question_answering",
    "AlbertForQuestionAnsweringV2": "modeling.question_answering",
    "AlbertForSequenceClassification": "modeling.classification",
    "AlbertForTextEmbedding": "modeling.text_embedding",
    "AlbertForTokenClassification": "modeling.classification",
    "CosineLoss": "training.embedding_losses",
    "EncoderBlock": "modeling.encoder",
    "EarlyExit": "tasks.config",
    "Evaluation": "python_api",
    "ExampleConfig": "pretraining.config",
    "FactorizedEmbedding": "modeling.layers",
    "FinishedRun": "python_api",
    "GraphTokenizer": "text.graph_tokenizer",
    "Lamb": "training.optimizer",
    "MultipleNegativesRanking": "training.embedding_losses",
    "ReadingConfig": "tasks.question_answering.config",
    "ShardSet": "corpus.shards",
    "TableColumns": "data.config",
    "Predictor": "finetuning.predictor",
    "Preprocessor": "modeling.preprocessing",
    "SharedEncoder": "modeling.encoder",
    "Tokenizer": "text.tokenizer",
    "VARIANTS": "modeling.config",
    "WarmupPolynomialDecay": "training.schedules",
    "WeightedCrossEntropy": "training.losses",
    "attention_figure": "finetuning.inspect",
    "evaluate": "python_api",
    "export": "exports.run",
    "finetune": "python_api",
    "from_keras_hub": "checkpoints.keras_hub",
    "from_transformers": "checkpoints.huggingface",
    "layer_distances": "finetuning.inspect",
    "load": "checkpoints.load",
    "load_model": "modeling.keras_file",
    "load_pretrained": "checkpoints.load",
    "load_tf1": "checkpoints.tf1",
    "phased_dataset": "pretraining.dataset",
    "pretrain": "python_api",
    "pretraining_dataset": "pretraining.dataset",
    "push": "finetuning.push",
    "read_vectors": "exports.embed",
    "save_huggingface": "checkpoints.huggingface",
    "save_keras_hub": "checkpoints.keras_hub",
    "save_sentence_transformers": "checkpoints.sentence_transformers",
    "to_keras_hub": "checkpoints.keras_hub",
    "to_transformers": "checkpoints.huggingface",
    "validation_dataset": "pretraining.dataset",
    "warm_start": "modeling.warm_start",
}
__all__ = sorted(_HOMES)

# Editors and type checkers read these imports; they never run.
if TYPE_CHECKING:
    from keras_albert.checkpoints.huggingface import (
        from_transformers as from_transformers,
        save_huggingface as save_huggingface,
        to_transformers as to_transformers,
    )
    from keras_albert.checkpoints.keras_hub import (
        from_keras_hub as from_keras_hub,
        save_keras_hub as save_keras_hub,
        to_keras_hub as to_keras_hub,
    )
    from keras_albert.checkpoints.load import (
        load as load,
        load_pretrained as load_pretrained,
    )
    from keras_albert.checkpoints.sentence_transformers import (
        save_sentence_transformers as save_sentence_transformers,
    )
    from keras_albert.checkpoints.tf1 import load_tf1 as load_tf1
    from keras_albert.corpus.shards import ShardSet as ShardSet
    from keras_albert.data.config import TableColumns as TableColumns
    from keras_albert.errors import AlbertError as AlbertError
    from keras_albert.exports.embed import read_vectors as read_vectors
    from keras_albert.exports.run import export as export
    from keras_albert.finetuning.inspect import (
        attention_figure as attention_figure,
        layer_distances as layer_distances,
    )
    from keras_albert.finetuning.predictor import Predictor as Predictor
    from keras_albert.finetuning.push import push as push
    from keras_albert.modeling.backbone import AlbertBackbone as AlbertBackbone
    from keras_albert.modeling.classification import (
        AlbertForMultipleChoice as AlbertForMultipleChoice,
        AlbertForSequenceClassification as AlbertForSequenceClassification,
        AlbertForTokenClassification as AlbertForTokenClassification,
    )
    from keras_albert.modeling.config import (
        VARIANTS as VARIANTS,
        AlbertConfig as AlbertConfig,
    )
    from keras_albert.modeling.encoder import (
        EncoderBlock as EncoderBlock,
        SharedEncoder as SharedEncoder,
    )
    from keras_albert.modeling.ensemble import AlbertEnsemble as AlbertEnsemble
    from keras_albert.modeling.keras_file import load_model as load_model
    from keras_albert.modeling.layers import (
        FactorizedEmbedding as FactorizedEmbedding,
    )
    from keras_albert.modeling.preprocessing import Preprocessor as Preprocessor
    from keras_albert.modeling.pretraining import (
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
    from keras_albert.pretraining.config import ExampleConfig as ExampleConfig
    from keras_albert.pretraining.dataset import (
        phased_dataset as phased_dataset,
        pretraining_dataset as pretraining_dataset,
        validation_dataset as validation_dataset,
    )
    from keras_albert.python_api import (
        Evaluation as Evaluation,
        FinishedRun as FinishedRun,
        evaluate as evaluate,
        finetune as finetune,
        pretrain as pretrain,
    )
    from keras_albert.tasks.config import EarlyExit as EarlyExit
    from keras_albert.tasks.question_answering.config import (
        ReadingConfig as ReadingConfig,
    )
    from keras_albert.text.graph_tokenizer import (
        GraphTokenizer as GraphTokenizer,
    )
    from keras_albert.text.tokenizer import Tokenizer as Tokenizer
    from keras_albert.training.embedding_losses import (
        CosineLoss as CosineLoss,
        MultipleNegativesRanking as MultipleNegativesRanking,
    )
    from keras_albert.training.losses import (
        WeightedCrossEntropy as WeightedCrossEntropy,
    )
    from keras_albert.training.optimizer import Lamb as Lamb
    from keras_albert.training.schedules import (
        WarmupPolynomialDecay as WarmupPolynomialDecay,
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        close = difflib.get_close_matches(name, _HOMES, n=1)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{hint}"
        )
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    if "keras" in sys.modules:
        _register_classes()
    return getattr(home, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


# `keras.models.load_model` knows only classes whose modules are imported. These
# modules are therefore imported as soon as both Keras and this package are.
_REGISTERING = sorted(
    home
    for home in set(_HOMES.values())
    if home.startswith("modeling.")
    or home
    in (
        "training.embedding_losses",
        "training.losses",
        "training.optimizer",
        "training.schedules",
    )
)


def _register_classes() -> None:
    for home in _REGISTERING:
        importlib.import_module(f"{__name__}.{home}")


def _is_half_imported(name: str) -> bool:
    """Whether a module of this package is being imported at the moment."""
    if not name.startswith(f"{__name__}."):
        return False
    # importlib says it under no public name.
    return getattr(sys.modules[name].__spec__, "_initializing", False)


class _AfterKeras:
    """Import finder that registers our classes when Keras is imported later."""

    @classmethod
    def find_spec(
        cls, name: str, path: Any = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: types.ModuleType) -> None:
                load(module)
                if cls in sys.meta_path:
                    sys.meta_path.remove(cls)
                # If one of our modules is importing Keras, it is half imported:
                # then `__getattr__` registers the classes later.
                if not any(map(_is_half_imported, [*sys.modules])):
                    _register_classes()

            loader: Any = spec.loader
            loader.exec_module = load_and_register
        return spec


if "keras" in sys.modules:
    _register_classes()
else:
    sys.meta_path.insert(0, _AfterKeras)
