"""LoRA adapters in a folder that the library `peft` reads, both ways.

adapter_config.json        rank, targets and the base model
adapter_model.safetensors  the adapters, and the weights that were trained whole
keras_albert.json          what `peft` has no place for: a checksum of the
                           base's config, and the head. Older versions wrote it
                           into adapter_config.json, under `keras_albert`, of
                           which `peft` warns
task.json                  the task, if `finetune` wrote the folder
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_albert.checkpoints.huggingface import read_safetensors, safetensors
from keras_albert.checkpoints.huggingface_config import ARCHITECTURES, with_head
from keras_albert.checkpoints.names import WeightNames, name_table
from keras_albert.checkpoints.transfer import (
    encoder_with_pooler,
    listed,
    problem_of,
    variables,
    weights_of,
)
from keras_albert.distribution.backend import to_numpy
from keras_albert.errors import AlbertError, errors_about, is_number
from keras_albert.modeling.backbone import AlbertBackbone, encoder_of
from keras_albert.modeling.base import AlbertModel, own_paths
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from keras_albert.modeling.config import FOR_TRAINING, AlbertConfig
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.modeling.weight_checks import (
    check_no_lora_or_int8,
    check_plausible,
)
from keras_albert.storage import read_json, replacing, write_json
from keras_albert.training.model_folder import ModelFolder, name_labels

ADAPTER_FOLDER = "adapter"
CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
CALIBRATED = "temperature"  # of the file, beside its tensors
BASE = "base_model_name_or_path"
_PREFIX = "base_model.model."  # of all names in the file of tensors
_OWN = "keras_albert"  # what this package adds to the content
OWN_FILE = f"{_OWN}.json"
_HEADS = {
    kind.__name__: kind
    for kind in (
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertForMultipleChoice,
        AlbertForQuestionAnswering,
        AlbertForQuestionAnsweringV2,
        AlbertForTextEmbedding,
    )
}
# peft's names of tasks, and the classes of transformers that they train.
_TASK_TYPES = {
    "SEQ_CLS": "AlbertForSequenceClassification",
    "TOKEN_CLS": "AlbertForTokenClassification",
    "QUESTION_ANS": "AlbertForQuestionAnswering",
}
# The weights of pieces, of some poolings: counted in texts, and not trained.
_TOKEN_WEIGHTS = "token_weights"
# Entries of a model's config that are not arguments of its head.
_NOT_OF_HEAD = ("name", "trainable", "dtype", "quantized", "frozen", "backbone")
# Values of peft's settings with which an adapter adds just B A alpha / r.
_PLAIN = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "alpha_pattern": ({}, None),
    # Others change the weights of the base model, too.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


# Writing.


@dataclasses.dataclass(frozen=True)
class MergedModelFolder(ModelFolder):
    """The folder of a model that trains adapters, or not all of its weights.

    `save` writes a plain model: adapters are merged into their kernels, and no
    weight is frozen. The adapters also go into a folder of their own.
    """

    base: str
    """the source of the model from which the training starts, as of `load`"""
    base_config: AlbertConfig

    def save(self, folder: Path) -> None:
        """Writes each file atomically; `folder` exists."""
        plain = _merged(self.model)
        ModelFolder(plain, self.tokenizer, self.task).save(folder)
        if not _adapted(self.model):
            return
        name_labels(plain, self.task.get("labels"))
        content, own, tensors = self._adapter(plain)
        adapter = folder / ADAPTER_FOLDER
        adapter.mkdir(exist_ok=True)
        with replacing(adapter / TENSORS_FILE) as unfinished:
            safetensors().save_file(tensors, unfinished, {"format": "pt"})
        write_json(adapter / OWN_FILE, own)
        write_json(adapter / CONFIG_FILE, content)

    def _adapter(self, plain: AlbertModel) -> tuple[dict, dict, dict]:
        """The contents of the files; `plain` is the model without adapters."""
        adapted, trained = _adapted(self.model), _trained(self.model)
        known, others = _rows(plain)
        targets, whole, tensors = set(), set(), {}
        for row in known + others:
            module = row.huggingface.rpartition(".")[0]
            layer = adapted.get(row.ours.removesuffix("/kernel"))
            if layer is not None:
                targets.add(module.rpartition(".")[2])
                a, b = map(to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
                tensors[f"{module}.lora_A.weight"] = a.T
                tensors[f"{module}.lora_B.weight"] = b.T
            elif row.ours in trained:
                whole.add(module.rpartition(".")[2])
                heads = plain.config.num_attention_heads
                value = row.there(trained[row.ours], "huggingface", heads)
                tensors[row.huggingface] = value
        layer = next(iter(adapted.values()))
        head = type(plain).__name__
        is_there = not any(row.ours in trained for row in others)
        content = {
            "peft_type": "LORA",
            "r": layer.lora_rank,
            "lora_alpha": layer.lora_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "target_modules": sorted(targets),
            "modules_to_save": sorted(whole) if is_there else None,
            **(_class_entries(head) if is_there else {"task_type": None}),
            **_base_entries(self.base),
        }
        own = {
            "base_config": _checksum(self.base_config),
            "head": head,
            "arguments": {
                name: value
                for name, value in plain.get_config().items()
                if name not in _NOT_OF_HEAD
            },
        }
        tensors = {
            _PREFIX + name: np.ascontiguousarray(value, "float32")
            for name, value in tensors.items()
        }
        return content, own, tensors


def divide_classifier(adapter: Path, temperature: float) -> None:
    """Divides the weights of the classifiers in an adapter's folder, once.

    The file itself says that it was done, in case the run is killed afterwards.
    """
    path, library = adapter / TENSORS_FILE, safetensors()
    with library.safe_open(path, "numpy") as file:
        if CALIBRATED in file.metadata():
            return
    tensors = {
        name: value / np.float32(temperature) if "classifier" in name else value
        for name, value in read_safetensors(path).items()
    }
    about = {"format": "pt", CALIBRATED: str(temperature)}
    with replacing(path) as unfinished:
        library.save_file(tensors, unfinished, about)


def _adapted(model: AlbertModel) -> dict:
    """The layers with an adapter, by path."""
    return {k: v for k, v in model.leaves().items() if v.lora_enabled}


def _trained(model: AlbertModel) -> dict[str, np.ndarray]:
    """The weights that are new without being an adapter, by name.

    They are trained themselves, or were counted in the training texts.
    """
    new = {*own_paths(model, model.trainable_variables), _TOKEN_WEIGHTS}
    return {k: to_numpy(v) for k, v in variables(model).items() if k in new}


def _merged(model: AlbertModel) -> AlbertModel:
    """A float32 copy with merged adapters, in which no weight is frozen."""
    config = model.get_config()
    for part in (config, config["backbone"]["config"]):
        part.update(dtype="float32", frozen=[])
    config["backbone"]["config"]["lora"] = None
    plain = type(model).from_config(config)
    values = weights_of(model)
    for name, variable in variables(plain).items():
        variable.assign(values[name])
    return plain


def _rows(model: AlbertModel) -> tuple[list[WeightNames], list[WeightNames]]:
    """Rows of names: of the weights that transformers has, and of all others.

    In adapter files, a weight that transformers lacks has its name of this
    package, with dots in place of slashes.
    """
    names = variables(model)
    known = [
        row
        for row in name_table(model.config)
        if row.ours in names and row.huggingface
    ]
    others = names.keys() - {row.ours for row in known}
    dotted = [
        WeightNames(n, None, n.replace("/", "."), None) for n in sorted(others)
    ]
    return known, dotted


def _class_entries(head: str) -> dict:
    """The entries of adapter_config.json that tell peft the model's class."""
    for task_type, name in _TASK_TYPES.items():
        if name == head:
            return {"task_type": task_type}
    if head not in ARCHITECTURES:
        return {"task_type": None}
    library = "transformers.models.albert.modeling_albert"
    mapping = {"base_model_class": head, "parent_library": library}
    return {"task_type": None, "auto_mapping": mapping}


