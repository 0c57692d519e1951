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
        description=f"Rewind a stream of {pipeline.name}: plan, confirm, run, verify.",
        doc_md=(
            "Press **Trigger** and fill in the form. Task `plan` finds the records to read again and the rows to "
            "replace. Task `confirm` shows the plan to you under **Required Actions** and waits. Task `run` stops the "
            "stream, moves its consumer group and starts it again. Task `verify` waits until everything is read again "
            f"and checks the sink. Task `books` triggers DAG `{names.books(pipeline)}`, which proves the result offset "
            "by offset.\n\n"
            "A run belongs to one plan for ever: a task that you clear resumes that plan, and changes nothing once the "
            f"plan is done. By hand: `millrace streams rewind {pipeline.name}.STREAM --to TIME --reason ...`. "
            "`millrace plans abort ID` reverts it as long as nothing has been read again."
        ),
        params={
            "stream": stream_param(pipeline.able(Capability.REWIND), preset=True),
            "to": Param(
                type="string",
                minLength=len(EARLIEST),
                title="To",
                description="A time with its zone, such as 2026-05-01T08:00:00+02:00, or earliest.",
            ),
            "policy": Param(
                default=Policy.FAIL.value,
                type="string",
                enum=[policy.value for policy in Policy],
                title="Policy",
                description="If a log begins after the time: fail, or read from its earliest record.",
            ),
            "reason": reason_param(),
        },
        **form(pipeline.owner, [pipeline.name, "rewind"], at_once=16),
    )
    plan = PlanRewind(
        task_id="plan",
        pipeline=pipeline.name,
        doc_md="Stores a plan and changes nothing. If it is cleared, it finds the plan of this run.",
        dag=dag,
        **RETRIED,
    )
    confirm = confirm_task(dag)
    run = RunPlan(
        task_id="run",
        doc_md="Ends when the stream runs from its new position. If it is cleared, it resumes the plan.",
        dag=dag,
        **PATIENT,
    )
    verify = VerifyPlan(
        task_id="verify",
        mode="reschedule",
        poke_interval=timedelta(seconds=15),
        doc_md="Ends when everything is read again and the range has no old row.",
        dag=dag,
        **PATIENT,
    )
    plan >> confirm >> run >> verify >> books_task(dag, pipeline, after="rewind")
    return dag
