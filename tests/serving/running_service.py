"""Servers in threads and applications in this process, for tests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tritonclient.http as triton

from kcal.calibrators import online_ids
from kcal.serving.app import Server, address_of, listen, make_app
from kcal.serving.service import Service, Settings

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
    settings = Settings(path, **{**options, "port": 0})
    with closing(listen(settings.host, 0)) as listener, Service(settings) as service:
        server = Server(service)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started and service.is_ready)
            yield Running(address_of(listener), service)
        finally:
            server.should_exit = True
            thread.join()


class Client(httpx.AsyncClient):
    """A client of an application that runs in this loop."""

    async def predict(self, inputs: Any, status: int = 200, **fields: Any) -> Any:
        """Return the answer to a plain request: of embeddings, or of inputs by name."""
        named = inputs if isinstance(inputs, dict) else {"embeddings": np.atleast_2d(inputs).tolist()}
        response = await self.post("/predict", json={**named, **fields})
        assert response.status_code == status, response.text
        return response.json()

    async def give(self, content: Any, status: int = 200, model: str = "animals") -> Any:
        """Send feedback; return what was done with each record, or the error."""
        response = await self.post(f"/v2/models/{model}/feedback", content=json.dumps(content))
        assert response.status_code == status, response.text
        answer = response.json()
        return [entry["status"] for entry in answer["results"]] if status == 200 else answer["error"]


@asynccontextmanager
async def in_process(path: Path, **options: Any) -> AsyncIterator[tuple[Client, Service]]:
    """Yield a client of an application that runs in this loop, and its service."""
    with Service(Settings(path, **options)) as service:
        assert service.is_ready, service.errors
        app = make_app(service)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with Client(transport=transport, base_url="http://127.0.0.1") as client:
                yield client, service


def used_ids(service: Service) -> set[str]:
    """Return the ids of the samples that predictions of the only model come from."""
    return set(online_ids(service.get(None).predictor.calibrator))


async def until(condition: Any) -> None:
    """Wait until something has happened in this loop."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def wait_until(condition: Any) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
