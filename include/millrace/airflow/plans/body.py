"""A plan as the Markdown that Airflow shows who has to confirm it. Imports nothing of Airflow.

All that comes from people or servers stands as code: the page renders Markdown, and a reason may hold any of it.
"""

from __future__ import annotations

import re

from millrace.domain.formats.printable import printable, printable_lines
from millrace.domain.plans.plan import Facts, Plan

MOST_ROWS = 50


def body_of(plan: Plan) -> str:
    """What a plan would do, who asked and why, as Markdown."""
    parts = [
        f"Plan {code(plan.id)}, requested by {code(plan.by)}, expires {plan.expires:%Y-%m-%d %H:%M} UTC. Reason:",
        code_block(plan.reason),
        _table(("fact", "value"), [(name.replace("_", " "), code(value)) for name, value in plan.about]),
        _table(
            ("change", "subject", "from", "to"),
            [
                (code(change.action), code(change.subject), _facts(change.before), _facts(change.after))
                for change in plan.changes[:MOST_ROWS]
            ],
        ),
    ]
    if (more := len(plan.changes) - MOST_ROWS) > 0:
        parts.append(f"and {more:,} more: `millrace plans show {plan.id}`.")
    parts += [f"**Caution**, {code(change.subject)}: {code(change.unsafe)}" for change in plan.changes if change.unsafe]
    return "\n\n".join(parts)


def code(text: str) -> str:
    """Text as inline code that also stands in a table: on one line, bars escaped, whatever backticks it holds."""
    line = printable(" ".join(text.split())).replace("|", "\\|")
    if not line:
        return ""
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def code_block(text: str) -> str:
    """Text as a block of code that nothing in it can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}text\n{printable_lines(text)}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _facts(values: Facts) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {code(value)}" for name, value in values)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
