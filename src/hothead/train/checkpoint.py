"""State of a training run on disk.

Written under a temporary name and renamed: a run that is killed at any moment goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hothead.errors import CheckpointError, OutputError

FORMAT = "hothead-train-1"


@dataclass
class Progress:
    """Where a run stands. epoch and batch_index say which batch comes next; elapsed_s counts training only, over all sittings."""

    num_steps: int = 0
    epoch: int = 0
    batch_index: int = 0
    elapsed_s: float = 0.0
    num_tokens: int = 0
    evaluations: list[dict[str, object]] = field(default_factory=list)

    def count_step(self, num_tokens: int, step_s: float, is_end_of_epoch: bool) -> None:
        """One optimiser step more; evaluations and saving count as no time of training."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.elapsed_s += step_s
        self.epoch, self.batch_index = (self.epoch + 1, 0) if is_end_of_epoch else (self.epoch, self.batch_index + 1)


def save(path: Path, network: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, run_key: str) -> None:
    """run_key: hash of everything that must not change when the run goes on."""
    tensors = {}
    for name, parameter in network.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = value.detach().reshape(-1) if value.dim() == 0 else value.detach()
    write_safetensors(path, tensors, {"format": FORMAT, "run_key": run_key, "progress": json.dumps(asdict(progress))})


def load(path: Path, network: torch.nn.Module, optimizer: torch.optim.Optimizer, run_key: str) -> Progress:
    """Put the state back. Raises CheckpointError for a damaged file or one of another run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"Checkpoint '{path}' cannot be read: {error}.", advice="Remove it to start over.") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"'{path}' is no training checkpoint of this version.", advice="Remove it to start over.")
    if metadata.get("run_key") != run_key:
        raise CheckpointError(
            f"Checkpoint '{path}' belongs to a run with other data, token map, or options.",
            advice="Start with the same ones, or give another --output.",
        )
    for name, parameter in network.named_parameters():
        with torch.no_grad():
            parameter.copy_(tensors[f"weight.{name}"])
        state = {}
        for key in ("step", "exp_avg", "exp_avg_sq"):
            value = tensors.get(f"optimizer.{key}.{name}")
            if value is not None:
                state[key] = value.reshape(()) if key == "step" else value
        if state:
            optimizer.state[parameter] = state
    return Progress(**json.loads(metadata["progress"]))


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write to a temporary name in the same folder, flush to disk, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=dict(metadata))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"'{path}' cannot be written: {error}.", advice="Free disk space or give another --output.") from error
    finally:
        temporary.unlink(missing_ok=True)
