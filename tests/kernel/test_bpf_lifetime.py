# SPDX-License-Identifier: Apache-2.0
"""The BPF program on the running kernel: it is loaded and removed without traces, or says why not."""

import os
from pathlib import Path

import pytest
from kernel.bpf_output import Wait
from kernel.napping import MS, ROUNDS, Napper, python, recording, waits_of

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.errors import RecordingError

pytestmark = pytest.mark.beside


def descriptors() -> list[str]:
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if link.is_symlink()]


@pytest.mark.long
def test_closing_gives_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = OffCpuConfig(objects=False, budget=False)  # takes half of the time to compile
    with pytest.raises(RecordingError):  # libbcc keeps a descriptor or two from the first time on
        OffCpuProgram(OffCpuConfig(sum_entries="nonesuch"))  # type: ignore[arg-type]
    before = len(descriptors())
    for origin in ("compiled", "kept"):
        assert any(tmp_path.rglob("programs/*")) == (origin == "kept")
        with OffCpuProgram(config) as program:
            program.attach()
            assert {"anon_inode:bpf-prog", "anon_inode:bpf-map"} <= set(descriptors()), origin
            program.close()
            with pytest.raises(RecordingError, match="closed"):
                program.enable()
        assert not [target for target in descriptors() if "bpf" in target], origin
        assert len(descriptors()) == before, origin


@pytest.mark.long
@pytest.mark.alone
def test_two_recorders_at_once_do_not_disturb_each_other(napper: Path) -> None:
    one, config = Napper(napper), OffCpuConfig(targets=Targets.PIDS, threshold_ns=MS)
    with recording(config) as (first, first_rings), recording(config) as (second, second_rings):
        for program in (first, second):
            program.maps.add_target(one.pid)
            program.enable()
        one.go()
        seen = [waits_of(rings) for rings in (first_rings, second_rings)]
        # Where waits end in sched_switch, the end of one may not be told, and the last is not counted even.
        missed = [it.counters()["ends_missed"] + (not it.ends_at_exit) for it in (first, second)]
    one.end()
    # Each reads the clock itself, and begins and ends at its own time: the same waits, other ends.
    for mine, others, may_miss in ((*seen, missed[1]), (*reversed(seen), missed[0])):
        assert sum(wait.ns > 1.5 * MS for wait in mine) > 3 * ROUNDS
        long = [wait for wait in mine if wait.ns > 2.5 * MS]  # those near the threshold one may see alone
        alone = [wait for wait in long if not any(is_same(wait, other) for other in others)]
        assert len(alone) <= may_miss, alone


def is_same(one: Wait, other: Wait) -> bool:
    together = one.switch_out_ns < other.switch_out_ns + other.ns and other.switch_out_ns < one.switch_out_ns + one.ns
    return (one.tid, one.syscall) == (other.tid, other.syscall) and together


def test_success_is_silent_and_leaves_the_environment_alone(capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    OffCpuProgram().close()
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == before


@pytest.mark.parametrize(("preparation", "words"), [
    ("os.setgroups([]); os.setgid(65534); os.setuid(65534)",
     ("CapabilityError: BPF programs cannot be loaded (Operation not permitted): run as root",)),
    ("import sys; sys.modules['bcc'] = None", ("has no usable bcc", "python3-bpfcc", "/usr/bin/python3")),
    ("import sys; sys.path.insert(0, {directory!r})",
     ("{directory}/bcc.py is not the BPF compiler collection", "python3-bpfcc")),
], ids=["privilege", "bcc", "another package of the name bcc"])  # fmt: skip
def test_what_is_missing_is_named(preparation: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("VERSION = '0.1'\n")
    said = failure(preparation.format(directory=str(tmp_path)))
    assert all(word.format(directory=tmp_path) in said for word in words) and said.count("\n") == 1, said


def test_an_error_of_the_compiler_is_told_in_its_own_words(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordingError, match="error: use of undeclared identifier 'nonesuch'"):
        OffCpuProgram(OffCpuConfig(sum_entries="nonesuch"))  # type: ignore[arg-type]
    assert capfd.readouterr() == ("", "")


def test_a_refused_program_is_told_in_the_verifiers_words() -> None:
    with pytest.raises(bpf_syscall.VerifierError) as caught:
        bpf_syscall.load_program(
            bpf_syscall.ProgramType.PERF_EVENT, "offcpu_bad", bytes.fromhex("9500000000000000"), "GPL"
        )
    assert "R0 !read_ok" in caught.value.log


def failure(preparation: str) -> str:
    """Create the program in a process of its own without cache; return what it raises as `Class: message`."""
    script = f"""
        import os
        os.environ["PERF_OFFCPU_CACHE_BYTES"] = "0"
        from perf_offcpu.collect.bpf.program import OffCpuProgram
        {preparation}
        try:
            OffCpuProgram()
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
    """
    with python(script) as process:
        return process.communicate(timeout=30)[0]
