"""Stands in for torchvision where only argument resolution runs: any name, at any depth, is there and does nothing."""

import importlib.machinery
import sys
from types import ModuleType


class _AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return _AnyClass(name, (), {})
        full = f"{self.__name__}.{name}"
        if full not in sys.modules:
            sys.modules[full] = _Anything(full)
        return sys.modules[full]

    def __call__(self, *arguments, **named):
        return arguments[0] if arguments and callable(arguments[0]) else None


_module = _Anything("torchvision")
_module.__version__ = "0.28.0"
sys.modules["torchvision"] = _module
for _name in ("io", "ops", "transforms", "transforms.v2", "transforms.functional", "transforms.v2.functional"):
    sys.modules[f"torchvision.{_name}"] = _Anything(f"torchvision.{_name}")
_module.transforms = sys.modules["torchvision.transforms"]
_module.transforms.v2 = sys.modules["torchvision.transforms.v2"]
_module.transforms.functional = sys.modules["torchvision.transforms.functional"]
_module.transforms.v2.functional = sys.modules["torchvision.transforms.v2.functional"]
_module.io = sys.modules["torchvision.io"]
