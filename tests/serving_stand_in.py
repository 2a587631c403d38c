"""A stand-in for tensorflow_model_server, inside the process of a test.

It is not the server, and shows of the server nothing. It lets clients,
requests in documentation, folders of versions and warm-up files be tried where
there is no server: it exchanges the server's own messages
(tensorflow-serving-api), loads each version into a session as the server does,
and decides as its documentation and source say about versions, labels, JSON and
errors.

It has no batching, regression, reloading of its configuration, status of
several versions, TLS, or metrics; it classifies over REST alone.
"""

import base64
import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, its operations
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    model_pb2,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2

Code = grpc.StatusCode
HTTP_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 412,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
}
CODES = {code.value[0]: code for code in Code}
# The field of a TensorProto for single values, as the server fills it.
FIELDS = {
    types_pb2.DT_STRING: "string_val",
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_INT32: "int_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_BOOL: "bool_val",
}


class Refused(Exception):
    """What the server answers instead of a result."""

    def __init__(self, message: str, code=Code.INVALID_ARGUMENT):
        super().__init__(message)
        self.code = code


# Versions of a model.


class Version:
    """A SavedModel in a session."""

    def __init__(self, folder: Path, warm_up: bool):
        config = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=1, intra_op_parallelism_threads=1
        )
        # It takes longer, for each signature, than all requests of a test.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        with self.session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(
                self.session, ["serve"], str(folder)
            )
        self.signatures = loaded.signature_def
        requests = folder / "assets.extra" / "tf_serving_warmup_requests"
        self.warmed_up = 0
        if warm_up and requests.is_file():
            self._replay(requests)

    def _replay(self, path: Path) -> None:
        records = tf.data.TFRecordDataset(str(path))
        for record in records.as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            kind = log.WhichOneof("log_type")
            if kind == "predict_log":
                self.predict(log.predict_log.request)
            else:
                raise Refused(f"Warm-up with a {kind}", Code.UNIMPLEMENTED)
            self.warmed_up += 1

    def signature(self, name: str):
        name = name or "serving_default"
        if name not in self.signatures:
            raise Refused(
                f'Serving signature key "{name}" not found.',
                Code.FAILED_PRECONDITION,
            )
        return self.signatures[name]

    def predict(
        self, request: predict_pb2.PredictRequest
    ) -> dict[str, np.ndarray]:
        signature = self.signature(request.model_spec.signature_name)
        sent, needed = set(request.inputs), set(signature.inputs)
        if sent != needed:
            raise Refused(
                "input size does not match signature. Sent extra: "
                f"{{{','.join(sorted(sent - needed))}}}. Missing but required: "
                f"{{{','.join(sorted(needed - sent))}}}."
            )
        arrays = {}
        for name, tensor in request.inputs.items():
            expected, found = (
                tf.as_dtype(each.dtype).name
                for each in (signature.inputs[name], tensor)
            )
            if found != expected:
                raise Refused(
                    f"Expects {name} to be {expected} but {found} is provided"
                )
            arrays[name] = tf.make_ndarray(tensor)
        return self._run(signature, arrays)

    def classify(
        self, request: classification_pb2.ClassificationRequest
    ) -> classification_pb2.ClassificationResult:
        signature = self.signature(request.model_spec.signature_name)
        if len(signature.inputs) != 1:
            raise Refused("Expected one input Tensor.")
        if not {*signature.outputs} <= {"classes", "scores"}:
            raise Refused(
                "Expected classification signature outputs to contain at least "
                'one of "classes" or "scores"',
                Code.FAILED_PRECONDITION,
            )
        examples = request.input.example_list.examples
        if not examples:
            raise Refused("Input is empty.")
        rows = np.array([e.SerializeToString() for e in examples], object)
        outputs = self._run(signature, {"inputs": rows})
        result = classification_pb2.ClassificationResult()
        columns = outputs["classes"], outputs["scores"]
        for labels, scores in zip(*columns, strict=True):
            classes = result.classifications.add().classes
            for label, score in zip(labels, scores, strict=True):
                classes.add(label=label, score=score)
        return result

    def _run(self, signature, inputs) -> dict[str, np.ndarray]:
        fetched = {name: out.name for name, out in signature.outputs.items()}
        fed = {signature.inputs[n].name: value for n, value in inputs.items()}
        try:
            return self.session.run(fetched, fed)
        except tf.errors.OpError as error:
            raise Refused(error.message, CODES[error.error_code]) from None
        except ValueError as error:  # of Python: a shape that does not fit
            raise Refused(str(error)) from None


