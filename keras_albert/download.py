"""Locates checkpoints: local paths, and downloads from hubs."""

from pathlib import Path

from keras_albert.errors import AlbertError, reason_of
from keras_albert.storage import local_path

# Patterns of the files that a model needs. Files of the second choice, such as
# pickled weights, are only fetched if a repository has no other weights.
_WANTED = [
    "*.json",
    "*.keras",
    "*.model",
    "*.safetensors",
    "*.weights.h5",
    "assets/*",
    "vocab*.txt",
]
_SECOND_CHOICE = ["*.bin", "*.index", "*.data-*"]
_WEIGHTS = (".keras", ".safetensors", ".weights.h5")
# Exports of the same weights for other runtimes, which are not fetched.
_UNWANTED = ["onnx/*", "openvino/*", "coreml/*"]


def locate(source: str | Path) -> Path:
    """Returns the local path of a source, and downloads it if it is remote.

    A source is a path; `hf://organization/name[@revision]` for the Hugging Face
    Hub; or `kaggle://organization/model/framework/variation[/version]`.
    """
    scheme, separator, name = str(source).partition("://")
    if not separator:
        return local_path(source)
    if scheme not in _SCHEMES:
        raise AlbertError(
            f"{source}: expected a path, hf://organization/name or "
            f"kaggle://organization/model/framework/variation. Received the "
            f"scheme {scheme!r}."
        )
    try:
        return _SCHEMES[scheme](name)
    except ImportError as error:
        extra = {"hf": "huggingface", "kaggle": "kaggle"}[scheme]
        raise AlbertError(
            f"{source}: {error}. A download needs: "
            f"pip install 'keras-albert[{extra}]'; a folder that you "
            "downloaded yourself does not."
        ) from None
    except Exception as error:  # errors of the network or of the service
        raise AlbertError(
            f"{source}: cannot be downloaded ({reason_of(error)}). Check the "
            "name and the connection, or give a folder."
        ) from error


def hub_name(target: str) -> str:
    """`organization/name` of `hf://organization/name`, a place to write to."""
    scheme, _, name = target.partition("://")
    parts = name.split("/")
    if scheme != "hf" or len(parts) != 2 or not all(parts) or "@" in name:
        raise AlbertError(
            "expected hf://organization/name, without a revision. Received: "
            f"{target!r}."
        )
    return name


def _from_hugging_face(name: str) -> Path:
    import huggingface_hub

    name, _, revision = name.partition("@")

    def fetch(patterns: list[str]) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=patterns,
                ignore_patterns=_UNWANTED,
            )
        )

    folder = fetch(_WANTED)
    if not _has_weights(folder):
        return fetch(_WANTED + _SECOND_CHOICE)
    # Layers of sentence-transformers, which may be pickled beside a model that
    # is not.
    pickled = [
        f"{path.name}/*.bin"
        for path in folder.glob("*_Dense")
        if not _has_weights(path)
    ]
    return fetch(_WANTED + pickled) if pickled else folder


def _has_weights(folder: Path) -> bool:
    return any(path.name.endswith(_WEIGHTS) for path in folder.iterdir())


def _from_kaggle(name: str) -> Path:
    import kagglehub

    return Path(kagglehub.model_download(name))


_SCHEMES = {"hf": _from_hugging_face, "kaggle": _from_kaggle}
