"""Builds graphs of ONNX operations, in which each constant is stored once.

Letters: K inputs of a kernel, N its outputs, V rows of a table, E its columns.

Import this package only to export or to test: it imports onnx.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from keras_albert.errors import AlbertError

OPSET = 17  # the first with LayerNormalization; needs ONNX Runtime 1.12
IR_VERSION = 8  # the version of the file format that belongs to it
# A protobuf message must be below 2 GB, of which 2 MB are left for the nodes.
MOST_BYTES = 2**31 - 2**21
INT8_LIMIT = 127
# The sum of two products is then at most 255 * (127 + 1), which fits 16 bits.
PAIR_LIMIT = 127


class Kernel(NamedTuple):
    """The names of the constants of a kernel."""

    values: str  # float32 [K, N], or int8
    scales: str | None  # float32 [N]; None unless the values are int8


class Graph:
    """A graph, to which nodes are added in the order of their execution.

    Values are known by their names, strings that the methods take and return.
    With `int8`, kernels and tables are stored in 8 bits.
    """

    def __init__(self, int8: bool):
        self.int8 = int8
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple, onnx.TensorProto] = {}
        self._bytes, self._count = 0, 0

    def constant(self, value, dtype=None) -> str:
        """Adds an array or a number, by default as int64 or float32.

        Equal ones share a name. Raises AlbertError if they exceed a file.
        """
        value = np.array(value, dtype)
        if value.dtype == np.float64:
            value = value.astype("float32")
        digest = hashlib.sha256(value.tobytes()).digest()
        key = (value.dtype.str, value.shape, digest)
        if key not in self._constants:
            self._bytes += value.nbytes
            if self._bytes > MOST_BYTES:
                raise AlbertError(
                    f"an ONNX file holds {MOST_BYTES / 1e9:.2f} GB of weights "
                    "(protobuf's limit); this model has more. Export it with "
                    "--weights int8, or with --format saved_model."
                )
            name = f"constant_{len(self._constants)}"
            self._constants[key] = onnx.numpy_helper.from_array(value, name)
        return self._constants[key].name

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes):
        """Adds a node; returns the name of its output, or a list of names."""
        self._count += 1
        name = f"{operation}_{self._count}"
        names = [name] if outputs == 1 else [
            f"{name}_{number}" for number in range(outputs)
        ]  # fmt: skip
        self._nodes.append(
            helper.make_node(operation, inputs, names, name, **attributes)
        )
        return name if outputs == 1 else names

    def kernel(self, values: np.ndarray) -> Kernel:
        """Adds a kernel, float32 [K, N]."""
        if not self.int8:
            return Kernel(self.constant(values), None)
        quantized, scales = quantize_kernel(values)
        return Kernel(self.constant(quantized), self.constant(scales))

    def matmul(self, x: str, kernel: Kernel) -> str:
        """Multiplies x, float32 [..., K], by a kernel: [..., N].

        With an int8 kernel, x is quantized at run time, with a single scale;
        ONNX Runtime fuses these nodes into one operation.
        """
        if kernel.scales is None:
            return self.add("MatMul", x, kernel.values)
        values, scale, zero = self.add("DynamicQuantizeLinear", x, outputs=3)
        kernel_zero = self.constant(0, "int8")
        y = self.add("MatMulInteger", values, kernel.values, zero, kernel_zero)
        y = self.add("Cast", y, to=onnx.TensorProto.FLOAT)
        return self.add("Mul", y, self.add("Mul", scale, kernel.scales))

    def rows(self, table: np.ndarray, indices: str) -> str:
        """Rows of a table, float32 [V, E]; in 8 bits each has a scale."""
        if not self.int8:
            return self.add("Gather", self.constant(table), indices)
        scales = np.abs(table).max(axis=1, keepdims=True) / INT8_LIMIT
        scales = np.where(scales > 0, scales, 1)
        values = np.rint(table / scales).astype("int8")
        values, scales = (
            self.add("Gather", self.constant(each), indices)
            for each in (values, scales)
        )
        values = self.add("Cast", values, to=onnx.TensorProto.FLOAT)
        return self.add("Mul", values, scales)

    def loop(
        self,
        most: int,
        begins: str,
        state: Mapping[str, tuple[str, type, tuple]],
        step: Callable[[dict[str, str], str], tuple[dict[str, str], str]],
    ) -> dict[str, str]:
        """Repeats nodes up to `most` times; returns the last state.

        Args:
            most: the largest number of iterations.
            begins: whether there is an iteration at all, bool.
            state: by name, a value before the first iteration, its dtype and
                its shape; a size that is a name may change.
            step: adds the nodes of an iteration. It takes the state and the
                number of the iteration, int64 from 0, and returns the next
                state and whether to go on, bool.
        """
        outside, self._nodes = self._nodes, []
        self._count += 1
        prefix = f"Loop_{self._count}"
        inner = {name: f"{prefix}_{name}" for name in state}
        number, goes_on = f"{prefix}_number", f"{prefix}_goes_on"
        found, condition = step(inner, number)
        outputs = {name: self.add("Identity", found[name]) for name in state}
        condition = self.add("Identity", condition)
        specs = {name: spec for name, (_, *spec) in state.items()}
        body = helper.make_graph(
            self._nodes,
            prefix,
            [
                _info(number, "int64", ()),
                _info(goes_on, "bool", ()),
                *(_info(inner[name], *spec) for name, spec in specs.items()),
            ],
            [
                _info(condition, "bool", ()),
                *(_info(outputs[name], *spec) for name, spec in specs.items()),
            ],
        )
        self._nodes = outside
        limit = self.constant(most)
        values = [value for value, _, _ in state.values()]
        last = self.add(
            "Loop", limit, begins, *values, outputs=len(state), body=body
        )
        return dict(zip(state, last, strict=True))

    def model(
        self,
        inputs: Mapping[str, tuple[type, tuple]],
        outputs: Mapping[str, tuple[str, type, tuple]],
    ) -> onnx.ModelProto:
        """The checked model.

        `inputs` has dtype and shape by name, `outputs` value, dtype and shape.
        """
        for name, (value, _, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        model = helper.make_model(
            helper.make_graph(
                self._nodes,
                "albert",
                [_info(name, *spec) for name, spec in inputs.items()],
                [_info(name, *spec) for name, (_, *spec) in outputs.items()],
                list(self._constants.values()),
            ),
            producer_name="keras-albert",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        onnx.checker.check_model(model)
        return model


def _info(name: str, dtype, shape: tuple) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def quantize_kernel(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [K, N] -> int8 [K, N] and the scales of its columns, float32 [N].

    x86 processors without VNNI add the products of two neighbours in K in 16
    bits, and saturate silently. Each column is therefore scaled so that two
    neighbours of equal sign have a sum of at most PAIR_LIMIT before they are
    rounded. (`reduce_range` of ONNX Runtime always halves the whole column.)

    >>> quantize_kernel(np.array([[1.0], [1.0], [0.0], [-2.0]]))[0].T
    array([[  64,   64,    0, -127]], dtype=int8)
    """
    padded = np.pad(kernel, [(0, len(kernel) % 2), (0, 0)])
    pairs = padded.reshape(-1, 2, kernel.shape[1])
    largest = np.abs(kernel).max(axis=0)
    for sign in (1, -1):
        sums = np.maximum(sign * pairs, 0).sum(axis=1)  # [K / 2, N]
        largest = np.maximum(largest, sums.max(axis=0))
    scales = (largest / PAIR_LIMIT).astype("float32")
    # A column of zeros has no scale, and one of subnormal numbers none that
    # float32 could hold exactly enough: it becomes zeros.
    is_normal = scales >= np.finfo("float32").tiny
    scales = np.where(is_normal, scales, np.float32(1))
    return np.rint(kernel / scales).astype("int8"), scales
