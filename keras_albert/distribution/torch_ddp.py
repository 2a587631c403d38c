"""PyTorch: one process for each device, each with a copy of the weights.

DistributedDataParallel (DDP) averages the gradients of all processes during
the backward pass, if the forward pass went through the DDP wrapper. In Keras
3.15 `model.fit` calls the model itself and not the wrapper, so that gradients
are not averaged and the weights of the processes silently diverge. The
training step in this file calls the wrapper.
"""

import datetime
import os

import keras
import torch
from keras import tree
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from keras_albert.distribution.config import DeviceConfig, ProcessConfig
from keras_albert.distribution.devices import Devices, vary_seeds
from keras_albert.distribution.rendezvous import wait_for_processes
from keras_albert.errors import AlbertError, LostProcess, reason_of

# Environment variables that torchrun sets in its processes.
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks(Devices):
    """Data parallelism over processes with DistributedDataParallel."""

    def __init__(self, config: DeviceConfig):
        processes = launched_processes(config.processes)
        # Processes of torchrun connect to torchrun, which listens at the
        # address in the environment variables.
        init_method = "env://"
        if distributed.is_initialized():
            raise AlbertError(
                "PyTorch has a process group already. Begin in a Python "
                "process without one: torch.distributed.destroy_process_group."
            )
        if config.processes.coordinator is not None:
            init_method = f"tcp://{processes.coordinator}"
            wait_for_processes(processes)
        if torch.cuda.is_available():
            torch.cuda.set_device(_gpu_of(processes, torch.cuda.device_count()))
        try:
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                init_method=init_method,
                world_size=processes.count,
                rank=processes.index,
                timeout=datetime.timedelta(seconds=processes.wait),
            )
        except (RuntimeError, ValueError) as error:
            raise LostProcess(
                f"process {processes.index}: the {processes.count} processes "
                "could not connect to one another at "
                f"{processes.coordinator} in {processes.wait} s "
                f"({reason_of(error)}). Start all of them, each with its own "
                "--processes.index."
            ) from None
        self.index, self.count = processes.index, processes.count
        self.replicas = processes.count

    def prepare(self, model: keras.Model) -> None:
        vary_seeds(model, lambda: self.index)
        self.vary_random(0)
        device = next(model.parameters()).device
        replica = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            # DDP waits for the gradients of all parameters, but some may be
            # unused, such as a pooler that no head reads. With a static graph
            # it learns in the first step which ones these are.
            static_graph=True,
        )
        model.train_function = lambda data: _train_step(model, replica, data[0])

    def vary_random(self, step: int) -> None:
        # Keras draws the masks of Dropout layers from torch's global generator.
        # Each process but 0 gets a seed that no other has at any step.
        if self.index:
            offset = self.count * step + self.index
            torch.manual_seed(torch.initial_seed() + offset)

    def evaluate(self, model: keras.Model, batches, callbacks=()) -> dict:
        return self.logs(model, self._evaluate(model, batches, callbacks))

    def logs(self, model: keras.Model, logs: dict) -> dict:
        # The variables of a metric are sums, which are added up over the
        # processes. Then `keep_metrics` resets them, except in process 0.
        for variable in model.metrics_variables:
            distributed.all_reduce(variable.value.data)
        merged = model.get_metrics_result()
        self.keep_metrics(model)
        return {name: float(value) for name, value in merged.items()}

    def keep_metrics(self, model: keras.Model) -> None:
        if self.index:
            model.reset_metrics()

    def share(self, text: str) -> list[str]:
        texts = [""] * self.count
        distributed.all_gather_object(texts, text)
        return texts

    def lost(self, error: Exception) -> str | None:
        # Errors of gloo are plain RuntimeErrors with "gloo" in the message.
        if isinstance(error, distributed.DistError) or (
            isinstance(error, RuntimeError) and "gloo" in str(error)
        ):
            return reason_of(error)
        return None

    def close(self) -> None:
        distributed.destroy_process_group()


def launched_processes(processes: ProcessConfig) -> ProcessConfig:
    """The settings of the processes, or else those of torchrun."""
    if processes.coordinator is not None:
        return processes
    if not started_by_torchrun():
        raise AlbertError(
            "PyTorch trains on several devices with one process for each. "
            "Start them with `torchrun --nproc-per-node=N -m "
            "keras_albert.cli pretrain ...`, or give "
            "--processes.coordinator, --processes.count and "
            "--processes.index."
        )
    rank, count, host, port = (os.environ[name] for name in _TORCHRUN)
    return ProcessConfig(
        f"{host}:{port}", int(count), int(rank), processes.wait
    )


def _gpu_of(processes: ProcessConfig, gpus: int) -> int:
    """The index of the GPU, on its machine, that a process uses."""
    local = os.environ.get("LOCAL_RANK")
    if local is None:
        # Not torchrun: there is one process for each machine, or one for each
        # GPU of a single machine. The remainder is right in both cases.
        return processes.index % gpus
    if int(local) >= gpus:
        raise AlbertError(
            f"each process needs a GPU of its own. Expected at most {gpus} on "
            f"this machine, received: LOCAL_RANK={local}. Start them with "
            "--nproc-per-node=gpu."
        )
    return int(local)


def started_by_torchrun() -> bool:
    """Whether the environment variables of torchrun are set."""
    return all(name in os.environ for name in _TORCHRUN)


def processes() -> int:
    """Number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def sum_over_processes(x):
    """The sum of a tensor over all processes, without a gradient."""
    if processes() == 1:
        return x
    x = x.detach().clone()
    distributed.all_reduce(x)
    return x


class _SumWithGradient(torch.autograd.Function):
    """The sum over all processes; its gradient is summed over them, too."""

    @staticmethod
    def forward(context, x):
        return sum_over_processes(x)

    @staticmethod
    def backward(context, gradient):
        return sum_over_processes(gradient)


def rows_of_processes(x):
    """The rows of all processes, [G, ...], and the index of this one's first.

    Each process adds its rows [B, ...] to zeros: gloo gathers no gradient.
    """
    count = processes()
    if count == 1:
        return x, 0
    rank, rows = distributed.get_rank(), x.shape[0]
    before, after = rank * rows, (count - 1 - rank) * rows
    padding = [0, 0] * (x.dim() - 1) + [before, after]
    placed = torch.nn.functional.pad(x, padding)
    return _SumWithGradient.apply(placed), before


def _train_step(model: keras.Model, replica, data) -> dict:
    """Keras's `train_step`, except that the forward pass calls the wrapper."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = replica(x, training=True)  # DDP prepares to average gradients
    model.zero_grad()
    loss = model.compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
    )
    # The first metric is the mean loss, weighted by the rows of the batch.
    rows = tree.flatten(x)[0].shape[0]
    model.metrics[0].update_state(loss.detach(), sample_weight=rows)
    model.optimizer.scale_loss(loss).backward()  # averages the gradients
    variables = list(model.trainable_weights)
    with torch.no_grad():
        model.optimizer.apply([v.value.grad for v in variables], variables)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
