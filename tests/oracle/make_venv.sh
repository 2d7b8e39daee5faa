#!/usr/bin/env bash
# An environment that can resolve SGLang's arguments on a machine without accelerator: bash make_venv.sh FOLDER [PYTHON].
# About 80 s and 1.6 GB. torch is asked for as the CPU build, so that where there is none this fails instead of fetching CUDA.
set -euo pipefail
folder="$1"
"${2:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip "torch==2.13.0+cpu"
pip transformers==5.19.0 tokenizers==0.23.2 numpy orjson psutil pybase64 requests pillow msgspec pyzmq aiohttp dill einops loguru \
    apache-tvm-ffi==0.1.11 sentencepiece==0.2.1 setproctitle openai==2.8.0 partial_json_parser uvloop "uvicorn>=0.51" fastapi jsonschema cffi \
    python-multipart IPython
pip --no-deps compressed-tensors==0.18.0 gguf xgrammar==0.2.7 soundfile==0.13.1 sglang==0.5.23
