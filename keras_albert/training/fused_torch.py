"""AdamW's update in one pass over memory, by PyTorch's fused kernel.

As operations of Keras, the update of a variable is some 12 passes, of which
each reads and writes as much memory as the variable has. For the word
embeddings of a small model they take longer than its layers.

Import this module with the PyTorch backend only.
"""

import torch
from torch.optim.adamw import adamw

# The kernel divides the moments by 1 - beta ** step. After so many steps it
# divides by 1, as there is no correction of the bias here.
STEP = 1e9


@torch.no_grad()
def update(weights, m, v, gradient, learning_rate, **settings: float) -> bool:
    """Changes `weights` and the moments `m` and `v` in place.

    Args:
        weights, m, v, gradient: tensors of one shape and dtype.
        learning_rate: a number, or a tensor with one.
        settings: `beta1`, `beta2`, `eps` and `weight_decay`, as
            `torch.optim.AdamW` understands them.

    Returns:
        whether the update was done: the kernel needs contiguous tensors on a
        CPU or a CUDA device.
    """
    tensors = [weights, m, v]
    if weights.device.type not in ("cpu", "cuda"):
        return False
    if not all(each.is_contiguous() for each in tensors):
        return False
    step = torch.full((), STEP, device=weights.device)
    adamw(
        [weights],
        [gradient.contiguous()],
        [m],
        [v],
        max_exp_avg_sqs=[],
        state_steps=[step],
        fused=True,
        amsgrad=False,
        maximize=False,
        lr=learning_rate,
        **settings,
    )
    return True
