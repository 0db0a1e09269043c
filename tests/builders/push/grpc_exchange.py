# SPDX-License-Identifier: Apache-2.0
"""Run calls to gRPC servers in a process of their own: grpc keeps threads, and other tests fork.

    python -m builders.push.grpc_exchange < CALLS

CALLS is JSON, a list of the fields of Call. Prints a JSON list: for each the answer or error of the sender,
and the totals of the profiles that a server that applies the rules has stored."""

import base64
import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.push.published import Malformed
from builders.push.rules import Rejected
from builders.push.servers import METHODS, raw_server

from perf_offcpu.push.grpc_sender import import_grpc
from perf_offcpu.push.opening import open_sender
from perf_offcpu.push.sender import PushError, RetryLater, SendOptions
from perf_offcpu.push.targets import parse_target

grpc = import_grpc()


@dataclass
class Call:
    server: str
    body: str = ""  # base64
    code: str = ""  # of the status with which the server aborts
    details: str = ""
    status: str = ""  # base64 of grpc-status-details-bin
    answer: str = ""  # base64
    delay_s: float = 0
    timeout_s: float = 20
    headers: list[tuple[str, str]] = field(default_factory=list)
    host: str = "127.0.0.1"
    server_pem: str = ""  # directory with server.pem and server.key: TLS
    ca: str = ""  # file
    grpcs: bool = False
    down: bool = False  # there is no server
    foreign: bool = False  # the server has other services
    times: int = 1
    raw: str = ""  # base64 of what a server of no protocol sends when it is asked
    again: str = ""  # and then without end


def exchange_raw(call: Call) -> dict[str, Any]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(base64.b64decode(call.raw))
        while again := base64.b64decode(call.again):
            connection.sendall(again)
        time.sleep(call.delay_s)

    with raw_server(behave) as port:
        return called(call, port)


def exchange(call: Call) -> dict[str, Any]:
    stored: list[int] = []
    metadata: list[dict[str, str]] = []

    def serve(take: Any) -> Any:
        def handle(body: bytes, context: Any) -> bytes:
            metadata.append({pair.key: pair.value for pair in context.invocation_metadata()})
            time.sleep(call.delay_s)
            if call.status:
                context.set_trailing_metadata([("grpc-status-details-bin", base64.b64decode(call.status))])
            if call.code:
                context.abort(grpc.StatusCode[call.code], call.details)
            try:
                stored.extend(series.total for series in take(body))
            except (Rejected, Malformed) as problem:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
            return base64.b64decode(call.answer)

        return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    for path, take in METHODS.items():
        _, service, method = path.split("/")
        name = "other.Service" if call.foreign else service
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {method: serve(take)}),))
    if call.server_pem:
        pair = [(Path(call.server_pem) / name).read_bytes() for name in ("server.key", "server.pem")]
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair[0], pair[1])]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    if call.down:
        server.stop(0).wait()
    try:
        return called(call, port) | {"stored": stored, "metadata": metadata}
    finally:
        server.stop(0).wait()


def called(call: Call, port: int) -> dict[str, Any]:
    scheme = "grpcs" if call.grpcs else "grpc"
    ca = Path(call.ca).read_text() if call.ca else ""
    options = SendOptions(tuple((name, value) for name, value in call.headers), ca, call.timeout_s)
    sender = open_sender(parse_target(f"{call.server}={scheme}://{call.host}:{port}"), options)
    found: dict[str, Any] = {}
    try:
        for _ in range(call.times):
            answer = sender.send(base64.b64decode(call.body))
            found = {"rejected": answer.rejected, "text": answer.text}
    except PushError as problem:
        after_s = problem.after_s if isinstance(problem, RetryLater) else None
        found = {"error": type(problem).__name__, "text": str(problem), "after_s": after_s}
    finally:
        sender.close()
    return found


def main() -> Iterator[dict[str, Any]]:
    for call in json.load(sys.stdin):
        made = Call(**call)
        yield exchange_raw(made) if made.raw else exchange(made)


if __name__ == "__main__":
    json.dump([*main()], sys.stdout)
