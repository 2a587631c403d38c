"""A stand-in for tensorflow_model_server, inside the process of a test.

It is not the server, and shows of the server nothing. It lets clients,
requests in documentation, folders of versions and warm-up files be tried where
there is no server: it exchanges the server's own messages
(tensorflow-serving-api), loads each version into a session as the server does,
and decides as its documentation and source say about versions, labels, JSON and
errors.

It has no batching, regression, reloading of its configuration, status of
several versions, TLS, or metrics; it classifies over REST alone, and of JSON
reads rows of named strings and integers, as clients send them.
"""

import json
import re
import threading
import time
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
            if kind != "predict_log":
                raise Refused(f"Warm-up with a {kind}", Code.UNIMPLEMENTED)
            self.predict(log.predict_log.request)
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

    def classify(self, name: str, examples: list[tf.train.Example]) -> list:
        """[label, score] pairs of each example."""
        signature = self.signature(name)
        if len(signature.inputs) != 1:
            raise Refused("Expected one input Tensor.")
        if not {*signature.outputs} <= {"classes", "scores"}:
            raise Refused(
                "Expected classification signature outputs to contain at least "
                'one of "classes" or "scores"',
                Code.FAILED_PRECONDITION,
            )
        rows = np.array([e.SerializeToString() for e in examples], object)
        outputs = self._run(signature, {"inputs": rows})
        columns = outputs["classes"], outputs["scores"].tolist()
        return [
            [[label.decode(), score] for label, score in zip(*row, strict=True)]
            for row in zip(*columns, strict=True)
        ]

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
        if policy.HasField("specific"):
            return [n for n in found if n in policy.specific.versions]
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

    def version(self, spec: model_pb2.ModelSpec) -> tuple[int, Version]:
        """What both protocols ask for: its number, and itself."""
        if spec.name not in self.models:
            raise _not_found(f"Latest({spec.name})")
        return self.models[spec.name].version(spec)


# gRPC.


class _Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, server: StandIn):
        self.server = server

    def Predict(self, request, context):
        try:
            number, version = self.server.version(request.model_spec)
            outputs = version.predict(request)
        except Refused as error:
            context.abort(error.code, str(error))
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = number
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(_tensor_proto(value))
        return response


def _tensor_proto(value: np.ndarray) -> tensor_pb2.TensorProto:
    dtype = tf.as_dtype(value.dtype).as_datatype_enum
    proto = tensor_pb2.TensorProto(dtype=dtype)
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    getattr(proto, FIELDS[dtype]).extend(value.reshape(-1).tolist())
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
        status = 200
        name, version, label, what = re.fullmatch(pattern, self.path).groups()
        spec = model_pb2.ModelSpec(name=unquote(name))
        if version:
            spec.version.value = int(version)
        if label:
            spec.version_label = unquote(label)
        try:
            number, found = self.server_of_models.version(spec)
            if what:
                answer = ANSWERS[what](found, json.loads(body))
            else:
                state = {"version": str(number), "state": "AVAILABLE"}
                answer = {"model_version_status": [state]}
        except Refused as error:
            status = HTTP_STATUS.get(error.code, 500)
            answer = {"error": str(error)}
        content = json.dumps(answer, indent=4, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _rest_predict(version: Version, content: dict) -> dict:
    request = predict_pb2.PredictRequest()
    name = request.model_spec.signature_name = content.get("signature_name", "")
    if (name or "serving_default") not in version.signatures:
        raise Refused(
            f'Serving signature name: "{name}" not found in signature def'
        )
    specs, rows = version.signature(name).inputs, content["instances"]
    for number, row in enumerate(rows):
        if row.keys() != {*specs}:
            raise Refused(
                f"Failed to process element: {number} of 'instances' list. "
                f"JSON object: {row} keys must be equal to: "
                f"{','.join(sorted(specs))}"
            )
    for key in specs:
        tensor = _from_json([row[key] for row in rows], specs[key].dtype, key)
        request.inputs[key].CopyFrom(tensor)
    shown = {k: _to_json(v) for k, v in version.predict(request).items()}
    if len(shown) == 1:
        (rows,) = shown.values()
    else:
        columns = zip(*shown.values(), strict=True)
        rows = [dict(zip(shown, row, strict=True)) for row in columns]
    return {"predictions": rows}


def _from_json(content, dtype: int, name: str) -> tensor_pb2.TensorProto:
    array = np.array(content, object)
    expected = str if dtype == types_pb2.DT_STRING else int
    for value in array.flat:
        if type(value) is not expected:  # a list where lengths differ
            raise Refused(
                f"Failed to process key: {name}. JSON Value: "
                f"{json.dumps(value)} is not of expected type: "
                f"{tf.as_dtype(dtype).name}"
            )
    if expected is str:
        array = np.vectorize(str.encode, otypes=[object])(array)
    return _tensor_proto(array.astype(tf.as_dtype(dtype).as_numpy_dtype))


def _to_json(value: np.ndarray) -> list:
    if value.dtype == object:
        value = np.vectorize(bytes.decode, otypes=[object])(value)
    return value.tolist()


def _rest_classify(version: Version, content: dict) -> dict:
    examples = []
    for row in content["examples"]:
        examples.append(tf.train.Example())
        for name, value in row.items():
            texts = value if isinstance(value, list) else [value]
            feature = examples[-1].features.feature[name]
            feature.bytes_list.value.extend(map(str.encode, texts))
    name = content.get("signature_name", "")
    return {"results": version.classify(name, examples)}


ANSWERS = {"predict": _rest_predict, "classify": _rest_classify}
