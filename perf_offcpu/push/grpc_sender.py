# SPDX-License-Identifier: Apache-2.0
"""Send messages over gRPC: OTLP's Export and Parca's WriteRaw. The only module that imports grpc. Messages are bytes
already, so the calls need no generated classes. Errors after which a message is sent again are those of
https://opentelemetry.io/docs/specs/otlp/#failures, and RESOURCE_EXHAUSTED also without a RetryInfo: servers that are
busy return it without one, and servers for a message that is too large with words that say so."""

import os
import threading
from typing import Any

from perf_offcpu.errors import UsageError
from perf_offcpu.push.answers import MOST_BYTES, Answer, export_answer, retry_delay_s, shown
from perf_offcpu.push.sender import PushError, Refused, RetryLater, SendOptions, ServerRefused, authorities
from perf_offcpu.push.targets import Target
from perf_offcpu.resources import version

_LATER = frozenset("CANCELLED DEADLINE_EXCEEDED ABORTED OUT_OF_RANGE UNAVAILABLE DATA_LOSS".split())
_SERVER = frozenset("UNAUTHENTICATED PERMISSION_DENIED UNIMPLEMENTED NOT_FOUND".split())
_DETAILS = "grpc-status-details-bin"
_GRACE_S = 1.0
_BAD_CERTIFICATES = "CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "not in peer certificate"
"""Words in the details of UNAVAILABLE that mean a wrong certificate, for which gRPC has no code."""

_TOO_LARGE = "larger than max", "exceeds maximum size", "too large"
"""Words in the details of RESOURCE_EXHAUSTED, of gRPC in C and Go, Java, and Rust."""


class GrpcSender:
    """`Sender` over a channel to a gRPC server."""

    def __init__(self, target: Target, options: SendOptions) -> None:
        self._grpc = import_grpc()
        self._target, self._options = target, options
        self._metadata = [(name.lower(), value) for name, value in options.headers]
        self._ca = authorities(options.ca) if target.is_tls else b""
        self._channel: Any = None

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def send(self, body: bytes) -> Answer:
        """Send a message and return the server's answer; raise PushError if it is not accepted."""
        if self._channel is None:
            self._channel = self._open()
        seconds = self._options.timeout_s
        call = self._channel.unary_unary(self._target.path).future(body, timeout=seconds, metadata=self._metadata)
        try:
            answer: bytes = call.result(seconds + _GRACE_S)
        except self._grpc.FutureTimeoutError:
            # gRPC does not always see that the time is over if a server sends without end, and does not end then.
            call.cancel()
            channel, self._channel = self._channel, None
            threading.Thread(target=channel.close, daemon=True).start()
            raise RetryLater(f"{self._target}: no answer within {seconds:g} s") from None
        except self._grpc.RpcError as problem:
            raise self._error(problem) from None
        return export_answer(answer) if self._target.server.export_answers else Answer()

    def _open(self) -> Any:
        options = [
            ("grpc.primary_user_agent", f"perf-offcpu/{version()}"),
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_metadata_size", MOST_BYTES),
            ("grpc.absolute_max_metadata_size", MOST_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        if self._target.is_tls:
            credentials = self._grpc.ssl_channel_credentials(self._ca)
            return self._grpc.secure_channel(self._target.address, credentials, options)
        return self._grpc.insecure_channel(self._target.address, options)

    def _error(self, problem: Any) -> PushError:
        """Convert a grpc.RpcError to the PushError that its status means."""
        code, details = problem.code().name, problem.details() or ""
        after_s = retry_delay_s(dict(problem.trailing_metadata() or ()).get(_DETAILS, b""))
        text = f"{self._target}: {code}: {shown(details.encode('utf-8', 'replace'))}"
        if code in _SERVER or any(words in details for words in _BAD_CERTIFICATES):
            return ServerRefused(text)
        is_busy = code == "RESOURCE_EXHAUSTED" and (
            after_s is not None or not any(words in details for words in _TOO_LARGE)
        )
        if code in _LATER or is_busy:
            return RetryLater(text, after_s, was_answered=is_busy)
        return Refused(text)


def import_grpc() -> Any:
    """Import grpc, with the log of its C core switched off, and return the module; raise UsageError without grpcio."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log has text of the server as it came
    try:
        import grpc
    except ImportError:
        raise UsageError("grpc:// and grpcs:// need grpcio: pip install 'perf-offcpu[push]'") from None
    return grpc
