"""Stands in for Triton where it is not installed: every name exists, a decorated kernel is left as it is, and nothing can be launched.

The SGLang wheel carries such a module class for Macs; this loads it without importing the package, which itself needs triton.
"""

import importlib.util
import sys
from pathlib import Path

_file = Path(importlib.util.find_spec("sglang").origin).parent / "_platform_stubs.py"  # type: ignore[union-attr,arg-type]
_spec = importlib.util.spec_from_file_location("_sglang_platform_stubs", _file)
_stubs = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
sys.modules[_spec.name] = _stubs  # type: ignore[union-attr]
_spec.loader.exec_module(_stubs)  # type: ignore[union-attr]


class _Dtype:
    """A type of triton.language, which torch looks up when it is imported."""


class _Language(_stubs._MockModule):
    dtype = _Dtype


_module = _stubs._MockModule("triton")
sys.modules["triton"] = _module
_language = _Language("triton.language")
sys.modules["triton.language"] = _language
_module.language = _language
_module.__version__ = "3.0.0"
_module.Config = _stubs._Config
_module.cdiv = _stubs._cdiv
_module.next_power_of_2 = _stubs._next_power_of_2
sys.meta_path.insert(0, _stubs._TritonFinder())
