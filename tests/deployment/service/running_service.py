"""Servers in threads and applications in this process, for tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tritonclient.http as triton

from kcal.deployment.service.runtime import Service, ServiceOptions
from kcal.deployment.service.server import address_of, make_application, make_server

PATIENCE = 60.0


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    url: str
    service: Service

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def triton(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.address, connection_timeout=PATIENCE, network_timeout=PATIENCE)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)


@contextmanager
def running(path: Path, **options: Any) -> Iterator[Running]:
    """Run a server in a thread until the block ends."""
    server = make_server(ServiceOptions(path, port=0, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        service = server.config.app.service
        wait_until(lambda: server.started and service.is_ready)
        yield Running(address_of(server), service)
    finally:
        server.should_exit = True
        thread.join()


@asynccontextmanager
async def in_process(path: Path, **options: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    """Yield a client of an application that runs in this loop, and its service."""
    application = make_application(ServiceOptions(path, **options))
    await application.service.start()
    while not application.service.is_ready:
        assert not application.service.repository.errors, application.service.repository.errors
        await asyncio.sleep(0.005)
    transport = httpx.ASGITransport(application)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client, application.service
    await application.service.stop()


def wait_until(condition: Any) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
