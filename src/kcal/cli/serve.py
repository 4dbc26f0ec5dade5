"""The commands ``kcal serve`` and ``kcal token``: a service of calibrated predictions, and who may use it."""

from __future__ import annotations

import gc

from kcal.cli import options


def serve(
    model: options.Served,
    network: options.Network = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    tokens: options.Tokens = None,
    store: options.Store = None,
    complete_store: options.CompleteStore = False,
    max_batch: options.MaxBatch = 256,
    max_wait_ms: options.MaxWait = 2.0,
    max_queue: options.MaxQueue = 1024,
    max_body_mb: options.MaxBody = 64.0,
    recent: options.Recent = 10_000,
    quiet: options.Quiet = False,
) -> None:
    """Serve a model, or a folder of models, over HTTP: Open Inference Protocol v2, feedback, metrics and a page.

    A folder holds NAME.kcal (or NAME.onnx) and NAME/VERSION/FILE.kcal. A model takes embeddings and logits; with
    [cyan]--network[/], or NAME.network.onnx beside NAME.kcal, it takes the inputs of its network. A file that is
    replaced is loaded while the old one answers. With [cyan]--store[/] clients may send labels, and the model follows
    them. The service listens to this machine alone; for another [cyan]--host[/] it needs [cyan]--tokens[/]. Ctrl-C or
    SIGTERM ends it when all requests are answered.

    [bold]Examples[/]

    [green]kcal serve model.kcal --port 8000 --store feedback.db[/]

    [green]kcal serve model.kcal --network network.onnx --store feedback.db[/]
    """
    gc.disable()  # collections would take a fifth of the time of these imports, and free next to nothing
    try:
        from kcal.cli.output import console, shown
        from kcal.deployment.service.server import require_extra

        require_extra()
        from kcal.deployment.service.inference import BatchLimits
        from kcal.deployment.service.runtime import ServiceOptions
        from kcal.deployment.service.server import serve as run
    finally:
        gc.freeze()  # later collections pass over what was imported
        gc.enable()

    limits = BatchLimits(max_batch, max_wait_ms / 1000, max_queue, recent)
    settings = ServiceOptions(
        model,
        host,
        port,
        store,
        complete_store,
        tokens,
        limits,
        int(max_body_mb * 2**20),
        network=network,
    )
    run(settings, None if quiet else lambda address: console().print(shown(f"{model} at {address}"), soft_wrap=True))


def token(
    action: options.TokenAction,
    file: options.TokenFile,
    name: options.TokenName = None,
    scope: options.TokenScopes = None,
) -> None:
    """Make, list and revoke the tokens of a service: create, list or revoke.

    A token is shown once; the file holds its digest. Scopes are predict, feedback, metrics (for
    Prometheus) and admin, which allows everything. A running service sees changes within seconds.

    [bold]Examples[/]

    [green]kcal token create tokens.json --name ward --scope predict --scope feedback[/]

    [green]kcal token revoke tokens.json --name ward[/]
    """
    import typer

    from kcal.cli.messages import check_options
    from kcal.cli.output import console, shown
    from kcal.deployment.service.tokens import SCOPES, create_token, read_tokens, revoke_token

    known = ("create", "list", "revoke")
    check_options((action not in known, f"ACTION must be one of {', '.join(known)}; got {action!r}."))
    check_options((action != "list" and not name, f"{action} needs --name NAME."))
    check_options((action == "create" and not scope, f"create needs --scope, one or more of {', '.join(SCOPES)}."))
    check_options((action == "list" and name, "--name is for create and revoke; list shows all tokens."))
    check_options((action != "create" and scope, f"--scope is for create; {action} has no use for it."))
    if action == "create":
        typer.echo(create_token(file, name or "", scope or ()))
    elif action == "revoke":
        revoke_token(file, name or "")
    else:
        for record in read_tokens(file):
            line = f"{record.name}: {', '.join(record.scopes)}; made {record.created}"
            console().print(shown(line), soft_wrap=True)
