# SPDX-License-Identifier: Apache-2.0
"""Keep the files of a dataset, in a local directory or a store that fsspec knows (s3://, gs://, abfs://). A file
appears whole or not at all: locally it is written under a hidden name, flushed to the disk and renamed; an object store
shows an object when its upload is complete. Paths are relative to the store's folder, with `/` between names. Methods
raise PerfOffcpuError or OSError where a file cannot be read or written."""

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from perf_offcpu.directories import Directory
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.files import FileRefusedError

SUFFIX = ".parquet"
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_FILE_MODE = 0o666  # less the umask, as other outputs
_STALE_S = 3600
_STAGED_IN_MEMORY = 1 << 26


class LocalStore:
    """Files of a local directory, which is opened once; symbolic links below it are not followed."""

    def __init__(self, path: str, *, make: bool) -> None:
        self.url = os.path.abspath(path)
        try:
            self._root = Directory.named(path, make=make)
        except FileNotFoundError:
            raise UsageError(f"{path}: {'no dataset can be made there' if make else 'there is no dataset'}") from None
        except PermissionError as problem:
            reason = f"{problem.strerror}: a dataset is its owner's, unless the owner changes its mode"
            raise PerfOffcpuError(f"{path}: {reason}") from None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        try:
            with self._root.subdirectory(folder) as directory:
                names, others = directory.names(), directory.names_of_others()
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._refuse_links(folder)
            return []
        for name in others:  # engines would follow a link, and wait for a FIFO
            if name.endswith(SUFFIX):
                raise PerfOffcpuError(f"{self.path(f'{folder}/{name}')}: it is not a regular file")
        return names

    def _refuse_links(self, folder: str) -> None:
        """Raise PerfOffcpuError if a part of the path `folder` is a symbolic link: its rows would be missing."""
        parent = ""
        for part in folder.split("/"):
            with self._root.subdirectory(parent) as directory:
                status = directory.status(part)
            parent = f"{parent}/{part}".lstrip("/")
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise PerfOffcpuError(f"{self.path(parent)}: it is a symbolic link; mount what it leads to there")
            if status is None or not stat.S_ISDIR(status.st_mode):
                return

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears when the `with` block ends, and not at all after an exception."""
        folder, _, name = path.rpartition("/")
        with self._root.subdirectory(folder, make=True) as directory, directory.replacing(name, _FILE_MODE) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a power failure leaves an empty file, on which queries fail

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that appears whole; return False, and write nothing, if the file exists."""
        folder, _, name = path.rpartition("/")
        with self._root.subdirectory(folder, make=True) as directory:
            hidden, fd = directory.create_hidden(name, _FILE_MODE)
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                return directory.rename_new(hidden, name)
            finally:
                directory.remove(hidden)

    def reader(self, path: str) -> IO[bytes]:
        """Open a file for reading."""
        folder, _, name = path.rpartition("/")
        with self._root.subdirectory(folder) as directory:
            try:
                fd = directory.open_regular(name)
            except FileRefusedError as problem:
                raise PerfOffcpuError(f"{self.path(path)}: {problem.strerror}") from None
        return open(fd, "rb")

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        folder, _, name = path.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self._root.subdirectory(folder) as directory:
            directory.remove(name)

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it exists and is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(path, dir_fd=self._root.fd)  # direct: removes nothing but an empty directory

    def sweep(self, folder: str) -> None:
        """Remove hidden files of a folder that are older than an hour, left by killed writers."""
        with self._root.subdirectory(folder) as directory:
            for name in directory.names():
                status = directory.status(name) if name.startswith(".") else None
                if status is not None and time.time() - status.st_mtime > _STALE_S:
                    directory.remove(name)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of compaction and retention in the `with` block; raise PerfOffcpuError if it is taken."""
        fd = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root.fd)  # direct: the opened folder
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise PerfOffcpuError(f"{self.url}: another process compacts or expires it") from None
        finally:
            os.close(fd)

    def path(self, path: str) -> str:
        """Return the whole path of a file."""
        return f"{self.url}/{path}"


class RemoteStore:
    """Files of a folder in an object store that fsspec supports."""

    def __init__(self, url: str) -> None:
        fsspec = imported("fsspec")
        self.url = url.rstrip("/")
        try:
            self.filesystem, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as problem:  # each says which package, or which protocols there are
            raise UsageError(f"{url}: {problem}") from None
        self._root = self._root.rstrip("/")

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        with self._errors(folder):
            self.filesystem.invalidate_cache()
            try:
                listed = self.filesystem.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted({name.rstrip("/").rpartition("/")[2] for name in listed} - {""})

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears when the `with` block ends, and not at all after an exception."""
        with tempfile.SpooledTemporaryFile(_STAGED_IN_MEMORY) as staged:
            yield staged
            staged.seek(0)
            with self._errors(path):
                try:
                    self.filesystem.pipe_file(self._at(path), staged.read())
                except FileNotFoundError as problem:  # there is no such bucket
                    raise PerfOffcpuError(f"{self.path(path)}: {problem}") from None

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file; return False if it exists (a store without conditional writes replaces it instead)."""
        try:
            self.filesystem.pipe_file(self._at(path), data, mode="create")
        except FileExistsError:
            return False
        except Exception:  # the package does not know the mode, or the error comes again
            put(self, path, data)
        return True

    def reader(self, path: str) -> IO[bytes]:
        """Open a file for reading."""
        with self._errors(path):
            file: IO[bytes] = self.filesystem.open(self._at(path), "rb")  # direct: in a store, not a file
            return file

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with self._errors(path), contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self._at(path))

    def remove_folder(self, path: str) -> None:
        """Do nothing: object stores have no folders without objects."""

    def sweep(self, folder: str) -> None:
        """Do nothing: an incomplete upload is no object."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: there are no locks."""
        yield

    def path(self, path: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{path}"

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Turn exceptions of the store's package, which have no common base, into PerfOffcpuError with one line."""
        try:
            yield
        except (PerfOffcpuError, FileNotFoundError):
            raise
        except Exception as problem:
            words = " ".join(str(problem).split())[:300] or type(problem).__name__
            raise PerfOffcpuError(f"{self.path(path)}: {words}") from problem


Store = LocalStore | RemoteStore


def open_store(url: str, *, make: bool) -> Store:
    """Open a store by the path or URL of its folder. A missing local one is made by `make`, else raises UsageError."""
    if not url:
        raise UsageError("the name of the dataset is empty")
    path = local_path(url)
    return RemoteStore(url) if path is None else LocalStore(path, make=make)


def local_path(url: str) -> str | None:
    """Return the local path that a path or URL (file://…) names; None for the URL of an object store."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    return url[scheme.end() :] if scheme[1].lower() in {"file", "local"} else None


def imported(name: str) -> Any:
    """Import and return a module of the extra `fleet`; raise UsageError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UsageError(f"datasets need the package {package}: pip install 'perf-offcpu[fleet]'") from None


def put(store: Store, path: str, data: bytes | memoryview) -> None:
    """Write a file to a store, so that it appears whole or not at all."""
    with store.replacing(path) as file:
        file.write(data)
