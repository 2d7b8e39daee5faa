from __future__ import annotations

from hothead.cli.text import as_text


def test_descriptions_are_aligned_and_nested() -> None:
    description = {
        "name": "m",
        "num_parameters": 134515008,
        "tied_head": True,
        "ids": [1, 2],
        "none": None,
        "empty": [],
        "vocabulary": {"real": 5, "padding": 0},
        "layout": [{"tp_size": 1, "padded_rows": [0]}, {"tp_size": 2, "padded_rows": [0, 51]}],
        "nothing": {},
    }
    assert as_text(description).splitlines() == [
        "name:           m",
        "num_parameters: 134,515,008",
        "tied_head:      yes",
        "ids:            1 2",
        "none:           -",
        "empty:          -",
        "vocabulary:",
        "  real:    5",
        "  padding: 0",
        "layout:",
        "  tp_size 1, padded_rows 0",
        "  tp_size 2, padded_rows 0 51",
    ]