def _base_entries(base: str) -> dict:
    """The name of the base model; a local path becomes absolute."""
    scheme, separator, name = base.partition("://")
    if scheme == "hf":
        name, _, revision = name.partition("@")
        return {BASE: name, "revision": revision or None}
    return {BASE: base if separator else os.path.abspath(base)}


def _checksum(config: AlbertConfig) -> str:
    """SHA-256 of what the outputs depend on, where it is not the default.

    It is the same in all formats of a checkpoint: "gelu_new" is another name.
    """
    config = config.replace(hidden_act=config.activation)
    fields = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
        and field.name not in FOR_TRAINING
    }
    text = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# Reading.


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter."""
    return (folder / CONFIG_FILE).is_file()


def load_adapter(
    folder: Path, load: Callable[[str], AlbertModel], backbone: bool = False
) -> AlbertModel:
    """Loads the base model of an adapter, and merges the adapter into it.

    Args:
        folder: a folder of this package or of peft, for an ALBERT with LoRA.
        load: loads the base model from a source.
        backbone: whether to return only the encoder.

    Raises:
        AlbertError: the base model or a file is missing or damaged, or the
            adapter was trained on another base model.
    """
    path, source = folder / CONFIG_FILE, folder / TENSORS_FILE
    content = _content(path)
    with errors_about(source):
        tensors = _tensors(source)
    named = Path(_base_of(content))
    if named.exists() and named.resolve() == folder.resolve():
        raise AlbertError(
            f"{path}: `{BASE}` names this adapter itself. Edit it, so that it "
            "names the model that the training started from."
        )
    try:
        model = base = load(_base_of(content))
    except AlbertError as error:
        moved = ""
        if not Path(content[BASE]).exists():
            moved = f" If it was moved, edit `{BASE}` in this file."
        raise AlbertError(
            f"{path}: the base model {content[BASE]} cannot be loaded: "
            f"{error}{moved}"
        ) from None
    own = content.get(_OWN)
    if own and own["base_config"] != _checksum(base.config):
        raise AlbertError(
            f"{path}: the adapter was trained on a model with another config "
            f"than {content[BASE]} has. Edit `{BASE}` in this file, so that it "
            "names the model that the training started from."
        )
    with errors_about(path):
        check_no_lora_or_int8(base)
        encoder = encoder_of(base)
        if any(name.startswith("albert.pooler.") for name in tensors):
            encoder = encoder_with_pooler(encoder)  # which has a pooler
        if backbone:
            model = encoder
        else:
            model = _with_head(base, encoder, content, tensors)
    needed = variables(model).keys() - variables(encoder).keys()
    if model is base:  # the adapter need not have its head
        needed = set()
    left = _apply(model, content, tensors, source, needed)
    if backbone:
        left = [name for name in left if name.startswith("albert.")]
    if left:
        raise AlbertError(
            f"{source}: neither LoRA nor weights of the model: {listed(left)}. "
            "Merge the adapter with peft: model.merge_and_unload()."
        )
    return model


def head_of_adapter(folder: Path) -> str | None:
    """The class name of an adapter's head; None if it holds no head."""
    return _head(_content(folder / CONFIG_FILE))