class Model:
    """The versions of a folder that a configuration asks for."""

    def __init__(self, config: model_server_config_pb2.ModelConfig):
        self.config = config
        # Replaced and never changed: requests read it meanwhile.
        self.versions: dict[int, Version] = {}
        self.failed: dict[int, str] = {}

    def poll(self, warm_up: bool) -> None:
        """Loads new versions, then drops those that are not wanted."""
        found = {
            int(path.name): path
            for path in Path(self.config.base_path).iterdir()
            if re.fullmatch(r"[+-]?\d+", path.name, re.ASCII)
        }
        wanted = self._wanted(sorted(found))
        self.failed = {n: e for n, e in self.failed.items() if n in found}
        for number in reversed(wanted):
            if number in self.versions or number in self.failed:
                continue
            try:
                version = Version(found[number], warm_up)
            except (OSError, Refused, tf.errors.OpError) as error:
                self.failed[number] = f"{type(error).__name__}: {error}"
            else:
                self.versions = {**self.versions, number: version}
        if not wanted or {*wanted} & self.versions.keys():
            kept = {n: v for n, v in self.versions.items() if n in wanted}
            self.versions = kept

    def _wanted(self, found: list[int]) -> list[int]:
        policy = self.config.model_version_policy
        match policy.WhichOneof("policy_choice"):
            case "all":
                return found
            case "specific":
                return [n for n in found if n in policy.specific.versions]
            case _:
                return found[-max(policy.latest.num_versions, 1) :]

    def version(self, spec: model_pb2.ModelSpec) -> tuple[int, Version]:
        versions = self.versions
        match spec.WhichOneof("version_choice"):
            case "version":
                number = spec.version.value
            case "version_label":
                if spec.version_label not in self.config.version_labels:
                    raise Refused(
                        "Unrecognized servable version label: "
                        f"{spec.version_label}"
                    )
                number = self.config.version_labels[spec.version_label]
            case _:
                number = max(versions, default=None)
        if number not in versions:
            which = "Latest" if number is None else "Specific"
            asked = spec.name if number is None else f"{spec.name}, {number}"
            raise _not_found(f"{which}({asked})")
        return number, versions[number]


def _not_found(request: str) -> Refused:
    return Refused(f"Servable not found for request: {request}", Code.NOT_FOUND)


