"""The DAG that holds the books of a pipeline's sinks."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
)

from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, daily
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.formats.shortened import shortened_lines
from millrace.domain.quality.recompute import MOST_SAMPLED
from millrace.domain.sinks.capabilities import Capability

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.quality.books import Reconciliation
    from millrace.ports.platform import Platform

COUNTS = "counts"
LONGEST = timedelta(hours=12)
"""A run from the first offset on reads all rows there are; none of its statements and reads takes more than minutes."""
TOLD = 50


def books_dag(pipeline: Pipeline) -> DAG:
    """A task a stream that writes to a table: one that is broken, or large, holds up no other."""
    streams = pipeline.able(Capability.BOOKS)
    dag = DAG(
        dag_id=names.books(pipeline),
        description=f"Prove that every record is in the sinks of {pipeline.name} once, daily.",
        doc_md=_doc(pipeline),
        schedule=daily(names.books(pipeline)),
        params={
            "stream": Param(
                default=None,
                type=["null", "string"],
                enum=[None, *(stream.name for stream in streams)],
                title="Stream",
                description="Only this one.",
            ),
            "deep": Param(
                default=False,
                type="boolean",
                title="Deep",
                description="From the first offset on, not from what is proven.",
            ),
            "sample": Param(
                default=0,
                type="integer",
                minimum=0,
                maximum=MOST_SAMPLED,
                title="Sample",
                description="Also make the rows of so many offsets again: for transforms that shuffle.",
            ),
        },
        **common(pipeline.owner, [pipeline.name, "quality"]) | {"max_active_tasks": 2},
    )
    for stream in streams:
        ReconcileBooks(
            task_id=stream.name,
            pipeline=pipeline.name,
            stream=stream.name,
            inlets=[topic_asset(pipeline.kafka, topic) for topic in stream.reads],
            execution_timeout=LONGEST,
            doc_md="Each line of the error is what does not balance. Skipped: another stream was asked for.",
            dag=dag,
            **RETRIED,
        )
    return dag


class ReconcileBooks(BaseOperator):
    """Holds what a stream's sink has against its ledger, from what is proven to the record of work.

    Fails where an offset is missing, doubled or not known; is skipped where nothing was ever written, which is no
    success, and where the form asks for another stream. Its XCom `counts` holds numbers alone.

    Args:
        pipeline: whose stream it is.
        stream: its name there.
    """

    ui_color = "#577590"

    def __init__(self, *, pipeline: str, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline
        self.stream = stream

    def execute(self, context: Context) -> None:
        """What does not balance comes first in the log."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.quality.books import Balance
        from millrace.usecases.quality import books as quality_books

        params = context["params"]
        if params.get("stream") not in (None, "", self.stream):
            raise AirflowSkipException(f"stream {params['stream']} was asked for")
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
            raise AirflowFailException(f"not done within {LONGEST}: {timeout}") from timeout
        for run in done:
            self.log.info("%s", run)
        last = done[-1]
        context["ti"].xcom_push(key=COUNTS, value=counts_of(last))
        if last.balance is Balance.EMPTY:
            raise AirflowSkipException("nothing was ever written: nothing is proven")
        if last.only_waits:
            raise AirflowException(f"witnesses could not be asked: {last.problem}")  # tried again
        if last.left:
            self.log.warning("%d offsets wait for the next run: this one has taken its time", last.left)
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
            self.log.warning("no row is made again: %s", lack.reason)
            return
        found = quality_recompute.recompute(
            platform,
            pipeline,
            stream,
            sample=sample,
            seed=secrets.randbelow(1 << 32),
            progress=lambda done, total: self.log.info("%d of %d offsets made again", done, total),
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


def counts_of(run: Reconciliation) -> dict[str, int | str]:
    """A run over books as numbers, and what came of it."""
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


def _doc(pipeline: Pipeline) -> str:
    rows = "\n".join(f"| `{stream.name}` | {stream.sink.named} |" for stream in pipeline.able(Capability.BOOKS))
    return (
        "Daily, and after each rewind or redrive by form, it proves of every offset that a stream has done, from where "
        "it is proven on, that it is a row, in quarantine, dropped by the transform, or held no record.\n\n"
        f"| stream | writes |\n|---|---|\n{rows}\n\n"
        "Red: the first lines of the log name the offsets, and one alarm of the stream is open until its books balance "
        "or somebody accepts what was found. **Trigger** with `deep` looks from the first offset on, with `sample` it "
        "also makes rows again, but none of a stream that upserts. By hand: "
        f"`millrace quality reconcile {pipeline.name}.STREAM`, `quality accept {pipeline.name}.STREAM --books`."
    )
