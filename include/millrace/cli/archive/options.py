"""How commands ask for records of an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.terminal.output import paragraph

From = Annotated[str | None, typer.Option("--from", help="A time with its zone, or an offset: records from there on.")]
To = Annotated[str | None, typer.Option("--to", help="A time with its zone, or an offset: records before it.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this one; offsets need it.")]
Key = Annotated[str | None, typer.Option(help="Only records whose key is this text in UTF-8.")]
KeyBase64 = Annotated[str | None, typer.Option(help="Only records whose key is these bytes.")]
TopicId = Annotated[str | None, typer.Option(help="Of a topic that was made again: which one.")]
Store = Annotated[str, typer.Option(help="The aws Connection that leads to the bucket.")]


def teller(console: Console | None = None) -> Callable[[str], object]:
    """Says a line as it is: on standard error, or on a console that shows something else there."""
    errors = console or Console(stderr=True)

    def tell(text: str) -> None:
        errors.print(paragraph(f"millrace: {text}"), soft_wrap=True)

    return tell
