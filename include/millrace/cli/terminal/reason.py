"""The reason that whoever changes something gives, asked for here as in Airflow's form."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.domain.streams.control import SHORTEST_REASON
from millrace.errors import UsageError


def _long_enough(reason: str) -> str:
    text = reason.strip()
    if len(text) < SHORTEST_REASON:
        raise UsageError(
            f"a reason has at least {SHORTEST_REASON} characters, this one has {len(text)}",
            where="--reason",
            next_step="give a reason of a few words, for the action log",
        )
    return text


Reason = Annotated[
    str,
    typer.Option("--reason", callback=_long_enough, help="Give the reason, for the action log.", show_default=False),
]


def _long_enough_if_given(reason: str | None) -> str | None:
    return None if reason is None else _long_enough(reason)


OptionalReason = Annotated[
    str | None,
    typer.Option(
        "--reason", callback=_long_enough_if_given, help="Give the reason, for the action log.", show_default=False
    ),
]
"""For a command of which one form changes something and another only looks."""
