"""Notification of the service manager (systemd, protocol of `sd_notify(3)`): ready, reloading, stopping, and watchdog.

Datagrams go to the socket in the environment variable `NOTIFY_SOCKET`; without it nothing is sent. The service manager
restarts a process whose event loop sends no watchdog message for `WATCHDOG_USEC`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping

from pybroker.runtime import logs

_PINGS_PER_TIMEOUT = 3


class ServiceManager:
    """Notifications of one process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        # `@` stands for the zero byte of an abstract socket name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        timeout_us = environment.get("WATCHDOG_USEC", "")
        # The variable may be inherited from another service's process.
        is_own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(timeout_us) / 1e6 if timeout_us.isdigit() and is_own else 0.0
        """Timeout of the watchdog in seconds; 0 without one."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Stopping")

    async def run_watchdog(self) -> None:
        """Send the watchdog messages until cancelled; return if the service manager has no watchdog."""
        while self._address and self.watchdog_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / _PINGS_PER_TIMEOUT)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            logs.warning("service_manager.not_notified", message=message.partition("\n")[0], error=str(error))
