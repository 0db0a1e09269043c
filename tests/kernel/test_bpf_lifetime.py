# SPDX-License-Identifier: Apache-2.0
"""The BPF program on the running kernel: it is loaded and removed without traces, or says why not."""

import os
from pathlib import Path

import pytest
from builders.loaded_programs import program_ids
from kernel.bpf_output import Wait
from kernel.napping import MS, ROUNDS, Napper, python, read_int, recording, waits_of
from kernel.recorder import bpf_programs_of, until

from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.errors import RecordingError

pytestmark = pytest.mark.beside


def test_a_killed_recorder_leaves_nothing_behind() -> None:
    recorder = """
        from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
        from perf_offcpu.collect.bpf.program import OffCpuProgram
        program = OffCpuProgram(OffCpuConfig(targets=Targets.COMMAND))
        program.attach(); program.enable()
        print(1, flush=True); input()
    """
    with python(recorder) as process:
        read_int(process)
        ours = bpf_programs_of(process.pid)
        assert len(ours) >= 5 and ours <= program_ids()
        process.kill()
        process.wait()
    until(lambda: not ours & program_ids(), 10)  # freed after an RCU grace period


def test_closing_gives_everything_back() -> None:
    def descriptors() -> dict[str, str]:
        links = {fd: Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        return {fd: os.readlink(link) for fd, link in links.items() if link.is_symlink()}

    def bpf_objects() -> list[str]:
        return [target for target in descriptors().values() if "bpf" in target]

    OffCpuProgram().close()  # libbcc keeps a descriptor or two of its own from the first time on
    before = len(descriptors())
    with OffCpuProgram() as program:
        program.attach()
        assert {"anon_inode:bpf-prog", "anon_inode:bpf-map"} <= set(bpf_objects())
        program.close()
        with pytest.raises(RecordingError, match="closed"):
            program.enable()
    assert bpf_objects() == []
    assert len(descriptors()) == before


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
    """Return whether two recorders saw the same wait of a thread."""
    together = one.switch_out_ns < other.switch_out_ns + other.ns and other.switch_out_ns < one.switch_out_ns + one.ns
    return (one.tid, one.syscall) == (other.tid, other.syscall) and together


def test_success_is_silent_and_leaves_the_environment_alone(capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    OffCpuProgram().close()
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == before


# What may be missing


def test_no_privilege() -> None:
    said = failure("os.setgroups([]); os.setgid(65534); os.setuid(65534)")
    assert said.startswith("CapabilityError: BPF programs cannot be loaded (Operation not permitted): run as root")


def test_no_bcc() -> None:
    said = failure("import sys; sys.modules['bcc'] = None")
    assert "has no usable bcc" in said
    assert "python3-bpfcc" in said and "/usr/bin/python3" in said


def test_another_package_of_the_name_bcc(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("VERSION = '0.1'\n")
    said = failure(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert f"{tmp_path}/bcc.py is not the BPF compiler collection" in said and "python3-bpfcc" in said


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
