"""Settings of the property tests: no deadline, since a busy machine is not a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("hothead", deadline=None)
settings.load_profile("hothead")
