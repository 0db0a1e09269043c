# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, and chrome://tracing's importer, in Chromium: what they make of our traces. Both come
with the npm package `programs.perfetto`. The trace processor is a worker that speaks the messages of
protos/perfetto/trace_processor/trace_processor.proto; the perfetto package has their descriptor."""

import base64
import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from browser.webdriver import Browser, javascript
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_APPEND, _FINALIZE, _QUERY = 1, 2, 3


class _Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}

    def __init__(self, *args: Any, more: dict[str, bytes], **keywords: Any) -> None:
        self._more = more
        super().__init__(*args, **keywords)

    def do_GET(self) -> None:
        """Answer with a file in memory, or one of the folder; the page's icon is empty."""
        body = self._more.get(self.path, b"" if self.path == "/favicon.ico" else None)
        if body is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path.endswith(".html") else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path, more: dict[str, bytes]) -> Iterator[str]:
    """Serve a folder, and more files by path (`/name`), on the loopback; return the address."""
    handler = functools.partial(_Files, directory=str(folder), more=more)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@functools.cache
def _stream() -> Any:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(
        resources.files("perfetto.trace_processor").joinpath("trace_processor.descriptor").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))


class TraceProcessor:
    def __init__(self, browser: Browser, address: str, trace: bytes) -> None:
        self._browser, self._seq = browser, 0
        browser.open(f"{address}/package.json")
        replies = self._ask(self._request(_APPEND, append_trace_data=trace))
        assert not replies[-1].append_result.error, replies[-1].append_result.error
        self._ask(self._request(_FINALIZE))

    def _request(self, kind: int, **fields: Any) -> str:
        stream = _stream()()
        message = stream.msg.add()
        message.seq, message.request = self._seq, kind
        self._seq += 1
        if "append_trace_data" in fields:
            message.append_trace_data = fields["append_trace_data"]
        if "sql" in fields:
            message.query_args.sql_query = fields["sql"]
        return base64.b64encode(stream.SerializeToString()).decode()

    def _ask(self, request: str) -> list[Any]:
        parts = self._browser.run_async(javascript("engine"), [request])
        stream = _stream()()
        stream.ParseFromString(b"".join(map(base64.b64decode, parts)))
        return list(stream.msg)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        values: list[Any] = []
        columns: list[str] = []
        for message in self._ask(self._request(_QUERY, sql=sql)):
            result = message.query_result
            assert not result.error, result.error
            columns = columns or list(result.column_names)
            for batch in result.batch:
                values += _cells(batch)
        return list(zip(*[iter(values)] * len(columns), strict=True))


def _cells(batch: Any) -> Iterator[Any]:
    """Return the values of a batch: types in one list, and the values of each type in their own."""
    strings = iter(batch.string_cells.split("\0"))
    numbers, reals = iter(batch.varint_cells), iter(batch.float64_cells)
    for kind in batch.cells:
        yield next({1: iter([None]), 2: numbers, 3: reals, 4: strings}[kind])


def imported(browser: Browser, address: str, text: str) -> dict[str, Any]:
    """Return what chrome://tracing's importer makes of a Chrome trace, times in ms."""
    browser.open(f"{address}/package.json")
    found: dict[str, Any] = browser.run_async(javascript("catapult"), text)
    return found
