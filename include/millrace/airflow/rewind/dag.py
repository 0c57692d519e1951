"""The form that rewinds a stream."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from millrace.airflow.plans.form import confirm_task, reason_param, stream_param
from millrace.airflow.plans.operators import RunPlan
from millrace.airflow.quality.dag import books_task
from millrace.airflow.rewind.operators import PlanRewind, VerifyPlan
from millrace.airflow.shared import names
from millrace.airflow.shared.defaults import PATIENT, RETRIED, form
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.rewind.time_travel import EARLIEST, Policy
from millrace.domain.sinks.capabilities import Capability


def rewind_dag(pipeline: Pipeline) -> DAG:
    """Return the form that rewinds a stream. Many runs go at once; a stream decides who is first.

    Streams that write to Kafka or to S3 are not in it.
    """
    dag = DAG(
        dag_id=names.rewind(pipeline),
        description=f"Read part of a stream of {pipeline.name} again: planned, confirmed, run, verified.",
        doc_md=(
            "Press **Trigger** and fill in the form. `plan` says what would be read again and replaced, `confirm` "
            "shows it to you under **Required Actions** and waits, `run` stops the stream, moves its consumer group "
            "and starts it again, `verify` waits until all is read again and looks at the sink, `books` has DAG "
            f"`{names.books(pipeline)}` prove it offset by offset.\n\n"
            "A run belongs to one plan for ever: clearing a task goes on with that plan, and changes nothing once it "
            f"is done. By hand: `millrace streams rewind {pipeline.name}.STREAM --to TIME --reason ...`, and "
            "`millrace plans abort ID` takes it back while nothing was read again."
        ),
        params={
            "stream": stream_param(pipeline.able(Capability.REWIND), preset=True),
            "to": Param(
                type="string",
                minLength=len(EARLIEST),
                title="To",
                description="A time with its zone, as 2026-05-01T08:00:00+02:00, or earliest.",
            ),
            "policy": Param(
                default=Policy.FAIL.value,
                type="string",
                enum=[policy.value for policy in Policy],
                title="Policy",
                description="Where a log begins after the time: fail, or read it from its earliest record.",
            ),
            "reason": reason_param(),
        },
        **form(pipeline.owner, [pipeline.name, "rewind"], at_once=16),
    )
    plan = PlanRewind(
        task_id="plan",
        pipeline=pipeline.name,
        doc_md="Stores what would be done; changes nothing. Cleared, it finds the plan of this run.",
        dag=dag,
        **RETRIED,
    )
    confirm = confirm_task(dag)
    run = RunPlan(
        task_id="run",
        doc_md="Ends when the stream runs from where it was put. Cleared, it goes on where it stood.",
        dag=dag,
        **PATIENT,
    )
    verify = VerifyPlan(
        task_id="verify",
        mode="reschedule",
        poke_interval=timedelta(seconds=15),
        doc_md="Ends when all is read again and no row of before lies in the range.",
        dag=dag,
        **PATIENT,
    )
    plan >> confirm >> run >> verify >> books_task(dag, pipeline, after="rewind")
    return dag
