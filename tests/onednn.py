"""What oneDNN, TensorFlow's library for x86 processors, was asked to compute.

TensorFlow switches oneDNN on by itself where the processor has AVX512-VNNI,
AVX512-BF16 or AMX. FORCED switches it on everywhere, and has it print a line
for each kernel that runs.
"""

import re

X86 = ("x86_64", "AMD64")  # the processors that TensorFlow has it for
FORCED = {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_VERBOSE": "profile_exec"}
# "...,exec,cpu,matmul,<layouts and attributes>,16x4x8x3:16x4x3x5,<time>"
_PRODUCT = re.compile(r",exec,cpu,matmul,.*,([x\d]+):([x\d]+),[^,]*$")


def products(printed: str) -> set[tuple[int, int, int]]:
    """The (M, K, N) of all batched products [M, K] x [K, N] that ran."""
    found = set()
    for line in printed.splitlines():
        if match := _PRODUCT.search(line):
            left, right = ([*map(int, x.split("x"))] for x in match.groups())
            assert left[-1] == right[-2], line
            found.add((left[-2], left[-1], right[-1]))
    return found


def dangerous(printed: str) -> set[tuple[int, int, int]]:
    """The products whose layout oneDNN cannot tell from its transpose.

    oneDNN keeps compiled kernels in a cache. Its key leaves out the strides of
    dimensions of 1, but the choice between the kernels for a plain and for a
    transposed operand reads them: of the left operand where K = 1 (oneDNN 3.7,
    in TensorFlow 2.20 and 2.21), of the right one where K = 1 or N = 1 (later
    ones, before 3.11.3). So a product can run the kernel of another one, which
    may write beyond the scratch memory that TensorFlow allocated.
    """
    return {(m, k, n) for m, k, n in products(printed) if 1 in (k, n)}
