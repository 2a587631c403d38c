"""Runs a SavedModel with TensorFlow's C library alone: no `import tensorflow`.

    python tests/capi.py SAVED_MODEL SITE_PACKAGES < requests > answers

SITE_PACKAGES holds the wheels of tensorflow and tensorflow-text, of any version
and for any Python: only their shared libraries are read. Requests are pickled
arguments of `SavedModel.run`, answers the pickled arrays.

It is the same C++ code as in tensorflow_model_server, loading and session, and
compilation by XLA is disabled as it is there unless asked for.
"""

import ctypes
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

# Has libraries of its own; loaded after TensorFlow's it crashes.
import numpy.random

# In this order: the second one needs the first.
LIBRARIES = [
    f"tensorflow/libtensorflow_{name}.so.2" for name in ("framework", "cc")
]
TEXT_OPERATIONS = "tensorflow_text/python/ops/*.so"
# tensorflow::DisableXlaCompilation(), as a compiler writes it.
DISABLE_XLA = "_ZN10tensorflow21DisableXlaCompilationEv"
INITIALIZATION = "__saved_model_init_op"  # no signature for callers
STRING, STRING_BYTES = 7, 24  # TF_STRING; of a TF_TString
TYPES = {1: np.float32, 3: np.int32, 9: np.int64, 10: np.bool_, STRING: object}


class _Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t), ("free", c_void_p)]


class _Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


# What each function returns, and takes (tensorflow/c/c_api.h, tf_tensor.h).
_FUNCTIONS = {
    "TF_NewStatus": [c_void_p],
    "TF_DeleteStatus": [None, c_void_p],
    "TF_GetCode": [c_int, c_void_p],
    "TF_Message": [c_char_p, c_void_p],
    "TF_LoadLibrary": [c_void_p, c_char_p, c_void_p],
    "TF_NewGraph": [c_void_p],
    "TF_NewSessionOptions": [c_void_p],
    "TF_NewBuffer": [POINTER(_Buffer)],
    "TF_LoadSessionFromSavedModel":
        [c_void_p, c_void_p, c_void_p, c_char_p, POINTER(c_char_p), c_int]
        + [c_void_p, POINTER(_Buffer), c_void_p],
    "TF_GraphOperationByName": [c_void_p, c_void_p, c_char_p],
    "TF_SessionRun":
        [None, c_void_p, c_void_p, POINTER(_Output), POINTER(c_void_p), c_int]
        + [POINTER(_Output), POINTER(c_void_p), c_int, c_void_p, c_int]
        + [c_void_p, c_void_p],
    "TF_AllocateTensor":
        [c_void_p, c_int, POINTER(c_int64), c_int, c_size_t],
    "TF_DeleteTensor": [None, c_void_p],
    "TF_TensorData": [c_void_p, c_void_p],
    "TF_TensorType": [c_int, c_void_p],
    "TF_NumDims": [c_int, c_void_p],
    "TF_Dim": [c_int64, c_void_p, c_int],
    "TF_StringInit": [None, c_void_p],
    "TF_StringCopy": [None, c_void_p, c_char_p, c_size_t],
    "TF_StringGetDataPointer": [c_void_p, c_void_p],
    "TF_StringGetSize": [c_size_t, c_void_p],
    DISABLE_XLA: [None],
}  # fmt: skip


def _library(site_packages: Path) -> SimpleNamespace:
    """Loads the libraries; the functions' names are without "TF_"."""
    libraries = [
        ctypes.CDLL(str(site_packages / name), ctypes.RTLD_GLOBAL)
        for name in LIBRARIES
    ]
    functions = {}
    for name, (result, *arguments) in _FUNCTIONS.items():
        owner = next(each for each in libraries if hasattr(each, name))
        function = getattr(owner, name)
        function.restype, function.argtypes = result, arguments
        functions[name.removeprefix("TF_")] = function
    return SimpleNamespace(**functions)


class RequestError(ValueError):
    """What the library, or this module, says of a request."""


class Signature(NamedTuple):
    """The tensors of a signature, by the names that callers use."""

    inputs: dict[str, _Output]
    outputs: dict[str, _Output]


