"""The record of a training run: options, data, versions and every evaluation, in `run.json` beside the head."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from hothead.config.option import options_of
from hothead.files.whole import write_all_whole
from hothead.train.checkpoint import Progress
from hothead.train.config import TrainConfig

RECORD_FILE = "run.json"


def write_record(folder: Path, config: TrainConfig, about: Mapping[str, object], progress: Progress, version: str) -> None:
    """Write or replace the record. about: of data and hot vocabulary. version: of hothead. Raises OutputError."""
    options = {item.name: getattr(config, item.name) for item in options_of(type(config))}
    record = {
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "data": dict(about),
        "versions": {"hothead": version, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"processor": platform.machine(), "num_threads": torch.get_num_threads()},
        "progress": dataclasses.asdict(progress),
    }
    write_all_whole({folder / RECORD_FILE: (json.dumps(record, indent=2) + "\n").encode()})
