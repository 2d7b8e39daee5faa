"""Quantized tensors of safetensors checkpoints under their logical names: `source.py` says which stored tensors belong together, the other
files how one format's rows become floats."""
