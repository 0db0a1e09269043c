# SPDX-License-Identifier: Apache-2.0
"""Tell systemd that the agent is ready, alive, reloading or stopping.

Source: sd_notify(3): a datagram of NAME=VALUE lines to the socket that $NOTIFY_SOCKET names.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time


class Notifier:
    """A connection to the service manager; without a manager nothing is sent.

    Attributes:
        watchdog_s: time within which `alive` has to be called; 0 for none.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = 0.0
        pid, usec = os.environ.pop("WATCHDOG_PID", ""), os.environ.pop("WATCHDOG_USEC", "")
        if usec.isdigit() and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 1e6
        self._alive_at = 0.0

    def send(self, *lines: str) -> None:
        """Send lines such as `READY=1`; a manager that refuses them is no error."""
        if not self._address.startswith(("/", "@")):
            return
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto("\n".join(lines).encode(), address)

    def reloading(self) -> None:
        """Announce that the configuration is read again; READY=1 ends it (Type=notify-reload)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def alive(self) -> None:
        """Report that the agent is alive, three times in each interval of the watchdog."""
        if self.watchdog_s and time.monotonic() - self._alive_at >= self.watchdog_s / 3:
            self._alive_at = time.monotonic()
            self.send("WATCHDOG=1")
