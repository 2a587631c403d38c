"""Loads `.keras` files, on request with another dtype, loop or remat."""

import os
import tempfile
import zipfile
from pathlib import Path

import keras
from keras import ops

from keras_albert.errors import (
    AlbertError,
    check_choice,
    check_flag,
    errors_about,
    reason_of,
)
from keras_albert.modeling.backbone import encoder_of
from keras_albert.modeling.base import AlbertModel, quantized_paths
from keras_albert.modeling.config import LOOPS, PRECISIONS
from keras_albert.modeling.weight_checks import (
    check_finite,
    check_keras_archive,
)
from keras_albert.storage import DiskFull, local_path, raises_disk_full


def load_model(
    path: str | Path,
    *,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> keras.Model:
    """Loads a model from its `.keras` file, without its optimizer.

    Args:
        path: the path of the file. It may hold any Keras model, for instance
            a functional model that contains an `AlbertBackbone`.
        dtype, loop, remat: see `keras_albert.load`; for models of this package
            only.

    Raises:
        AlbertError: the file is missing or damaged, needs a class that is not
            registered with Keras, has a config whose sizes do not match its
            weights, or has a weight that is not finite.
    """
    build_options = checked_build_options(dtype, loop, remat)
    model = _read(path)
    if isinstance(model, AlbertModel):
        return with_build_options(model, build_options)
    if build_options:
        raise AlbertError(
            f"{path}: `{next(iter(build_options))}` is for models of this "
            f"package. Received: a file of {type(model).__name__}. Leave "
            "it out."
        )
    return model


def read_own(path: Path) -> AlbertModel:
    """Loads a `.keras` file; raises AlbertError if it is another model."""
    model = _read(path)
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            f"{path}: expected a model of this package, such as "
            "AlbertForSequenceClassification. Received: "
            f"{type(model).__name__}. keras_albert.load_model reads any Keras "
            "model."
        )
    return model


def _read(path: str | Path) -> keras.Model:
    """Loads any Keras model from its `.keras` file, as it was saved."""
    if not isinstance(path, str | os.PathLike):
        raise AlbertError(
            f"expected the path of a .keras file. Received: {path!r:.60}."
        )
    path = local_path(path)
    if not path.is_file():
        raise AlbertError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(f"bad checksum of {damaged}")
            check_keras_archive(path, archive)
    except AlbertError:
        raise
    except Exception as error:  # zipfile and zlib raise many kinds
        raise _damaged(path, error) from None
    try:
        with raises_disk_full(tempfile.gettempdir()):  # where Keras unpacks it
            model = keras.saving.load_model(path, compile=False)
    except DiskFull:
        raise
    except Exception as error:  # so do Keras, its backends and h5py
        raise _damaged(path, error) from None
    with errors_about(path):
        check_finite(model)
    return model


def _damaged(path: Path, error: Exception) -> AlbertError:
    return AlbertError(
        f"{path}: damaged, or not a model that Keras can read here "
        f"({reason_of(error):.200}). Use another copy of the model, and import "
        "the modules of its own classes first."
    )


def checked_build_options(dtype, loop: str | None, remat: bool | None) -> dict:
    """Checks the arguments, and returns those that are not None by name."""
    if loop is not None:
        check_choice("loop", loop, LOOPS)
    if remat is not None:
        check_flag("remat", remat)
    if dtype is not None:
        dtype = _policy_name(dtype)
    given = {"dtype": dtype, "loop": loop, "remat": remat}
    return {name: value for name, value in given.items() if value is not None}


def _policy_name(dtype) -> str:
    try:
        policy = keras.dtype_policies.get(dtype)
        known = keras.backend.is_float_dtype(policy.compute_dtype)
        known = known and policy.quantization_mode is None
    except (TypeError, ValueError):
        known = False
    if not known:
        raise AlbertError(
            "`dtype` must be a Keras policy of floating point, as "
            f"{', '.join(map(repr, PRECISIONS))}. Received: dtype={dtype!r}."
        )
    return policy.name


def with_build_options(model: AlbertModel, build_options: dict) -> AlbertModel:
    """The model, or a copy of it with another dtype, loop or remat.

    `build_options` is the result of `checked_build_options`. If it has no
    dtype, the model gets the global policy of Keras, unless that is the default
    (float32) or the model is quantized: then it keeps the policy in its file.
    """
    backbones = [
        encoder_of(each) for each in getattr(model, "members", [model])
    ]
    now = {
        "dtype": {each.dtype_policy.name for each in backbones},
        "loop": {each.encoder.loop for each in backbones},
        "remat": {each.encoder.remat for each in backbones},
    }
    policy = keras.config.dtype_policy().name
    if policy != "float32" and not quantized_paths(model):
        build_options = {"dtype": policy, **build_options}
    changed = {
        name: build_options[name]
        for name in build_options
        if {build_options[name]} != now[name]
    }
    if not changed:
        return model
    copy = rebuilt(model, **changed)
    copy.tokenizer = model.tokenizer
    return copy


def rebuilt(
    model: AlbertModel, read=ops.convert_to_numpy, **build_options
) -> AlbertModel:
    """A copy with another dtype, loop or remat, and without vocabulary.

    The copy of a quantized model is quantized, and that of a model with LoRA
    adapters has them. `read` is a function from a variable to its value as a
    NumPy array.
    """
    config = model.get_config()
    members = [member["config"] for member in config.get("members", ())]
    for each in members or [config]:
        _set_build_options(each, build_options)
    copy = type(model).from_config(config)
    copy.set_weights([read(weight) for weight in model.weights])
    return copy


def _set_build_options(config: dict, build_options: dict) -> None:
    """Changes the config of a backbone, or of a model with a backbone."""
    if "backbone" in config:
        if "dtype" in build_options:
            config["dtype"] = build_options["dtype"]
        config = config["backbone"]["config"]
    config.update(build_options)
