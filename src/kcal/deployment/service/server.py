"""The server: uvicorn with the application, from its start to a graceful end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kcal.deployment.service.runtime import Service, ServiceOptions
from kcal.errors import InvalidInputError, KcalError, MissingExtraError

if TYPE_CHECKING:
    from kcal.deployment.service.api import Application

GRACE_SECONDS = 30
"""How long requests in flight may take after the signal to stop."""
KEEP_ALIVE_SECONDS = 65
REQUEST_SECONDS = 70.0
"""How long a connection may be without a complete head of a request, or its client may read nothing of an answer; it is
closed within twice this time.

Longer than the keep-alive, which idle connections of proxies can rely on.
"""


def make_application(options: ServiceOptions, on_failure: Callable[[str], None] | None = None) -> Application:
    """Return the ASGI application of a service; raise if the extra is not installed or the options are wrong."""
    require_extra()
    from kcal.deployment.service.api import Application

    return Application(Service(options, on_failure))


def require_extra() -> None:
    """Raise with the command that installs the extra if it is missing."""
    for name in ("fastapi", "jinja2", "prometheus_client", "uvicorn"):
        if find_spec(name) is None:
            message = f"The service needs {name}, which is not installed. Run: pip install 'kcal[serve]'"
            raise MissingExtraError(message)


def make_server(options: ServiceOptions, on_started: Callable[[str], None] | None = None) -> Any:
    """Return a uvicorn server; ``run()`` serves until a signal, and its ``failure`` says why it stopped by itself.

    ``on_started`` is called with the address when the server listens.
    """
    application = make_application(options, lambda message: server.fail(message))
    import uvicorn

    class Server(uvicorn.Server):
        """A server that reports its address, and stops if its only model cannot be loaded."""

        failure: str | None = None

        async def startup(self, sockets: Any = None) -> None:
            """Begin to listen."""
            await super().startup(sockets=sockets)
            if self.started and on_started is not None:
                on_started(address_of(self))

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Stop at a signal; uvicorn's own would let the signal end the process after the last answer."""
            self.force_exit = self.should_exit and sig == signal.SIGINT
            self.should_exit = True

        async def shutdown(self, sockets: Any = None) -> None:
            """Stop listening, and wait for the requests in flight."""
            application.bodies.stop()
            await super().shutdown(sockets)

        def fail(self, message: str) -> None:
            """Stop, because there is nothing to serve."""
            self.failure, self.should_exit = message, True

    config = uvicorn.Config(
        application,
        http=_protocol_with_timeout(),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )
    server = Server(config)
    return server


def _protocol_with_timeout() -> Any:
    """Return uvicorn's protocol of a connection, closed if no request arrives or no answer is read."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Checks the connection from time to time."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.timer = self.loop.call_later(REQUEST_SECONDS, self.check, self.cycle, 0)

        def check(self, before: Any, unsent_before: int) -> None:
            """Close the connection if it waits for the same request, or to send as much, as at the last check."""
            unsent = self.transport.get_write_buffer_size()
            is_waiting = self.cycle is None or self.cycle.response_complete
            if 0 < unsent_before <= unsent:
                self.transport.abort()  # to close it would wait for the client
            elif is_waiting and self.cycle is before and not unsent:
                self.transport.close()
            else:
                now = self.cycle if is_waiting else self.transport
                self.timer = self.loop.call_later(REQUEST_SECONDS, self.check, now, unsent)

        def connection_lost(self, exc: Exception | None) -> None:
            self.timer.cancel()  # it would keep the connection, and what it has received, in memory
            super().connection_lost(exc)

    return Protocol


def address_of(server: Any) -> str:
    """Return the address at which a server listens."""
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(options: ServiceOptions, on_started: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered before this returns."""
    logging.getLogger("kcal.service").setLevel(logging.INFO)
    server = make_server(options, on_started)
    with closing(listen(options.host, options.port)) as listener:
        server.run(sockets=[listener])
    if server.failure is not None:
        raise KcalError(server.failure)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; raise if it is taken, or not one of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        remedy = "Pass another --port, or end what listens there." if error.errno == errno.EADDRINUSE else ""
        expected = f"must be an address at which this machine can listen ({error.strerror})"
        raise InvalidInputError("--host and --port", expected, got=f"{host}:{port}", remedy=remedy) from None
    return listener
