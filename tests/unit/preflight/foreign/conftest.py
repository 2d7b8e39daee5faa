"""The folders that launch lines name, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.launches import make_launch_files


@pytest.fixture(scope="session")
def launch_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_launch_files(tmp_path_factory.mktemp("launches") / "files")


@pytest.fixture(autouse=True)
def _here(launch_files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Relative paths are those of the launch files, and no model of the user's cache is seen."""
    monkeypatch.chdir(launch_files)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
