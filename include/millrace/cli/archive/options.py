"""How commands ask for records of an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.terminal.output import paragraph

From = Annotated[str | None, typer.Option("--from", help="Start at this time (with its zone) or offset.")]
To = Annotated[str | None, typer.Option("--to", help="End before this time (with its zone) or offset.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Select this partition; offsets need it.")]
Key = Annotated[str | None, typer.Option(help="Select records with this key, as text in UTF-8.")]
KeyBase64 = Annotated[str | None, typer.Option(help="Select records with this key, as bytes.")]
TopicId = Annotated[str | None, typer.Option(help="Choose the archive of a topic that was created again.")]
Store = Annotated[str, typer.Option(help="Use this aws Connection for the bucket.")]


def teller(console: Console | None = None) -> Callable[[str], object]:
    """Says a line as it is: on standard error, or on a console that shows something else there."""
    errors = console or Console(stderr=True)

    def tell(text: str) -> None:
        errors.print(paragraph(f"millrace: {text}"), soft_wrap=True)

    return tell
