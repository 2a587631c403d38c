"""Where the time of a SavedModel goes: milliseconds by kind of operation.

    python tests/benchmarks/profile_saved_model.py FOLDER/1 --batch 8

It calls the signature `token_ids` with rows without padding, and prints the
median time of a request, and for each kind of operation its time and its
number in a request. Operations run beside each other, so their sum may be more
than the time of the request. `TF_ENABLE_ONEDNN_OPTS` chooses TensorFlow's
kernels: with 1 those of oneDNN, with 0 those of Eigen.
"""

import argparse
import collections
import os
import statistics
import time

import numpy as np

from keras_albert.text.special_tokens import CLS_ID, SEP_ID

REQUESTS, TRACED = 15, 5
SHOWN = 12  # kinds of operations
PIECE = 7  # the id of every token between [CLS] and [SEP]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a version of a SavedModel")
    parser.add_argument("--batch", type=int, default=1, help="rows")
    parser.add_argument("--length", type=int, default=32, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  its operations

    v1 = tf.compat.v1
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    with v1.Session(graph=tf.Graph()) as session:
        loaded = v1.saved_model.loader.load(session, ["serve"], options.folder)
        signature = loaded.signature_def["token_ids"]
        ids = np.full((options.batch, options.length), PIECE, "int32")
        ids[:, 0], ids[:, -1] = CLS_ID, SEP_ID
        feed = {signature.inputs["token_ids"].name: ids}
        outputs = [each.name for each in signature.outputs.values()]

        def request(**trace):
            start = time.perf_counter()
            session.run(outputs, feed, **trace)
            return 1e3 * (time.perf_counter() - start)

        times = [request() for _ in range(REQUESTS)]
        print(f"{statistics.median(times):9.2f} ms a request")
        milliseconds, counts = collections.Counter(), collections.Counter()
        for _ in range(TRACED):
            trace = v1.RunMetadata()
            request(
                options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE),
                run_metadata=trace,
            )
            for kind, micros in operations_of(trace):
                milliseconds[kind] += micros / 1e3 / TRACED
                counts[kind] += 1 / TRACED
    for kind, found in milliseconds.most_common(SHOWN):
        print(f"{found:9.2f} ms {counts[kind]:6.0f} {kind}")


def operations_of(trace):
    """The kind of each operation that ran, and its microseconds."""
    for device in trace.step_stats.dev_stats:
        for node in device.node_stats:
            # "name = Kind(inputs)"
            _, equals, call = node.timeline_label.partition(" = ")
            kind = call.partition("(")[0] if equals else node.node_name
            yield kind, node.op_end_rel_micros - node.op_start_rel_micros


if __name__ == "__main__":
    main()
