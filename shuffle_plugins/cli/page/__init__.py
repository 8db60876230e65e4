"""``app``: a page on this machine where ε moves with its parameters. None of it imports torch."""

from __future__ import annotations

from typing import Annotated

import typer

from shuffle_plugins.cli.commands import whole_option

_PORT = 8484  # links to a setting work as long as the port is the same


def app_command(
    *,
    port: Annotated[
        int, whole_option("--port PORT", "Port of 127.0.0.1 to serve the page at; 0 for any free one.")
    ] = _PORT,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """A page in your browser, served by this machine alone, where ε moves with sliders for n, k, ε0, T and δ.

    It needs the extra `app`. Nothing is fetched from elsewhere, and nobody else can connect.
    """
    from shuffle_plugins.cli.output import working
    from shuffle_plugins.cli.page.server import serve

    if not 0 <= port < 1 << 16:
        raise typer.BadParameter(f"a port is a whole number in [0, 65535], got {port}", param_hint="--port")
    working.end()
    serve(port=port, browser=browser)
