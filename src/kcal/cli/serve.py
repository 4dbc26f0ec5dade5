"""The commands ``kcal serve`` and ``kcal token``: a service of calibrated predictions, and who may use it."""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec

import typer

from kcal.cli import options
from kcal.cli.output import Result, console, line, shown


@options.takes(options.SERVICE)
def serve(model: options.Served, **shared: options.Shared) -> None:
    """Serve a model, or a folder of models: Open Inference Protocol v2 over HTTP and gRPC, feedback and a dashboard.

    A folder holds NAME.kcal of each model. A model takes embeddings and logits; with [cyan]--network[/], or
    NAME.network.onnx beside NAME.kcal, it takes the inputs of its network. A file that is replaced is loaded while the
    old one responds. With [cyan]--store[/] clients may send labels, and a KCal or a blend learns from them. The service
    listens to this machine alone; for another [cyan]--host[/] it needs [cyan]--tokens[/]. Ctrl-C or SIGTERM ends it
    when all requests are answered.

    [bold]Examples[/]

    [green]kcal serve model.kcal --port 8000 --store feedback.db[/]

    [green]kcal serve model.kcal --network network.onnx --store feedback.db[/]
    """
    from kcal.errors import MissingExtraError

    packages = {"grpc": "grpc"} if shared["grpc_port"] is not None else {}
    packages |= dict.fromkeys(("fastapi", "prometheus_client", "uvicorn"), "serve")
    for name, extra in packages.items():
        if find_spec(name) is None:
            message = f"The service needs {name}, which is not installed. Run: pip install 'kcal[{extra}]'"
            raise MissingExtraError(message)
    gc.disable()  # collections would take a fifth of the time of these imports, and free next to nothing
    try:
        from kcal.serving import app
        from kcal.serving.service import Settings
    finally:
        gc.freeze()  # later collections pass over what was imported
        gc.enable()

    quiet = shared.pop("quiet")
    given = {name: value for name, value in shared.items() if value is not None}
    if "max_wait_ms" in given:
        given["max_wait"] = given.pop("max_wait_ms") / 1000
    if "max_body_mb" in given:
        given["max_body"] = int(given.pop("max_body_mb") * 2**20)
    settings = Settings(model, store_is_complete=given.pop("complete_store"), **given)

    def show(address: str) -> None:
        console().print(shown(f"{model} at {address}"), soft_wrap=True)

    if app.serve(settings, None if quiet else show):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a search goes on in a thread, which the interpreter would wait for


@options.takes(options.OUTPUT)
def token_create(
    path: options.TokenFile, name: options.TokenName, scope: options.TokenScopes, **shared: options.Shared
) -> Result:
    """Make a token and show it, once: the file holds its digest alone.

    Scopes are predict, feedback, metrics (for Prometheus) and admin, which allows everything.

    [bold]Example[/]

    [green]kcal token create tokens.json --name ward --scope predict --scope feedback[/]
    """
    from kcal.serving.tokens import create_token

    made = create_token(path, name, scope)
    if shared["json_file"] != "-":
        typer.echo(made)  # with --quiet, too: it can be shown only now
    return Result({"name": name, "scopes": scope, "token": made}, lambda: None)


@options.takes(options.OUTPUT)
def token_list(path: options.TokenFile, **shared: options.Shared) -> Result:
    """Show the names and scopes of all tokens of a file."""
    from kcal.serving.tokens import read_tokens

    records = [{"name": one.name, "scopes": list(one.scopes), "created": one.created} for one in read_tokens(path)]
    lines = [f"{one['name']}: {', '.join(one['scopes'])}; made {one['created']}" for one in records] or ["no tokens"]
    return Result(records, lambda: console().print("\n".join(map(shown, lines)), soft_wrap=True))


@options.takes(options.OUTPUT)
def token_revoke(path: options.TokenFile, name: options.TokenName, **shared: options.Shared) -> Result:
    """End a token; a running service sees it within seconds."""
    from kcal.serving.tokens import revoke_token

    revoke_token(path, name)
    return line(f"{name}: revoked", revoked=name)
