"""Shows the defect of oneDNN that this package avoids, without the package.

    ONEDNN_VERBOSE=2 TF_ENABLE_ONEDNN_OPTS=1 python tests/onednn_collision.py

Both products below are [32, 1] x [1, 32]. The first reads its left operand as
the transpose of a row, the second as a column. oneDNN 3.7 takes the kernel that
it compiled for the first also for the second: it prints "create:cache_hit". On
processors with AVX512 that kernel copies the transposed operand into scratch
memory, of which TensorFlow has allocated for the second product only what a
plain operand needs: the heap is corrupted, and the process is aborted sooner or
later. On processors without AVX512 oneDNN takes a kernel that needs no scratch
memory, and nothing is lost but the proof.

These are the two products of the gradient of an attention with one query, of
which one is over the keys and one over the values, where the number of tokens
equals the size of a head. Which is first is up to TensorFlow's threads.
"""

import tensorflow as tf

for batch in range(2, 200):  # each a kernel of its own
    row = tf.random.normal([batch, 4, 1, 32])
    column = tf.random.normal([batch, 4, 32, 1])
    tf.matmul(row, row, transpose_a=True)
    tf.matmul(column, row)
print("The process has survived.")
