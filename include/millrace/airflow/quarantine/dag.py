"""The form that puts records in quarantine through a stream's app once more."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from millrace.airflow.plans.form import confirm_task, reason_param, stream_param
from millrace.airflow.plans.operators import RunPlan
from millrace.airflow.quality.dag import books_task
from millrace.airflow.quarantine.operators import PlanRedrive
from millrace.airflow.shared import names
from millrace.airflow.shared.defaults import PATIENT, RETRIED, form
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.quarantine.rules import Rule
from millrace.domain.sinks.capabilities import Capability


def redrive_dag(pipeline: Pipeline) -> DAG:
    """Return the form that redrives records. Many runs go at once; a stream decides who is first.

    Streams that upsert, or write to Kafka or to S3, are not in it.
    """
    dag = DAG(
        dag_id=names.redrive(pipeline),
        description=f"Redrive quarantined records of {pipeline.name}: plan, confirm, run.",
        doc_md=_doc(pipeline),
        params={
            "stream": stream_param(pipeline.able(Capability.REDRIVE), preset=True),
            "rule": Param(
                default=None,
                type=["null", "string"],
                enum=[None, *(rule.value for rule in Rule)],
                title="Rule",
                description="Only records that broke this rule.",
            ),
            "since": Param(
                default=None,
                type=["null", "string"],
                title="Since",
                description="Only records that went to quarantine since this time. Give its zone, as in "
                "2026-05-01T08:00:00+02:00.",
            ),
            "offsets": Param(
                default=None,
                type=["null", "string"],
                title="Offsets",
                description="Only these offsets: TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@FIRST-LAST, LAST included. "
                "Separate several with spaces or commas.",
            ),
            "reason": reason_param(),
        },
        **form(pipeline.owner, [pipeline.name, "redrive"], at_once=16),
    )
    plan = PlanRedrive(
        task_id="plan",
        pipeline=pipeline.name,
        doc_md="Tries each record, which may take minutes, and stores the result as a plan. Changes nothing. If it is "
        "cleared, it finds the plan of this run.",
        dag=dag,
        **RETRIED,
    )
    confirm = confirm_task(dag)
    run = RunPlan(
        task_id="run",
        doc_md="Ends when the plan is done or failed; the log names failures. If it is cleared, it resumes the plan.",
        dag=dag,
        **PATIENT,
    )
    plan >> confirm >> run >> books_task(dag, pipeline, after="redrive")
    return dag


def _doc(pipeline: Pipeline) -> str:
    return (
        "Press **Trigger** and fill in the form. Without rule, time and offsets it selects all quarantined records of "
        "the stream. Task `plan` tries each record with the present app and predicts the result. Task `confirm` shows "
        "the plan to you under **Required Actions** and waits. Task `run` redrives the records and checks the books of "
        f"the records that it touched. Task `books` triggers DAG `{names.books(pipeline)}` for the stream. A record "
        "that fails again stays in quarantine, with its former and its new reason.\n\n"
        "A run belongs to one plan for ever: a task that you clear resumes that plan, and changes nothing once the "
        f"plan is done. By hand: `millrace quarantine redrive {pipeline.name}.STREAM --reason ...`, then "
        "`millrace plans run ID`."
    )
