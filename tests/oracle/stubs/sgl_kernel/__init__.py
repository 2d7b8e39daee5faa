"""Stands in for SGLang's kernels where only argument resolution runs: names can be imported, and calling one is an error."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments, **named):
        raise RuntimeError(f"sgl_kernel.{name} is a stand-in")

    return missing
