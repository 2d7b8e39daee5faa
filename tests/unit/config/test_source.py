from __future__ import annotations

from pathlib import Path

import pytest

from hothead.config.engine import EngineConfig
from hothead.config.option import COMMAND_LINE
from hothead.config.sampling import SamplingParams
from hothead.config.source import MAX_FILE_BYTES, Sources, read_yaml
from hothead.errors import OptionError

CLASSES = (EngineConfig, SamplingParams)


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "tp_size: 2\nmax_tokens: 7\ntemperature: 1\nstop: [a, b]\n")
    given = Sources(CLASSES, {"tp_size": 3}, path)
    engine, sampling = given.fill(EngineConfig), given.fill(SamplingParams)
    assert (engine.tp_size, engine.block_size) == (3, 16)
    assert engine.origins == {"tp_size": COMMAND_LINE}
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (7, 1.0, ("a", "b"))
    assert sampling.origins["max_tokens"] == str(path)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "tp_size: 0\n")
    with pytest.raises(OptionError, match=r"tp_size: 0 \(in .*run\.yaml\) is out of range"):
        Sources(CLASSES, {}, path).fill(EngineConfig)
    path = write(tmp_path, "tp-size: 2\n")
    with pytest.raises(OptionError, match=r"Unknown option 'tp-size' in .*\n  The key of --tp-size is tp_size\."):
        Sources(CLASSES, {}, path)


def test_a_contradiction_between_file_and_flag_names_both(tmp_path: Path) -> None:
    path = write(tmp_path, "hot_size: 64\n")
    with pytest.raises(OptionError, match=r"^hot_size: 64 \(in .*run\.yaml\) and --hot-coverage 0\.5 both set"):
        Sources(CLASSES, {"hot_coverage": 0.5}, path).fill(EngineConfig)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\n", r"line 2, column 1 is not valid YAML"),
        ("- 1\n- 2\n", "must hold 'key: value' lines, but holds a list"),
        ("just text", "holds a str"),
        ("a: !!python/object/apply:os.system [id]\n", "is not valid YAML"),
        ("tp_size: 1\ntp_size: 2\n", "line 2, column 1 is not valid YAML: key 'tp_size' is there twice"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        read_yaml(write(tmp_path, text))


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "")) == {}
    with pytest.raises(OptionError, match=r"Cannot read the configuration file .*No such file"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(OptionError, match=r"Cannot read the configuration file .*directory"):
        read_yaml(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match=r"not UTF-8 text \(byte 0\)"):
        read_yaml(tmp_path / "binary.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(OptionError, match="1048577 bytes, at most 1048576"):
        read_yaml(tmp_path / "large.yaml")