def _head(content: dict) -> str | None:
    if _OWN in content:
        return content[_OWN]["head"]
    mapping = content.get("auto_mapping")
    names = mapping if isinstance(mapping, dict) else {}
    task_type = str(content.get("task_type"))
    name = _TASK_TYPES.get(task_type, names.get("base_model_class"))
    return name if name in ARCHITECTURES and name in _HEADS else None


def _content(path: Path) -> dict:
    """adapter_config.json with what this package adds, checked."""
    content = read_json(path)
    with errors_about(path):
        if not isinstance(content, dict):
            raise AlbertError(f"expected an object. Received: {content!r:.60}.")
        for name, known in _PLAIN.items():
            if content.get(name, known[0]) not in known:
                raise AlbertError(
                    f"`{name}` must be {known[0]!r} to be merged here. "
                    f"Received: {content[name]!r}. Merge the adapter with "
                    "peft: model.merge_and_unload()."
                )
        if not isinstance(content.get(BASE), str) or not content[BASE]:
            raise AlbertError(
                f"`{BASE}` must be the path or name of the base model. "
                f"Received: {content.get(BASE)!r}. Write it into this file."
            )
        alpha = content.get("lora_alpha")
        if not is_number(alpha) or alpha <= 0:
            raise AlbertError(
                f"`lora_alpha` must be a positive number. Received: {alpha!r}. "
                "Use another copy of the folder."
            )
    added = path.with_name(OWN_FILE)
    if added.is_file():
        content[_OWN], path = read_json(added), added
    with errors_about(path):
        own = content.get(_OWN)
        kinds = {"base_config": str, "head": str, "arguments": dict}
        if _OWN in content and not (
            isinstance(own, dict)
            and all(isinstance(own.get(k), v) for k, v in kinds.items())
            and own["head"] in _HEADS
        ):
            raise AlbertError(
                f"`{_OWN}` is not what `finetune` writes. Use another copy of "
                "the folder."
            )
    return content


