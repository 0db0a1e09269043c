# SPDX-License-Identifier: Apache-2.0
"""Check servers by their certificates. The check cannot be switched off; an authority can be named."""

from __future__ import annotations

import ssl

from perf_offcpu.errors import UsageError


def tls_context(ca: str) -> ssl.SSLContext:
    """Return a context that checks name and certificate of a server.

    Args:
        ca: PEM of the authorities; "" for the system's.

    Raises:
        UsageError: `ca` is no PEM.
    """
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, TypeError, ValueError) as problem:
        raise UsageError(f"--push-ca: no certificates in PEM: {problem}") from None


def authorities(ca: str) -> bytes:
    """Return the PEM of the authorities for gRPC, which has its own list instead of the system's.

    Raises:
        UsageError: `ca` is no PEM, or the system has no authorities.
    """
    found = tls_context(ca).get_ca_certs(binary_form=True)
    if not found:
        raise UsageError("grpcs: the system has no certificates of authorities: name some with --push-ca")
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode()
