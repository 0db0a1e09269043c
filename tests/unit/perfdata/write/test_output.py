# SPDX-License-Identifier: Apache-2.0
"""AtomicFile: all or nothing, and nobody else's to read."""

import os
import stat
from pathlib import Path

import pytest
from builders.disk import small_disk

from perf_offcpu.errors import RecordingError
from perf_offcpu.perfdata.write.output import AtomicFile


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write(path: Path, text: bytes, keep_old: bool = True) -> None:
    with AtomicFile(path, keep_old) as output:
        os.write(output.fd, text)
        output.commit()


def test_committed_file_is_private(perf_data: Path, tmp_path: Path) -> None:
    os.umask(0)
    write(perf_data, b"one")
    assert perf_data.read_bytes() == b"one"
    assert stat.S_IMODE(perf_data.stat().st_mode) == 0o600
    assert names(tmp_path) == ["perf.data"]


def test_without_commit_nothing_has_happened(perf_data: Path, tmp_path: Path) -> None:
    perf_data.write_bytes(b"older")
    with AtomicFile(perf_data, keep_old=True) as output:
        os.write(output.fd, b"half")
    assert names(tmp_path) == ["perf.data"]
    assert perf_data.read_bytes() == b"older"


@pytest.mark.parametrize(("texts", "keep_old", "old"), [
    ((b"one", b"two", b"three"), True, [b"two"]), ((b"", b"one"), True, []), ((b"one", b"two"), False, []),
])  # fmt: skip
def test_an_older_file_with_content_is_kept_once_if_wanted(
    texts: tuple[bytes, ...], keep_old: bool, old: list[bytes], tmp_path: Path
) -> None:
    for text in texts:
        write(tmp_path / "perf.data", text, keep_old)
    assert (tmp_path / "perf.data").read_bytes() == texts[-1]
    assert [path.read_bytes() for path in tmp_path.glob("*.old")] == old
    assert len(names(tmp_path)) == 1 + len(old)


def test_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "perf.data").symlink_to(victim)
    write(tmp_path / "perf.data", b"one")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "perf.data").is_symlink()


def test_device_is_written_to() -> None:
    with AtomicFile("/dev/null", keep_old=True) as output:
        assert os.write(output.fd, b"gone") == 4
        output.commit()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, sentence in (
        ("nowhere/out", r"nowhere/out: cannot be written: No such file or directory$"), (".", "is no regular file"),
        ("fifo", "is no regular file"), ("x/", r"x/: is the name of a directory: give that of a file"),
    ):  # fmt: skip
        with pytest.raises(RecordingError, match=sentence):
            AtomicFile(f"{tmp_path}/{name}")
    assert names(tmp_path) == ["fifo"]


@pytest.mark.kernel
def test_room_held_on_the_disk_is_there_when_it_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256K") as disk:
        with AtomicFile(disk / "perf.data", reserve=64 << 10) as output:
            with pytest.raises(OSError, match="No space left on device"):
                while True:
                    os.write(output.fd, bytes(4096))
            assert os.fstat(output.fd).st_size == 192 << 10
            assert output.release() and not output.release()
            assert os.write(output.fd, bytes(64 << 10)) == 64 << 10
            assert names(disk) != []
        assert names(disk) == []
        with pytest.raises(RecordingError, match="cannot write the recording: No space left on device"):
            AtomicFile(disk / "perf.data", reserve=1 << 20)
        assert names(disk) == []


def test_the_oldest_is_unlinked_and_freed_at_the_end(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        write(tmp_path / "perf.data", text)
    with AtomicFile(tmp_path / "perf.data", keep_old=True) as output:
        assert open_but_unlinked(tmp_path) == []
        output.commit()
        assert open_but_unlinked(tmp_path) == ["perf.data.old (deleted)"]
    assert open_but_unlinked(tmp_path) == []


def open_but_unlinked(directory: Path) -> list[str]:
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [Path(os.readlink(fd)) for fd in fds if os.path.islink(fd)]
    return [path.name for path in targets if path.parent == directory and "(deleted)" in path.name]


def test_a_committed_file_can_be_withdrawn_if_it_is_still_the_same(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x.data") as file:
        file.commit()
        file.withdraw()
    assert not list(tmp_path.iterdir())
    with AtomicFile(tmp_path / "x.data") as file:
        file.commit()
        (tmp_path / "x.data").unlink()
        (tmp_path / "x.data").write_text("another")
        file.withdraw()
    assert (tmp_path / "x.data").read_text() == "another"
    with AtomicFile("/dev/null") as file:
        file.withdraw()
    assert Path("/dev/null").exists()
