"""The operators of the DAGs that check the quality of what a stream wrote, and hold the books of its sink."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
)

from millrace.airflow.shared import names
from millrace.domain.formats.shortened import shortened_lines
from millrace.domain.sinks.capabilities import Capability

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.declaration.pipeline import Pipeline
    from millrace.domain.quality.books import Reconciliation
    from millrace.ports.platform import Platform
    from millrace.usecases.quality.check import Checked

COUNTS = "counts"
LONGEST_RECONCILIATION = timedelta(hours=12)
"""A run from the first offset on reads all rows there are; none of its statements and reads takes more than minutes."""
TOLD = 50


class _OfStream(BaseOperator):
    """An operator for one stream of a pipeline."""

    ui_color = "#577590"

    def __init__(self, *, pipeline: str, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline
        self.stream = stream


class CheckQuality(_OfStream):
    """Holds a stream's table against its rules.

    Fails where a rule of severity fail is broken or could not be tried, and is skipped where there were no rows. Its
    XCom `counts` holds numbers alone; its log names rules, counts and sources, never a value of a row.

    Args:
        pipeline: whose stream it is.
        stream: its name there.
    """

    def execute(self, context: Context) -> None:
        """What is wrong comes first in the log; then what is told, and each rule."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.quality.results import Verdict
        from millrace.usecases.quality import check as quality

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        stream = pipeline.stream(self.stream)
        actor = f"dag:{names.quality(stream)}"
        done = quality.check_on(platform, pipeline, stream, actor=actor, window=_window(context))
        for checked in done:
            self._tell(checked)
        context["ti"].xcom_push(key=COUNTS, value=counts_of(done[-1]))
        found, verdict = done[-1].check, quality.verdict_on(done)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            lines = [f"nothing could be checked: {found.problem}"] if found.problem else list(map(str, found.red))
            raise AirflowFailException("\n".join(lines))
        if verdict is Verdict.EMPTY:
            raise AirflowSkipException("the check found no rows, so nothing is proven")

    def _tell(self, checked: Checked) -> None:
        from millrace.domain.formats.durations import roughly

        self.log.info("%s", checked.check)
        for line in checked.new:
            self.log.error("%s", line)
        for line in (*checked.known, *checked.warned):
            self.log.warning("%s", line)
        for result in checked.check.results:
            self.log.info("%s", result)
        if checked.check.freshness is not None:
            for part, age in checked.check.freshness.parts:
                self.log.info("%s: %s", part, roughly(age))
        for key in checked.check.evidence:
            self.log.info("evidence: %s", key)
        if checked.evidence_problem:
            self.log.warning("%s", checked.evidence_problem)