def _tensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        remedy = "Use another copy of the folder."
        if path.with_name("adapter_model.bin").is_file():
            remedy = (
                "peft makes it of the adapter_model.bin that is there: "
                "PeftModel.from_pretrained(base, folder)."
                "save_pretrained(new_folder)."
            )
        raise AlbertError(f"no such file. {remedy}")
    tensors = read_safetensors(path)
    foreign = [name for name in tensors if not name.startswith(_PREFIX)]
    if foreign:
        raise AlbertError(
            f"expected names that begin with {_PREFIX}. Received: {foreign[0]}."
        )
    bare = {name.removeprefix(_PREFIX): v for name, v in tensors.items()}
    if any(name.startswith("albert.") for name in bare):
        return bare
    # An adapter of transformers.AlbertModel, which has no head.
    return {f"albert.{name}": value for name, value in bare.items()}


def _base_of(content: dict) -> str:
    """Where to load an adapter's base model from, as a source of `load`.

    A name that is no existing path is taken for a name on the Hugging Face Hub.
    """
    name, revision = content[BASE], content.get("revision")
    if "://" in name or Path(name).is_absolute() or Path(name).exists():
        return name
    return f"hf://{name}" + (f"@{revision}" if revision else "")


def _with_head(
    base: AlbertModel, encoder: AlbertBackbone, content: dict, tensors: dict
) -> AlbertModel:
    """A model with the encoder and with a new head of the adapter's class.

    If the adapter has no head, or the base model already has such a head, this
    is `base` itself.
    """
    head, own = _head(content), content.get(_OWN)
    if own:
        sizes = [n for n in own["arguments"].values() if type(n) is int]
        stored = sum(value.size for value in tensors.values())
        stored += encoder.count_params()
        check_plausible(encoder.config, stored, head, max(sizes, default=0))
        try:
            return _HEADS[head](encoder, **own["arguments"])
        except (TypeError, ValueError) as error:
            raise AlbertError(
                f"`{_OWN}` is not what `finetune` writes: {error}"
            ) from None
    count = len(tensors.get("classifier.bias", ()))
    is_same = type(base).__name__ == head
    labels = getattr(base, "num_labels", count)
    if head is None or (is_same and count in (0, labels)):
        return base
    return with_head(head, encoder, {"num_labels": count or 2})


def _apply(
    model: AlbertModel,
    content: dict,
    tensors: dict[str, np.ndarray],
    source: Path,
    needed: set[str],
) -> list[str]:
    """Adds the adapters to their kernels and sets the weights trained whole.

    Returns the names of the tensors that belong to no weight of the model. If a
    tensor does not fit, or a weight in `needed` has none, an AlbertError lists
    them, and the model is unchanged: values are assigned after all checks.
    """
    targets, left, problems = variables(model), dict(tensors), []
    heads = model.config.num_attention_heads
    values: dict[str, np.ndarray] = {}
    known, others = _rows(model)
    for row in known + others:
        module = row.huggingface.removesuffix(".weight")
        a = left.pop(f"{module}.lora_A.weight", None)
        b = left.pop(f"{module}.lora_B.weight", None)
        value = left.pop(row.huggingface, None)
        if a is None and b is None and value is None:
            continue
        shape = tuple(targets[row.ours].shape)
        expected = row.shape_there(shape, "huggingface", heads)
        if value is None:
            kernel = to_numpy(targets[row.ours])
            value = row.there(kernel, "huggingface", heads)
            with errors_about(source):
                value = value + _product(a, b, expected, content, module)
        problem = problem_of(value, expected)
        if problem is None:
            value = row.here(value, "huggingface", shape)
            if not np.array_equal(values.setdefault(row.ours, value), value):
                problem = "differs from another layer's, the model shares them"
        if problem:
            problems.append(f"{row.huggingface}: {problem}")
    problems += [f"{n}: missing" for n in sorted(needed - values.keys())]
    if problems:
        raise AlbertError(
            f"{source} does not fit the base model: {listed(problems, '; ')}. "
            f"Edit `{BASE}` in {CONFIG_FILE}, if it names another model."
        )
    for name, value in values.items():
        targets[name].assign(value)
    return sorted(left)


def _product(a, b, shape, content: dict, module: str) -> np.ndarray:
    """The matrix B A, scaled, that an adapter adds to a kernel [O, I]."""
    fits = a is not None and b is not None and a.ndim == b.ndim == 2
    if not fits or (*b.shape, *a.shape) != (shape[0], len(a), len(a), shape[1]):
        raise AlbertError(
            f"{module}: expected lora_A [R, {shape[1]}] and lora_B "
            f"[{shape[0]}, R] of one rank R. Received: "
            f"{getattr(a, 'shape', None)} and {getattr(b, 'shape', None)}."
        )
    rank = math.sqrt(len(a)) if content.get("use_rslora") else len(a)
    return content["lora_alpha"] / rank * b @ a
