"""The cross-entropy over a vocabulary beside TensorFlow's own operation.

    python tests/benchmarks/bench_cross_entropy.py --threads 1

Both compute the losses of random logits and their gradient, in turn in one
process, for as many predictions as a batch of the recipe `small` has, 51 in
each of 32 rows, and for its 8,000 pieces. A ratio below 1 means that the
package's function, which XLA compiles, is faster. Run it on a machine that does
nothing else.
"""

import os

from pairing import (
    at_least,
    benchmark_parser,
    paired_times,
    print_table,
    quartiles,
    write_report,
)

PREDICTIONS, PIECES = 32 * 51, 8_000


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints medians and quartiles."""
    parser = benchmark_parser(__doc__, pairs=25)
    parser.add_argument("--threads", type=at_least(1), default=1)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow as tf

    from keras_albert.allocator import keep_freed_memory
    from keras_albert.modeling.fused_tf import cross_entropy

    keep_freed_memory()  # as the commands do
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    logits = 2 * tf.random.stateless_normal([PREDICTIONS, PIECES], [0, 0])
    labels = tf.random.stateless_uniform(
        [PREDICTIONS], [0, 1], 0, PIECES, dtype=tf.int32
    )

    def side(function):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                tape.watch(logits)
                loss = tf.reduce_mean(function(labels, logits))
            return loss, tape.gradient(loss, logits)

        return step

    ours = side(cross_entropy)
    peer = side(tf.nn.sparse_softmax_cross_entropy_with_logits)
    for one, other in zip(ours(), peer(), strict=True):  # also compiles both
        tf.debugging.assert_near(one, other, 1e-5, 1e-6)
    found = paired_times(ours, peer, options.pairs).summary()
    titles = ("threads", "ours, ms", "TensorFlow, ms", "ratio", "quartiles")
    numbers = (f"{found[name]:.1f}" for name in ("ours_ms", "peer_ms"))
    ratio = f"{found['ratio']:.3f}"
    print_table(titles, [[options.threads, *numbers, ratio, quartiles(found)]])
    write_report(options, found)


if __name__ == "__main__":
    main()