class StandIn:
    """Serves while a `with` block lasts, on free ports of this machine.

    Args:
        config: which models, as in --model_config_file.
        warm_up: whether versions are, as with --enable_model_warmup.
    """

    def __init__(
        self,
        config: model_server_config_pb2.ModelServerConfig,
        warm_up: bool = True,
    ):
        self._warm_up = warm_up
        self._stopped = threading.Event()
        self.models = {
            each.name: Model(each) for each in config.model_config_list.config
        }

    def __enter__(self) -> "StandIn":
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            _Predictions(self), self._grpc
        )
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self.grpc_address = f"127.0.0.1:{port}"
        self._grpc.start()
        handler = type("Handler", (_Rest,), {"server_of_models": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.rest_port = self._http.server_port
        self.rest_address = f"http://127.0.0.1:{self.rest_port}"
        self._threads = [
            threading.Thread(target=self._keep_polling),
            threading.Thread(target=self._http.serve_forever, args=[0.05]),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0)
        for thread in self._threads:
            thread.join()

    def _keep_polling(self) -> None:
        while not self._stopped.is_set():
            for model in self.models.values():
                model.poll(self._warm_up)
            self._stopped.wait(0.05)

    def wait_for(self, name: str, *versions: int) -> None:
        """Until exactly these versions of a model are available."""
        end, model = time.monotonic() + 60, self.models[name]
        while {*model.versions} != {*versions}:
            assert time.monotonic() < end, (model.versions, model.failed)
            time.sleep(0.01)

    # What both protocols ask for.

    def model(self, spec: model_pb2.ModelSpec) -> Model:
        if spec.name not in self.models:
            raise _not_found(f"Latest({spec.name})")
        return self.models[spec.name]

    def predict(
        self, request: predict_pb2.PredictRequest
    ) -> tuple[int, dict[str, np.ndarray]]:
        spec = request.model_spec
        number, version = self.model(spec).version(spec)
        return number, version.predict(request)


# gRPC.


@contextlib.contextmanager
def _refusals(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        context.abort(error.code, str(error))


class _Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, server: StandIn):
        self.server = server

    def Predict(self, request, context):
        with _refusals(context):
            number, outputs = self.server.predict(request)
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = number
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(_tensor_proto(value))
        return response


def _tensor_proto(value: np.ndarray) -> tensor_pb2.TensorProto:
    dtype = tf.as_dtype(value.dtype).as_datatype_enum
    proto = _empty_proto(dtype, value.shape)
    getattr(proto, FIELDS[dtype]).extend(value.reshape(-1).tolist())
    return proto


def _empty_proto(dtype: int, shape) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=dtype)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


# REST.

WHICH = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"


class _Rest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    server_of_models: StandIn

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        self._answer(f"{WHICH}:(predict|classify)", body)

    def do_GET(self) -> None:
        self._answer(f"{WHICH}()", b"{}")

    def _answer(self, pattern: str, body: bytes) -> None:
        status, server = 200, self.server_of_models
        try:
            found = re.fullmatch(pattern, self.path)
            if found is None:
                request = f"{self.command} {self.path}"
                raise Refused(f"Malformed request: {request}")
            name, version, label, what = found.groups()
            spec = model_pb2.ModelSpec(name=unquote(name))
            if version:
                spec.version.value = int(version)
            if label:
                spec.version_label = unquote(label)
            answer = {
                "predict": _rest_predict,
                "classify": _rest_classify,
                "": _rest_status,
            }[what](server, spec, _parsed(body))
        except Refused as error:
            status = HTTP_STATUS.get(error.code, 500)
            answer = {"error": str(error)}
        content = json.dumps(answer, indent=4, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _parsed(body: bytes) -> dict:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise Refused(f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise Refused("JSON Value: Is not object")
    return content


def _rest_status(server: StandIn, spec, _) -> dict:
    number, _ = server.model(spec).version(spec)
    status = {"version": str(number), "state": "AVAILABLE"}
    return {"model_version_status": [status]}


def _rest_predict(server: StandIn, spec, content: dict) -> dict:
    request = predict_pb2.PredictRequest(model_spec=spec)
    name = content.get("signature_name", "")
    request.model_spec.signature_name = name
    _, version = server.model(spec).version(spec)
    if (name or "serving_default") not in version.signatures:
        raise Refused(
            f'Serving signature name: "{name}" not found in signature def'
        )
    specs = version.signature(name).inputs
    if "instances" not in content:
        raise Refused("Missing 'instances' key")
    columns = _columns(content["instances"], specs)
    for key, column in columns.items():
        tensor = _from_json(column, specs[key].dtype, key)
        request.inputs[key].CopyFrom(tensor)
    _, outputs = server.predict(request)
    shown = {key: _to_json(value, key) for key, value in outputs.items()}
    if len({len(value) for value in shown.values()}) != 1:
        raise Refused("Outputs differ in their batch size")
    rows = [
        dict(zip(shown, row, strict=True))
        for row in zip(*shown.values(), strict=True)
    ]
    if len(shown) == 1:
        (rows,) = shown.values()
    return {"predictions": rows}


def _columns(rows, specs) -> dict[str, list]:
    if not isinstance(rows, list) or not rows:
        raise Refused("Expecting 'instances' to be a list with values")
    if all(isinstance(row, dict) and row.keys() != {"b64"} for row in rows):
        for number, row in enumerate(rows):
            if row.keys() != {*specs}:
                raise Refused(
                    f"Failed to process element: {number} of 'instances' list. "
                    f"JSON object: {row} keys must be equal to: "
                    f"{','.join(sorted(specs))}"
                )
        return {name: [row[name] for row in rows] for name in specs}
    if len(specs) > 1:
        raise Refused(
            "instances is a plain list, but expecting list of objects as "
            "multiple input tensors required as per tensorinfo_map"
        )
    return {next(iter(specs)): rows}


def _from_json(content, dtype: int, name: str) -> tensor_pb2.TensorProto:
    shape, first = [], content
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    proto = _empty_proto(dtype, shape)
    values = getattr(proto, FIELDS[dtype])

    def fill(value, level):
        if isinstance(value, list):
            if level == len(shape) or len(value) != shape[level]:
                raise Refused(
                    f"Failed to process key: {name}. Encountered list at "
                    f"unexpected size: {len(value)} at level: {level}"
                )
            for each in value:
                fill(each, level + 1)
        elif level != len(shape):
            raise Refused(f"{name}: {value} found at incorrect level")
        else:
            values.append(_scalar(value, dtype))

    fill(content, 0)
    return proto


def _scalar(value, dtype: int) -> bytes | int:
    if dtype == types_pb2.DT_STRING:
        if isinstance(value, dict) and value.keys() == {"b64"}:
            return base64.b64decode(value["b64"])
        if isinstance(value, str):
            return value.encode()
    elif type(value) is int:  # no other inputs are numbers
        return value
    raise Refused(
        f"JSON Value: {json.dumps(value)} is not of expected type: "
        f"{tf.as_dtype(dtype).name}"
    )


def _to_json(value: np.ndarray, name: str) -> list:
    def shown(each):
        if isinstance(each, list):
            return [*map(shown, each)]
        if not isinstance(each, bytes):
            return each
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(each).decode()}
        return each.decode()

    return shown(value.tolist())


def _rest_classify(server: StandIn, spec, content: dict) -> dict:
    request = classification_pb2.ClassificationRequest(model_spec=spec)
    request.model_spec.signature_name = content.get("signature_name", "")
    if not isinstance(content.get("examples"), list):
        raise Refused(
            "When method is classify, key 'examples' is expected and was not "
            "found"
        )
    for row in content["examples"]:
        example = request.input.example_list.examples.add()
        for name, value in row.items():
            texts = value if isinstance(value, list) else [value]
            feature = example.features.feature[name]
            feature.bytes_list.value.extend(
                _scalar(each, types_pb2.DT_STRING) for each in texts
            )
    _, version = server.model(spec).version(spec)
    result = version.classify(request)
    rows = [
        [[each.label, each.score] for each in row.classes]
        for row in result.classifications
    ]
    return {"results": rows}
