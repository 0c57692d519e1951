"""`millrace compose`: the embedded stack as containers, written down for Docker Compose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.terminal.output import emit, paragraph
from millrace.settings import project_root

if TYPE_CHECKING:
    from rich.console import Console

CheckOnly = Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file would change.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def compose(check: CheckOnly = False, as_json: AsJson = False) -> None:
    """Write docker-compose.yaml, two Dockerfiles and, once, the passwords they use."""
    from millrace.embedded.compose import file as files
    from millrace.embedded.compose import secrets as compose_secrets

    root = project_root()
    states: dict[str, str] = {}
    for name, text in files.generated_files().items():
        path = root / name
        same = path.exists() and path.read_text(encoding="utf-8") == text
        states[name] = "as it should be" if same else "differs" if check else "written"
        if not same and not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    document: dict[str, object] = {"schema": "millrace.compose/1", "files": states}
    new = False
    if not check:
        folder, new = compose_secrets.write(root)
        states[f"{folder.relative_to(root)}/"] = "passwords made" if new else "passwords kept"
    else:
        stale = [name for name, state in states.items() if state == "differs"]
        document["fine"] = not stale

    def show(console: Console) -> None:
        for name, state in states.items():
            console.print(paragraph(f"{name:<28} {state}"), soft_wrap=True)
        if not check and new:
            console.print("Volumes with other passwords do not accept these passwords.", highlight=False)
        if not check:
            console.print(paragraph("Next:  docker compose up --build --detach"), soft_wrap=True)

    emit(document, as_json=as_json, text=show)
    if check and stale:
        raise typer.Exit(1)
