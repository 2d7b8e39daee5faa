"""What tests of every kind share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from hothead.errors import DownloadError
from hothead.models.catalog import resolve_model

ROOT = Path(__file__).resolve().parent.parent

# Property tests draw the same examples in every run, so that a commit is green or is not; HYPOTHESIS_PROFILE=explore draws new ones,
# and ten times as many. No deadline: a busy machine is not a failure.
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture
def source_path() -> dict[str, str]:
    """An environment in which a new Python process finds this checkout's package."""
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched once into the user's cache folder; tests that ask for it carry the marker `real_model`."""
    try:
        return resolve_model("smollm2-135m-instruct").path
    except DownloadError as error:
        pytest.skip(f"the default model is not here and cannot be fetched: {error.what}")