class ReconcileBooks(_OfStream):
    """Holds what a stream's sink has against its ledger, from what is proven to the record of work.

    Fails where an offset is missing, doubled or not known; is skipped where nothing was ever written, which is no
    success, and where the form asks for another stream. Its XCom `counts` holds numbers alone.

    Args:
        pipeline: whose stream it is.
        stream: its name there.
    """

    def execute(self, context: Context) -> None:
        """What does not balance comes first in the log."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.quality.books import Balance
        from millrace.usecases.quality import books as quality_books

        params = context["params"]
        if params.get("stream") not in (None, "", self.stream):
            raise AirflowSkipException(f"the form names stream {params['stream']}")
        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        try:
            done = quality_books.reconcile_on(
                platform,
                pipeline,
                pipeline.stream(self.stream),
                actor=f"dag:{names.books(pipeline)}",
                deep=bool(params.get("deep")),
                progress=lambda text: self.log.info("%s", text),
            )
        except AirflowTaskTimeout as timeout:  # another try would take as long
            raise AirflowFailException(f"the run did not end within {LONGEST_RECONCILIATION}: {timeout}") from timeout
        for run in done:
            self.log.info("%s", run)
        last = done[-1]
        context["ti"].xcom_push(key=COUNTS, value=counts_of_books(last))
        if last.balance is Balance.EMPTY:
            raise AirflowSkipException("the stream has written nothing yet, so nothing is proven")
        if last.only_waits:
            raise AirflowException(f"the witnesses did not answer: {last.problem}")  # tried again
        if last.left:
            self.log.warning("%d offsets are left for the next run: this run reached its time limit", last.left)
        if last.balance is not Balance.BALANCED:
            raise AirflowFailException("\n".join(shortened_lines(last.findings, TOLD)))
        if sample := int(params.get("sample") or 0):
            self._make_again(platform, pipeline, sample)

    def _make_again(self, platform: Platform, pipeline: Pipeline, sample: int) -> None:
        """Make the rows of so many offsets again, by chance; red where one differs, or there is nothing to compare.

        Of a stream that upserts none is made: the log says so.
        """
        from millrace.domain.quality.recompute import Likeness
        from millrace.usecases.quality import recompute as quality_recompute

        stream = pipeline.stream(self.stream)
        if (lack := stream.lack(Capability.RECOMPUTE)) is not None:
            self.log.warning("no row is recomputed: %s", lack.reason)
            return
        found = quality_recompute.recompute(
            platform,
            pipeline,
            stream,
            sample=sample,
            seed=secrets.randbelow(1 << 32),
            progress=lambda done, total: self.log.info("%d of %d offsets recomputed", done, total),
        )
        self.log.info("%s", found)
        if found.likeness is not Likeness.ALIKE:
            raise AirflowFailException("\n".join([str(found), *found.differences]))


class TriggerBooks(BaseOperator):
    """Has the books looked at of the stream that its own run's form names; does not wait for what that finds.

    Airflow's own operator for this would bring its whole database layer into each parse of a DAG file.

    Args:
        books: the DAG that looks at them.
        after: what was done to the stream, in one word; the id of the run that is triggered begins with it.
    """

    ui_color = "#577590"

    def __init__(self, *, books: str, after: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.books = books
        self.after = after

    def execute(self, context: Context) -> None:
        """Cleared, it triggers another run."""
        now = datetime.now(UTC).isoformat()
        raise DagRunTriggerException(
            trigger_dag_id=self.books,
            dag_run_id=f"after_{self.after}__{now}",
            conf={"stream": context["params"]["stream"]},
            reset_dag_run=False,
            skip_when_already_exists=False,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=0,
            deferrable=False,
        )


def counts_of(checked: Checked) -> dict[str, int | str]:
    """Return a check as numbers, and its verdict."""
    from millrace.domain.quality.results import Outcome

    found = checked.check
    count = {outcome: sum(result.outcome is outcome for result in found.results) for outcome in Outcome}
    return {
        "check": found.identity or 0,
        "verdict": found.verdict.value,
        "rows": found.rows or 0,
        "passed": count[Outcome.PASSED],
        "failed": sum(result.outcome is Outcome.FAILED for result in found.red),
        "warned": len(found.warned),
        "errors": count[Outcome.ERROR],
        "skipped": count[Outcome.SKIPPED],
    }


def counts_of_books(run: Reconciliation) -> dict[str, int | str]:
    """Return a run over books as numbers, and what came of it."""
    sums = run.sums
    return {
        "run": run.identity or 0,
        "balance": run.balance.value,
        "offsets": sums.offsets,
        "rows": sums.rows,
        "quarantined": sums.quarantined,
        "dropped": sums.dropped,
        "gaps": sums.gaps,
        "left": run.left,
        **{fault.value: count for fault, count in run.faults.items()},
    }


def _window(context: Context) -> tuple[datetime, datetime] | None:
    """The time that the form asks for; None: what was gained."""
    from millrace.domain.rewind.time_travel import WrongTimeError, parse_window

    params = context["params"]
    try:
        return parse_window(params.get("from") or None, params.get("to") or None, datetime.now(UTC))
    except WrongTimeError as error:
        raise AirflowFailException(str(error)) from error
