"""What went wrong for people elsewhere, kind by kind: each has a test of ours, which says so with the marker `case`."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

CASES = {
    1: "a map with tp_size above 1: token ids used as rows of a vocabulary shard",
    2: "all hot ids in the first shard: the load succeeds, and scores are too wide",
    3: "a buffer as wide as the configuration says, and not as the head is",
    4: "nearly all hot rows on one of two ranks, since frequent ids have low numbers",
    5: "a hot size that ranks do not divide: shapes differed, or padding was chosen",
    6: "offsets (d2t) read as token ids, or the other way round; a table of zeros",
    7: "a reduced draft vocabulary without a map: the first ids were assumed",
    8: "a draft that declares a head of its own and ships none: random weights",
    9: "EAGLE3 without a draft head: minutes of loading, then a traceback",
    10: "a reduced head whose configuration copies the target's tied embeddings",
    11: "rows of the head behind the tokenizer's last token counted as tokens",
    12: "'vocabulary mismatch' and no word about where",
    13: "one id too many, a duplicate, one of several end tokens, no chat or tool tokens",
    14: "a corpus with fewer different tokens than the size that was asked for",
    15: "a map used with another tokenizer, another corpus or another head than it was made for",
    16: "a new file for every size",
    17: "a map of the wrong text, or where the head is cheap: slower, and nothing said so",
    18: "web text instead of what the model itself writes",
    19: "a quantized head of which only the codes were cut, and not their scales",
    20: "after a rejection only the drafted token's mass was taken away: wrong shares",
    21: "rejection sampling refused with a reduced draft vocabulary",
    22: "each rank took the best of its own shard",
    23: "each rank decided by what it had, and they decided differently",
    24: "a tied head: the same parameter dealt with twice",
    25: "a draft window shorter than the prompt: illegal access, or nothing accepted",
    26: "a draft loaded and never used; options ignored",
    28: "a small model's own head never cut, and the first step fails",
    29: "2-D, float, negative, boolean or repeated ids taken as they came",
    30: "a mistyped path became a download",
    31: "the map read only after both models were loaded",
    36: "noise that chose a draft token used again to judge it",
}


def marked_rows() -> set[int]:
    """Numbers in `@pytest.mark.case(...)` over all tests."""
    rows: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                        rows |= {ast.literal_eval(argument) for argument in mark.args}
    return rows


def test_every_case_has_a_test() -> None:
    assert marked_rows() == CASES.keys()
