"""`.keras` files: read, and computed in another precision or form."""

import os
import tempfile
import zipfile
from pathlib import Path

import keras
from keras import ops

from keras_albert.errors import AlbertError, check_choice, check_flag
from keras_albert.modeling.backbone import AlbertBackbone, encoder_of
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import LOOPS, PRECISIONS
from keras_albert.modeling.configured import quantized_paths
from keras_albert.modeling.weight_checks import (
    check_finite,
    check_keras_archive,
)
from keras_albert.storage import DiskFull, room_at


def load_model(
    path: str | Path,
    *,
    dtype: str | keras.DTypePolicy | None = None,
    loop: str | None = None,
    remat: bool | None = None,
) -> keras.Model:
    """A model from its `.keras` file, without its optimizer.

    Args:
        path: of the file. It may hold any Keras model, for instance a
            functional one around an `AlbertBackbone`.
        dtype: as for `ka.load`; only for models of this package, as are
            `loop` and `remat`.
        loop: as for `ka.load`.
        remat: as for `ka.load`.

    Raises:
        AlbertError: the file is missing or damaged, needs a class that is not
            registered with Keras, has sizes that are not those of its
            weights, or a weight is not finite.
    """
    form = checked_form(dtype, loop, remat)
    model = _read(path)
    if isinstance(model, AlbertModel):
        return in_form(model, form)
    if form:
        raise AlbertError(
            f"{path}: `{next(iter(form))}` is for models of this package. "
            f"Received: a file of {type(model).__name__}. Leave it out."
        )
    return model


def read_own(path: Path) -> AlbertModel:
    """The model of a `.keras` file, which must be of this package."""
    model = _read(path)
    if not isinstance(model, AlbertModel):
        raise AlbertError(
            f"{path}: expected a model of this package, such as "
            "AlbertForSequenceClassification. Received: "
            f"{type(model).__name__}. ka.load_model reads any Keras model."
        )
    return model


def _read(path: str | Path) -> keras.Model:
    """Any Keras model from its `.keras` file, as it was saved."""
    if not isinstance(path, str | os.PathLike):
        raise AlbertError(
            f"expected the path of a .keras file. Received: {path!r:.60}."
        )
    path = Path(path)
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
        with room_at(tempfile.gettempdir()):  # where Keras unpacks it
            model = keras.saving.load_model(path, compile=False)
    except DiskFull:
        raise
    except Exception as error:  # Keras, its backends and h5py: more still
        raise _damaged(path, error) from None
    try:
        check_finite(model)
    except AlbertError as error:
        raise AlbertError(f"{path}: {error}") from None
    return model


def _damaged(path: Path, error: Exception) -> AlbertError:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return AlbertError(
        f"{path}: damaged, or not a model that Keras can read here "
        f"({reason:.200}). Use another copy of the model, and import the "
        "modules of its own classes first."
    )


def checked_form(dtype, loop: str | None, remat: bool | None) -> dict:
    """The arguments of AlbertBackbone that were given, checked."""
    if loop is not None:
        check_choice("loop", loop, LOOPS)
    if remat is not None:
        check_flag("remat", remat)
    if dtype is not None:
        dtype = _policy_name(dtype)
    form = {"dtype": dtype, "loop": loop, "remat": remat}
    return {name: value for name, value in form.items() if value is not None}


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


def in_form(model: AlbertModel, form: dict) -> AlbertModel:
    """The model itself, or a copy that computes as asked.

    Where no dtype was asked for, the global policy counts if it is another
    than Keras's default, float32. Otherwise, and for a quantized model, the
    policy stays as the file has it.

    Args:
        model: as it was read.
        form: of `checked_form`.
    """
    encoder = encoder_of(model).encoder
    now = {
        "dtype": model.dtype_policy.name,
        "loop": encoder.loop,
        "remat": encoder.remat,
    }
    policy = keras.config.dtype_policy().name
    if policy != "float32" and not quantized_paths(model):
        form = {"dtype": policy, **form}
    changed = {name: form[name] for name in form if form[name] != now[name]}
    if not changed:
        return model
    copy = rebuilt(model, **changed)
    copy.tokenizer = model.tokenizer
    return copy


def rebuilt(
    model: AlbertModel, read=ops.convert_to_numpy, **form
) -> AlbertModel:
    """A copy without vocabulary that computes in another way.

    Args:
        model: may be quantized or have adapters; the copy is and has, too.
        read: variable -> its NumPy value.
        form: other values of AlbertBackbone's arguments `dtype` (which counts
            for the head as well), `loop` and `remat`.
    """
    config = model.get_config()
    backbone = config
    if not isinstance(model, AlbertBackbone):
        backbone = config["backbone"]["config"]
        if "dtype" in form:
            config["dtype"] = form["dtype"]
    backbone.update(form)
    copy = type(model).from_config(config)
    copy.set_weights([read(weight) for weight in model.weights])
    return copy
