"""Real ranks in real processes: the same text, and a death that takes everybody along with one clear error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.ranks import stop_ranks
from tests.support.tiny import make_model

from hothead import Engine, EngineConfig, SamplingParams
from hothead.errors import OptionError, RankError

DEADLINE_S = 10.0
PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def config(model: Path, tp_size: int) -> EngineConfig:
    return EngineConfig(model_path=str(model), tp_size=tp_size, speculative_algorithm="NGRAM", max_total_tokens=2048)


def child_pids(pid: int) -> list[int]:
    """Processes that `pid` started, directly or not."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        parent = int(text.split("PPid:")[1].split()[0])
        if parent == pid and "\nState:\tZ" not in text:
            child = int(status.parent.name)
            found += [child, *child_pids(child)]
    return found


def rank_pids(pid: int) -> list[int]:
    """Of those, the ranks: the resource tracker of multiprocessing is not one."""
    return [child for child in child_pids(pid) if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_until_gone(pids: list[int]) -> float:
    start = time.monotonic()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() - start < DEADLINE_S, f"still there: {pids}"
        time.sleep(0.05)
    return time.monotonic() - start


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _no_other_ranks() -> None:
    """Processes that other tests keep ready would be taken for ours."""
    stop_ranks()


def run_to_the_end(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_three_ranks_write_the_same_text_and_leave_nothing_behind(model: Path) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.7, seed=5)
    with Engine(config(model, 1)) as engine:
        alone = engine.generate([PROMPT, "lazy dog"], sampling)
    with Engine(config(model, 3)) as engine:
        ranks = rank_pids(os.getpid())
        together = engine.generate([PROMPT, "lazy dog"], sampling)
        again = engine.generate([PROMPT], sampling)
    assert len(ranks) == 2
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]
    assert again[0].text == alone[0].text
    wait_until_gone(ranks)


def test_a_second_engine_with_ranks_in_one_process_is_refused(model: Path) -> None:
    with Engine(config(model, 2)) as first:
        with pytest.raises(OptionError, match="belongs to a group of ranks already"):
            Engine(config(model, 2))
        assert first.generate([PROMPT], SamplingParams(max_tokens=3))[0].stats.num_emitted == 3
    with Engine(config(model, 2)) as second:
        assert second.generate([PROMPT], SamplingParams(max_tokens=3))[0].stats.num_emitted == 3


def test_a_killed_rank_ends_the_others_with_one_clear_error(model: Path) -> None:
    with Engine(config(model, 3)) as engine:
        engine.generate([PROMPT], SamplingParams(max_tokens=2))
        ranks = rank_pids(os.getpid())
        engine.add(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
        engine.step()
        os.kill(ranks[1], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(RankError, match=r"Rank 2 died: killed by SIGKILL"):
            run_to_the_end(engine)
        assert time.monotonic() - start < DEADLINE_S
        wait_until_gone(ranks)


def test_ranks_follow_a_killed_leader(model: Path, source_path: dict[str, str]) -> None:
    script = (
        "from hothead import Engine, EngineConfig, SamplingParams\n"
        f"engine = Engine(EngineConfig(model_path={str(model)!r}, tp_size=2, speculative_algorithm='NGRAM', max_total_tokens=2048))\n"
        f"engine.generate([{PROMPT!r}], SamplingParams(max_tokens=2))\n"
        "print('ready', flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    leader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=source_path)
    assert leader.stdout is not None
    with leader.stdout:
        assert leader.stdout.readline() == b"ready\n"
        ranks = rank_pids(leader.pid)
        assert len(ranks) == 1
        leader.kill()
        leader.wait()
        wait_until_gone(ranks)


def test_torchrun_runs_the_same_program(model: Path, source_path: dict[str, str]) -> None:
    arguments = ["-m", "hothead", "generate", PROMPT, "--model", str(model), "--algorithm", "NGRAM", "--max-tokens", "8", "--raw"]
    alone = subprocess.run([sys.executable, *arguments], capture_output=True, env=source_path, check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments, "--tp-size", "2"]
    together = subprocess.run(torchrun, capture_output=True, env=source_path | {"OMP_NUM_THREADS": "1"}, timeout=120)
    assert together.returncode == 0, together.stderr.decode()
    assert together.stdout == alone.stdout
    # Prompts that come through a pipe: there is one pipe for all processes, and rank 0 alone reads it.
    piped = [*torchrun[: torchrun.index(PROMPT)], *torchrun[torchrun.index(PROMPT) + 1 :], "--prompts-file", "-"]
    given = "".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "the lazy dog")).encode()
    together = subprocess.run(piped, input=given, capture_output=True, env=source_path | {"OMP_NUM_THREADS": "1"}, timeout=120)
    assert together.returncode == 0, together.stderr.decode()
    assert alone.stdout.decode().strip() in together.stdout.decode()
    assert together.stdout.decode().count("### ") == 2


def test_more_ranks_than_query_heads_are_refused(model: Path) -> None:
    with pytest.raises(OptionError, match="6 query heads"):
        Engine(config(model, 7))
