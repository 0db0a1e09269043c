# SPDX-License-Identifier: Apache-2.0
"""`scripts/demo`, the first thing that a newcomer runs: it records, and where it cannot it says why. It runs in a copy
of what it needs of the checkout, with this environment's programs: nothing is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.beside

TOP = Path(__file__).parents[2]
PARTS = ["scripts", "pyproject.toml", "tests/workload", "tests/data/demo.data", "tests/data/demo.kallsyms"]
PARTS += ["tests/data/demo.symfs"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in PARTS:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, target)
        else:
            shutil.copy(TOP / name, target)
    environment = tmp_path / ".venv"
    environment.mkdir()
    for path in Path(sys.prefix).iterdir():
        (environment / path.name).symlink_to(path)
    mark = environment / "installed-demo"
    mark.unlink(missing_ok=True)
    with open(tmp_path / "pyproject.toml", "rb") as named:
        mark.write_bytes(subprocess.run(["cksum"], stdin=named, capture_output=True, check=True).stdout)
    return tmp_path


def demo(checkout: Path, *before: str) -> tuple[str, str, dict[str, int]]:
    """(what it shows, what it says of itself, stack → ns of its folded stacks)."""
    done = subprocess.run(
        [*before, checkout / "scripts" / "demo"], cwd="/", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    out = checkout / "demo-output"
    assert "offcpu.html" in done.stdout and (out / "offcpu.html").read_text().startswith("<!DOCTYPE html>")
    lines = (out / "offcpu.folded").read_text().splitlines()
    return done.stdout, done.stderr, {stack: int(ns) for stack, ns in (line.rsplit(" ", 1) for line in lines)}


def waited(stacks: dict[str, int], comm: str, function: str) -> int:
    return sum(ns for stack, ns in stacks.items() if stack.split(";")[0] == comm and f";{function};" in stack)


def test_it_records_the_workload_and_shows_its_lock_and_its_sleep(checkout: Path) -> None:
    shown, said, stacks = demo(checkout)
    assert "Captured and wrote" in said and "Cannot record" not in said
    assert "# Recording: demo-output/perf.data of " in shown and "demo-output/waiter.jsonl" in shown
    kinds = shown[shown.index("# Off-cpu time by what was waited for") : shown.index("# Stacks by off-cpu")]
    assert {"lock", "sleep"} <= {line.split()[6] for line in kinds.splitlines() if "%" in line}
    assert (checkout / "demo-output" / "waiter.jsonl").stat().st_size
    # Twenty rounds: of 8 ms, and of a lock under which the other one sleeps.
    assert waited(stacks, "sleeper", "sleep_round") > 100_000_000
    assert waited(stacks, "locker-a", "enter_ledger") > 10_000_000


ORDINARY = {
    "without capabilities": ["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
    "as a user without sudo": ["unshare", "--user", "--map-user=1000"],
    "without BTF": [
        "unshare", "--mount", "--propagation", "unchanged", "sh", "-c",
        'mount --make-rprivate /sys && mount -t tmpfs none /sys/kernel/btf && exec "$0"',
    ],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", ORDINARY)
def test_without_bpf_it_records_the_workload_as_an_ordinary_user(what: str, checkout: Path) -> None:
    shown, said, stacks = demo(checkout, *ORDINARY[what])
    assert "recording by an ordinary user: no wakers" in said and "Captured and wrote" in said
    assert "# Recording: demo-output/perf.data of " in shown and "demo-output/waiter.jsonl" in shown
    # The main thread waits all the time, so that it was looked at.
    assert waited(stacks, "waiter", "wait_for_workers") > 100_000_000


CANNOT = {
    "without a compiler": (
        ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c",
         'for name in /usr/bin/*gcc* /usr/bin/cc; do mount --bind /bin/false "$(readlink -f $name)"; done; exec "$0"'],
        ("Cannot record here: there is no C compiler to build the workload",),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", CANNOT)
def test_where_it_cannot_record_it_says_why_and_shows_what_is_kept(what: str, checkout: Path) -> None:
    before, reasons = CANNOT[what]
    shown, said, stacks = demo(checkout, *before)
    assert all(reason in said for reason in reasons), said
    assert "What follows is a recording of the same workload from the repository." in said
    assert "# Recording: tests/data/demo.data of " in shown and "waiter.jsonl" not in shown
    assert waited(stacks, "sleeper", "sleep_round") == 81102560
    assert waited(stacks, "locker-a", "enter_ledger") == 80661907