class SavedModel:
    """A loaded model; any number of threads may call `run` at once.

    Args:
        folder: of saved_model.pb.
        site_packages: the folder of the installed wheels.
    """

    def __init__(self, folder: str | Path, site_packages: str | Path):
        site_packages = Path(site_packages)
        self._c = _library(site_packages)
        getattr(self._c, DISABLE_XLA)()
        for path in sorted(site_packages.glob(TEXT_OPERATIONS)):
            self._checked(self._c.LoadLibrary, str(path).encode())
        self._graph, meta = self._c.NewGraph(), self._c.NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        self._session = self._checked(
            self._c.LoadSessionFromSavedModel,
            *[self._c.NewSessionOptions(), None, str(folder).encode()],
            *[tags, 1, self._graph, meta],
        )
        meta = ctypes.string_at(meta.contents.data, meta.contents.size)
        self.signatures = {
            name: Signature(*(self._tensors(content, i) for i in (1, 2)))
            for name, content in _map(meta, 5)  # MetaGraphDef.signature_def
            if name != INITIALIZATION
        }

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The outputs by name; strings are arrays of `bytes` objects.

        Raises:
            RequestError: unknown or missing names; or what TensorFlow says.
        """
        known, wanted = self._signature(signature, inputs)
        fed = [known[name] for name in inputs]
        fetched = [*wanted.values()]
        results = (c_void_p * len(fetched))()
        tensors = [self._tensor(value) for value in inputs.values()]
        try:
            self._checked(
                self._c.SessionRun,
                *[self._session, None],
                *[(_Output * len(fed))(*fed)],
                *[(c_void_p * len(fed))(*tensors), len(fed)],
                *[(_Output * len(fetched))(*fetched), results, len(fetched)],
                *[None, 0, None],
            )
            return dict(zip(wanted, map(self._array, results), strict=True))
        finally:
            for tensor in filter(None, [*tensors, *results]):
                self._c.DeleteTensor(tensor)  # with its strings

    def _signature(self, name: str, inputs: Mapping) -> Signature:
        if name not in self.signatures:
            raise RequestError(
                f"there are the signatures {[*self.signatures]}. "
                f"Received: {name!r}."
            )
        signature = self.signatures[name]
        if inputs.keys() != signature.inputs.keys():
            raise RequestError(
                f"{name} takes {[*signature.inputs]}. Received: {[*inputs]}."
            )
        return signature

    def _checked(self, function, *arguments):
        """Calls a function; raises RequestError with TensorFlow's message."""
        status = self._c.NewStatus()
        try:
            result = function(*arguments, status)
            if self._c.GetCode(status):
                message = self._c.Message(status).decode(errors="replace")
                raise RequestError(message)
            return result
        finally:
            self._c.DeleteStatus(status)

    def _tensors(self, signature: bytes, field: int) -> dict[str, _Output]:
        """SignatureDef.inputs (1) or .outputs (2): name -> TensorInfo."""
        tensors = {}
        for name, info in _map(signature, field):
            info = dict(_fields(info))
            operation, _, index = info[1].decode().partition(":")
            found = self._c.GraphOperationByName(
                self._graph, operation.encode()
            )
            tensors[name] = _Output(found, int(index))
        return tensors

    def _strings(self, tensor: int, count: int) -> range:
        """The addresses of a tensor's strings."""
        start = self._c.TensorData(tensor)
        return range(start, start + count * STRING_BYTES, STRING_BYTES)

    def _tensor(self, value: np.ndarray) -> int:
        number = next(n for n, kind in TYPES.items() if kind == value.dtype)
        size = STRING_BYTES * value.size if number == STRING else value.nbytes
        shape = (c_int64 * value.ndim)(*value.shape)
        tensor = self._c.AllocateTensor(number, shape, value.ndim, size)
        if number != STRING:
            value = np.ascontiguousarray(value)
            ctypes.memmove(self._c.TensorData(tensor), value.ctypes.data, size)
            return tensor
        places = self._strings(tensor, value.size)
        for place, text in zip(places, value.ravel(), strict=True):
            self._c.StringInit(place)
            self._c.StringCopy(place, text, len(text))
        return tensor

    def _array(self, tensor: int) -> np.ndarray:
        """Copies a tensor into an array."""
        shape = [self._c.Dim(tensor, i) for i in range(self._c.NumDims(tensor))]
        kind = np.dtype(TYPES[self._c.TensorType(tensor)])
        count = int(np.prod(shape))
        if kind.hasobject:
            values = np.empty(count, object)
            for i, place in enumerate(self._strings(tensor, count)):
                values[i] = ctypes.string_at(
                    self._c.StringGetDataPointer(place),
                    self._c.StringGetSize(place),
                )
        else:
            content = self._c.TensorData(tensor) or None  # of no values, none
            content = ctypes.string_at(content, count * kind.itemsize)
            values = np.frombuffer(content, kind)
        return values.reshape(shape)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: numbers, and strings or messages."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        field, wire = divmod(number(), 8)
        if wire == 0:
            yield field, number()
        else:
            size = {1: 8, 2: None, 5: 4}[wire] or number()
            yield field, message[at : at + size]
            at += size


def _map(message: bytes, field: int) -> Iterator[tuple[str, bytes]]:
    """The keys and messages of a map field."""
    for number, entry in _fields(message):
        if number == field:
            entry = dict(_fields(entry))
            yield entry[1].decode(), entry[2]


def main(saved_model: str, site_packages: str) -> None:
    # What a library prints goes to standard error, and not between answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    model = SavedModel(saved_model, site_packages)
    requests = pickle.load(sys.stdin.buffer)
    pickle.dump([model.run(*request) for request in requests], answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
