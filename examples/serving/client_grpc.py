"""Asks TensorFlow Serving over gRPC, with its own messages.

    pip install grpcio tensorflow
    pip install --no-deps tensorflow-serving-api
    python client_grpc.py "The fox sold two hens." "A letter from London."

Options and rows are those of client_rest.py. The messages refer to those of
TensorFlow, which must be installed but is not loaded: they start in half a
second instead of several. TensorFlow's and NumPy's helpers for tensors are not
needed either; `tensor` and `values` below do what this takes of them.
"""

import array
import importlib.util
import math
import sys
import time
import types
from collections.abc import Iterator

from rows import (
    BadRows,
    NoAnswer,
    Row,
    command_line,
    print_answers,
    rows_of,
)


def _skip_tensorflow() -> None:
    """`import tensorflow.core...` reads that file, and not all of TensorFlow.

    An empty package stands for it, in a process that has not loaded the real
    one and will not: leave this out of a program that uses TensorFlow.
    """
    if "tensorflow" in sys.modules:
        return
    found = importlib.util.find_spec("tensorflow")
    if found is not None:
        package = types.ModuleType("tensorflow")
        package.__path__ = [*found.submodule_search_locations]
        sys.modules["tensorflow"] = package


_skip_tensorflow()
try:
    import grpc
    from tensorflow.core.framework import tensor_pb2, types_pb2
    from tensorflow_serving.apis import (
        predict_pb2,
        prediction_service_pb2_grpc,
    )
except ImportError as error:
    sys.exit(
        f"error: {error}. Run: pip install grpcio tensorflow && pip install "
        "--no-deps tensorflow-serving-api"
    )

# Of each type the field that holds single values, and what `array` calls it.
NUMBERS = {
    types_pb2.DT_FLOAT: ("float_val", "f"),
    types_pb2.DT_INT32: ("int_val", "i"),
    types_pb2.DT_INT64: ("int64_val", "q"),
    types_pb2.DT_BOOL: ("bool_val", "B"),
}


def predict(
    channel: grpc.Channel,
    model: str,
    rows: list[Row],
    signature: str = "serving_default",
    *,
    version: int | None = None,
    label: str | None = None,
    batch_size: int = 32,
    timeout: float = 10.0,
    retries: int = 3,
) -> Iterator[dict]:
    """The answers to rows, in their order: of each the outputs by name.

    Args:
        channel: to the server; keep it for further requests.
        model: its name there.
        rows: inputs by name.
        signature: its name.
        version: of the model; the newest one when there is no label either.
        label: of a version.
        batch_size: rows of a request.
        timeout: seconds to wait for an answer.
        retries: how often a request is repeated while there is no server.

    Raises:
        BadRows: rows that do not make tensors together.
        NoAnswer: the server refused a request, or did not answer it.
    """
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    for first in range(0, len(rows), batch_size):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        request.model_spec.signature_name = signature
        if version is not None:
            request.model_spec.version.value = version
        if label is not None:
            request.model_spec.version_label = label
        chosen = rows[first : first + batch_size]
        for name, column in _columns(chosen).items():
            request.inputs[name].CopyFrom(tensor(name, column))
        response = _answer(stub.Predict, request, timeout, retries)
        outputs = {
            name: values(proto) for name, proto in response.outputs.items()
        }
        for row in range(len(chosen)):
            yield {name: outputs[name][row] for name in sorted(outputs)}


def _columns(rows: list[Row]) -> dict[str, list]:
    for row in rows:
        if row.keys() != rows[0].keys():
            raise BadRows(
                f"Rows must have the same inputs. Received: {sorted(rows[0])} "
                f"and {sorted(row)}."
            )
    return {name: [row[name] for row in rows] for name in rows[0]}


def tensor(name: str, column: list) -> tensor_pb2.TensorProto:
    """Texts or integers [B], or equally long lists of them [B, N].

    Raises:
        BadRows: they are of another type, or of unequal lengths.
    """
    lengths = {
        len(value) if isinstance(value, list) else None for value in column
    }
    if len(lengths) > 1:
        raise BadRows(
            f"Lists of `{name}` must be equally long within a request. "
            f"Received lengths: {', '.join(map(str, lengths))}. Give "
            "--batch-size 1."
        )
    shape = [len(column)]
    if lengths != {None}:
        shape += lengths
        column = [value for row in column for value in row]
    proto = tensor_pb2.TensorProto()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    try:
        if all(isinstance(value, str) for value in column):
            proto.dtype = types_pb2.DT_STRING
            proto.string_val.extend(value.encode() for value in column)
            return proto
        if all(type(value) is int for value in column):
            proto.dtype = types_pb2.DT_INT32
            proto.int_val.extend(column)
            return proto
    except ValueError:  # no text of Unicode, or an integer of more than 32 bits
        pass
    raise BadRows(
        f"`{name}` must be texts, or integers of 32 bits. Received: "
        f"{ascii(column)[:80]}"
    )


def values(proto: tensor_pb2.TensorProto) -> list:
    """The values of a tensor as nested lists; texts as str."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.dtype == types_pb2.DT_STRING:
        flat = [value.decode("utf-8", "replace") for value in proto.string_val]
    else:
        if proto.dtype not in NUMBERS:
            raise NoAnswer(
                f"an output of {types_pb2.DataType.Name(proto.dtype)}, which "
                "this client does not read."
            )
        field, code = NUMBERS[proto.dtype]
        flat = [*getattr(proto, field)]
        if proto.tensor_content:
            flat = array.array(code, proto.tensor_content).tolist()
        if proto.dtype == types_pb2.DT_BOOL:
            flat = [*map(bool, flat)]
    # The last value may stand for all that follow.
    flat += flat[-1:] * (math.prod(shape) - len(flat))
    return _nested(flat, shape)


def _nested(flat: list, shape: list[int]) -> list:
    if len(shape) < 2:
        return flat
    size = math.prod(shape[1:])
    return [
        _nested(flat[row * size : (row + 1) * size], shape[1:])
        for row in range(shape[0])
    ]


def _answer(call, request, timeout: float, retries: int):
    for attempt in range(retries + 1):
        try:
            return call(request, timeout=timeout)
        except grpc.RpcError as error:
            problem = f"{error.code().name}: {error.details()}"
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                break
        if attempt < retries:
            time.sleep(0.5 * 2**attempt)
    raise NoAnswer(problem)


def main(arguments: list[str] | None = None) -> int:
    """Prints a line of JSON for each row; returns the exit status."""
    parser = command_line(
        "Ask TensorFlow Serving over gRPC.", "--server", "localhost:8500"
    )
    options = parser.parse_args(arguments)
    with grpc.insecure_channel(options.server) as channel:
        return print_answers(
            options.server,
            lambda: predict(
                channel,
                options.model,
                rows_of(options),
                options.signature,
                version=options.version,
                label=options.label,
                batch_size=options.batch_size,
                timeout=options.timeout,
                retries=options.retries,
            ),
        )


if __name__ == "__main__":
    sys.exit(main())
