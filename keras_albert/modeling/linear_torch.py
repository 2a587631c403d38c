"""x W + b, with the activation that follows it, for the PyTorch backend.

On x86 processors PyTorch computes products of float32 with MKL, which is slow
on processors of AMD and with few rows, and applies a GELU in another pass over
memory. oneDNN, which is a part of PyTorch, does both at once.

Import this module with the PyTorch backend only.
"""

import platform

import torch

from keras_albert.private_apis import onednn_linear

X86 = ("x86_64", "AMD64")  # as Linux and Windows name it
# A call of oneDNN takes some 10 microseconds more than one of MKL, which
# smaller products do not win back.
LEAST_ROWS = 4
LEAST_KERNEL = 2**17  # numbers
# For each activation of AlbertConfig: its name in oneDNN's operation, and the
# form of a GELU.
ACTIVATIONS = {
    None: ("none", ""),
    "gelu": ("gelu", "tanh"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_erf": ("gelu", "none"),
    "relu": ("relu", ""),
}


def linear(x, kernel, bias) -> torch.Tensor:
    """x W + b: [N, O] of x [N, I], W [I, O] and b [O]."""
    if is_for_onednn(x, kernel):
        return linear_by_onednn(x, kernel, bias)
    return torch.addmm(bias, x, kernel)


def linear_by_onednn(x, kernel, bias, activation=None) -> torch.Tensor:
    """activation(x W + b), without gradients: [N, O]."""
    name, form = ACTIVATIONS[activation]
    # oneDNN takes a kernel as torch.nn.Linear has it, [O, I].
    return onednn_linear()(x, kernel.t(), bias, name, [], form)


def is_for_onednn(x: torch.Tensor, kernel: torch.Tensor) -> bool:
    """Whether oneDNN can compute x W, [N, I] times [I, O], and is faster.

    Its operation has no gradients. A model that is traced or compiled keeps the
    operations that other programs know, and under autocast the dtype is
    another one.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_grad_enabled()
        and x.dtype == kernel.dtype == torch.float32
        and x.device.type == kernel.device.type == "cpu"
        and x.shape[0] >= LEAST_ROWS
        and kernel.numel() >= LEAST_KERNEL
        and onednn_linear() is not None
        and platform.machine() in X86
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )
