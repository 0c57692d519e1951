"""Plans for people and as JSON documents: used by every command that makes, shows or runs one."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, lines
from millrace.domain.plans.plan import Facts, Outcome, Plan, StoredPlan
from millrace.usecases.plans.kinds import kind_of

_MOST_TOLD = 20  # facts of a step


def plan_document(plan: Plan, *, stored: bool) -> dict[str, object]:
    """A plan as JSON. `id` is null for one that was not stored: it cannot be run."""
    return {
        "id": plan.id if stored else None,
        "kind": plan.kind,
        "target": plan.target,
        "cluster_id": plan.cluster_id,
        "connection": plan.connection,
        "hash": plan.hash,
        "created": plan.created,
        "expires": plan.expires,
        "by": plan.by,
        "reason": plan.reason,
        "about": dict(plan.about),
        "seen": {subject: dict(values) for subject, values in plan.seen.items()},
        "changes": [
            {
                "action": change.action,
                "subject": change.subject,
                "before": dict(change.before),
                "after": dict(change.after),
                "unsafe": change.unsafe,
            }
            for change in plan.changes
        ],
        "refusals": list(plan.refusals),
    }


def stored_document(stored: StoredPlan) -> dict[str, object]:
    """A stored plan and what came of it, as JSON. `asked` is null where it was not asked for by a form of Airflow."""
    asked = stored.asked
    return plan_document(stored.plan, stored=True) | {
        "status": stored.status,
        "finished_at": stored.finished_at,
        "asked": asked and {"run": asked.run, "shown": asked.shown, "confirmed_by": asked.by, "confirmed_at": asked.at},
        "results": list(stored.results),
        "steps": [
            {"step": step.name, "begun_at": step.begun_at, "done_at": step.done_at, "detail": dict(step.detail)}
            for step in stored.steps
        ],
    }


def print_plan(console: Console, plan: Plan) -> None:
    """The changes and refusals of a plan."""
    if not plan.changes and not plan.refusals:
        console.print(Text(f"{plan.target}: nothing to change"))
        return
    if plan.changes:
        table = Table(title=kind_of(plan).describe(plan), title_justify="left")
        for heading in ("change", "subject", "from", "to"):
            table.add_column(heading, overflow="fold")
        for change in plan.changes:
            before, after = _cells(change.before, change.after)
            table.add_row(Text(change.action), Text(change.subject), lines(before), lines(after))
        console.print(table)
    for name, text in plan.about:
        console.print(Text(f"  {name.replace('_', ' ')}: {text}"), soft_wrap=True)
    for change in plan.changes:
        if change.unsafe:
            console.print(Text(f"caution: {change.subject}: {change.unsafe}", style="yellow"), soft_wrap=True)
    for refusal in plan.refusals:
        console.print(Text(f"refused: {refusal.subject}: {refusal.what}", style="red"), soft_wrap=True)
        console.print(Text(f"  next: {refusal.next_step}"), soft_wrap=True)


def print_stored(console: Console, stored: StoredPlan) -> None:
    """A stored plan and what came of it."""
    print_plan(console, stored.plan)
    ended = f" at {stored.finished_at:%Y-%m-%d %H:%M:%S} UTC" if stored.finished_at else ""
    console.print(Text(f"plan {stored.plan.id}: {stored.status.value}{ended}"))
    if asked := stored.asked:
        confirmed = f"confirmed by {asked.by} at {asked.at:%Y-%m-%d %H:%M:%S} UTC" if asked.at else "not confirmed"
        console.print(Text(f"  asked for in {asked.run}: {confirmed}"), soft_wrap=True)
    for step in stored.steps:
        told = ", ".join(map(_fact, step.detail)) if len(step.detail) <= _MOST_TOLD else ""
        state = "done" if step.done_at else "started, outcome unknown"
        console.print(Text(f"  {step.name}: {state}{f' ({told})' if told else ''}"), soft_wrap=True)
    for result in stored.results:
        style = "red" if result.outcome is Outcome.FAILED else ""
        line = f"  {result.outcome.value}: {result.action} {result.subject}"
        console.print(Text(f"{line}: {result.error}" if result.error else line, style=style), soft_wrap=True)


def _cells(before: Facts, after: Facts) -> tuple[list[str], list[str]]:
    """What was and what shall be, key by key; what was seen but does not change is left out."""
    wanted = {key: value for key, value in after if key != "exists"}
    seen = {key: value for key, value in before if key in wanted}
    return [_fact(each) for each in seen.items()], [_fact(each) for each in wanted.items()]


def _fact(item: tuple[str, str]) -> str:
    key, value = item
    return f"{key.removeprefix('config.')}: {value}"
