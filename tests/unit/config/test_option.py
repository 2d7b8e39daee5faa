from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hothead.config.option import COMMAND_LINE, Options, from_mapping, option, options_of, replace, validate
from hothead.errors import OptionError


@dataclass(frozen=True)
class Sample(Options):
    size: int = option(4, flags=("--size", "-s"), help="A size.", ge=1, le=8)
    share: float = option(0.5, flags=("--share",), help="A share.", gt=0.0, le=1.0)
    kind: str = option("auto", flags=("--kind",), help="A kind.", choices=("auto", "EAGLE"), synonyms={"best": "EAGLE"})
    folder: Path | None = option(None, flags=("--folder",), help="A folder.")
    ids: tuple[int, ...] = option((), flags=("--id",), help="Ids.", ge=0)
    is_fast: bool = option(False, flags=("--fast/--slow",), help="Be fast.")
    not_an_option: int = 3


def test_a_field_gives_name_flags_type_and_default() -> None:
    items = {item.name: item for item in options_of(Sample)}
    assert list(items) == ["size", "share", "kind", "folder", "ids", "is_fast"]
    assert (items["size"].kind, items["size"].flags, items["size"].default) == (int, ("--size", "-s"), 4)
    assert (items["folder"].kind, items["folder"].is_optional) == (Path, True)
    assert (items["ids"].kind, items["ids"].is_repeatable) == (int, True)
    assert items["share"].range_text == "more than 0, at most 1"
    assert items["kind"].range_text == "one of auto, EAGLE"


def test_values_are_converted_to_the_field_s_type() -> None:
    sample = Sample(share=1, kind="eagle", folder="x", ids=[np.int64(1), 2], size=np.int64(3))  # type: ignore[arg-type]
    assert (sample.share, sample.kind, sample.folder, sample.ids, sample.size) == (1.0, "EAGLE", Path("x"), (1, 2), 3)
    assert type(sample.share) is float
    assert type(sample.size) is int
    assert Sample(kind="BEST").kind == "EAGLE"
    assert hash(sample) == hash(replace(sample))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"size": 0}, "size=0 is out of range.\n  It must be at least 1, at most 8."),
        ({"size": 9}, "size=9 is out of range.\n  It must be at least 1, at most 8."),
        ({"size": 2.0}, "size=2.0 is not an integer."),
        ({"size": True}, "size=True is not an integer."),
        ({"size": None}, "size=None is not an integer."),
        ({"share": 0}, "share=0.0 is out of range."),
        ({"share": float("nan")}, "share=nan is out of range."),
        ({"share": float("inf")}, "share=inf is out of range."),
        ({"share": "half"}, "share='half' is not a number."),
        ({"kind": "EAGEL"}, "kind='EAGEL' is not one of auto, EAGLE.\n  Did you mean EAGLE?"),
        ({"ids": 3}, "ids=3 is not a list."),
        ({"ids": "12"}, "ids='12' is not a list."),
        ({"ids": (1, -1)}, "ids=-1 is out of range."),
        ({"is_fast": 1}, "is_fast=1 is not true or false."),
        ({"folder": 7}, "folder=7 is not a path."),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        Sample(**values)
    assert str(caught.value).startswith(expected)


def test_an_error_says_where_the_value_came_from() -> None:
    with pytest.raises(OptionError, match=r"^--size 0 is out of range"):
        Sample(size=0, origins={"size": COMMAND_LINE})
    with pytest.raises(OptionError, match=r"^size: 0 \(in run\.yaml\) is out of range"):
        from_mapping(Sample, {"size": 0}, "run.yaml")


def test_said_and_label_follow_the_origin() -> None:
    sample = Sample(
        size=2, ids=(1, 2), is_fast=False, share=0.5, origins=dict.fromkeys(("size", "ids", "is_fast"), COMMAND_LINE) | {"share": "f"}
    )
    assert [sample.said(name) for name in ("size", "ids", "is_fast", "share", "kind")] == [
        "--size 2",
        "--id 1 --id 2",
        "--slow",
        "share: 0.5 (in f)",
        "kind='auto'",
    ]
    assert [sample.label(name) for name in ("size", "kind", "share")] == ["--size", "--kind", "share"]
    assert Sample().label("size") == "size"


def test_a_mapping_fills_a_record_and_an_unknown_key_names_the_nearest() -> None:
    sample = from_mapping(Sample, {"size": 2, "folder": None, "ids": [5]}, "run.yaml")
    assert (sample.size, sample.folder, sample.ids) == (2, None, (5,))
    assert sample.origins == {"size": "run.yaml", "folder": "run.yaml", "ids": "run.yaml"}
    with pytest.raises(OptionError) as caught:
        from_mapping(Sample, {"sise": 2}, "run.yaml")
    assert str(caught.value) == "Unknown option 'sise' in run.yaml.\n  Did you mean size, ids?"
    with pytest.raises(OptionError, match=r"The key of --id is ids\."):
        from_mapping(Sample, {"id": [2]})
    with pytest.raises(OptionError, match="Unknown option 'not_an_option'"):
        from_mapping(Sample, {"not_an_option": 2})


def test_origins_do_not_count_for_equality_and_survive_pickling() -> None:
    sample = Sample(size=2, origins={"size": COMMAND_LINE})
    assert sample == Sample(size=2)
    assert pickle.loads(pickle.dumps(sample)).origins == {"size": COMMAND_LINE}
    assert replace(sample, size=3).origins == {}
    assert replace(sample, share=1.0).origins == {"size": COMMAND_LINE}


def test_a_plain_dataclass_can_have_options_too() -> None:
    @dataclass(frozen=True)
    class Plain:
        size: int = option(1, flags=("--size",), help="A size.", ge=1)

    assert from_mapping(Plain, {"size": 2}).size == 2
    with pytest.raises(OptionError, match="size=0 is out of range"):
        validate(Plain(size=0))
