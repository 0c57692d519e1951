"""The DAGs of one pipeline, made from its declaration: `globals().update(pipeline_dags("shop"))`."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, TriggerRule

from millrace.airflow.plans.form import confirm_task, reason_param, stream_param
from millrace.airflow.plans.operators import RunPlan
from millrace.airflow.quality.books import TriggerBooks, books_dag
from millrace.airflow.quality.dag import quality_dag
from millrace.airflow.quarantine.dag import redrive_dag
from millrace.airflow.retention.dag import retention_dag
from millrace.airflow.rewind.operators import PlanRewind, VerifyPlan
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import PATIENT, RETRIED, common, daily, hourly
from millrace.airflow.shared.settings import airflow_root
from millrace.airflow.streams.operators import (
    AuditArchive,
    LoadSource,
    OperateStream,
    ProvisionTopics,
    WatchRunning,
    WatchStuck,
    WatchWaiting,
)
from millrace.declarations import load_pipeline
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import App, BackupApp, Manage, Pipeline, SourceProgram, Stream, Topic
from millrace.domain.rewind.time_travel import EARLIEST, Policy
from millrace.domain.streams.watch import WAITING, WatchTask

ACTIONS = ("start", "stop", "accept-recreated", "adopt")
WAITING_DOCS = {
    WatchTask.STOPPED: "Stopped as wanted. Skipped where it is not.",
    WatchTask.BACKING_OFF: "It ended by itself and is started again; the log says when, and why it ended.",
    WatchTask.GIVEN_UP: "It is not started again until an operator does; the log says why.",
}
BACKUP_DOC = " `backup` is what copies topics to the archive; of a topic that was made again it has nothing to accept."


def pipeline_dags(name: str) -> dict[str, DAG]:
    """Every DAG of a pipeline by its id.

    Guarantees: one YAML file and those that refer to it are read, no server is asked, and the same declaration
    gives the same DAGs, byte by byte.

    Raises:
        InvalidDeclarationError: the declaration has errors. Airflow shows them as one import error of this file.
        UsageError: there is no such pipeline.
    """
    pipeline = load_pipeline(airflow_root(), name)
    made = [_topics_dag(pipeline)]
    if pipeline.topics:
        made.append(retention_dag(pipeline))
    made += [_source_dag(pipeline, source) for source in pipeline.sources]
    made += [_watch_dag(pipeline, stream, "stream", _stream_doc(stream)) for stream in pipeline.streams]
    if pipeline.backup:
        made.append(_watch_dag(pipeline, pipeline.backup, "backup", _backup_doc(pipeline.backup)))
        made.append(_audit_dag(pipeline, pipeline.backup))
    if pipeline.apps:
        made.append(_operate_dag(pipeline))
    if pipeline.tabled:
        made.append(_rewind_dag(pipeline))
        if pipeline.redrivable:
            made.append(redrive_dag(pipeline))
        made.append(books_dag(pipeline))
    made += [quality_dag(pipeline, stream, stream.quality) for stream in pipeline.tabled if stream.quality is not None]
    return {dag.dag_id: dag for dag in made}


def _topics_dag(pipeline: Pipeline) -> DAG:
    managed = [topic for topic in pipeline.topics if topic.manage is Manage.FULL]
    dag = DAG(
        dag_id=names.topics(pipeline),
        description=f"Keep the topics of {pipeline.name} as declared.",
        doc_md=_topics_doc(pipeline),
        schedule=daily(pipeline.name),
        **common(pipeline.owner, [pipeline.name, "topics"]),
    )
    ProvisionTopics(
        task_id="provision",
        pipeline=pipeline.name,
        outlets=[topic_asset(pipeline.kafka, topic.name) for topic in managed],
        doc_md="Makes what is safe to make and fails on what is not, naming each.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _topics_doc(pipeline: Pipeline) -> str:
    rows = "\n".join(f"| `{topic.name}` | {topic.manage.value} | {_partitions(topic)} |" for topic in pipeline.topics)
    return (
        f"Looks daily at the topics of **{pipeline.name}** and makes them as declared, where that loses nothing. "
        "What it may not do by itself makes this run fail and is named in its log.\n\n"
        "**A topic that is not there is made when you press Trigger**, never by a scheduled run, which names it in its "
        "log as a warning.\n\n"
        f"| topic | managed | partitions |\n|---|---|---|\n{rows}\n\n"
        f"By hand: `millrace topics plan {pipeline.name}`, then `millrace plans run ID`."
    )


def _partitions(topic: Topic) -> str:
    return str(topic.partitions or "as it is")


def _source_dag(pipeline: Pipeline, source: SourceProgram) -> DAG:
    dag = DAG(
        dag_id=names.source(source),
        description=f"Load {source.name} into {source.writes}.",
        doc_md=(
            f"Runs `sources/{source.program}.py` and writes the records that topic `{source.writes}` does not hold "
            "yet. Running it again, killing it, or running it twice at once doubles nothing."
        ),
        schedule=None,
        **common(pipeline.owner, [pipeline.name, "source"]),
    )
    LoadSource(
        task_id="load",
        pipeline=pipeline.name,
        source=source.name,
        outlets=[topic_asset(pipeline.kafka, source.writes)],
        doc_md="Repeatable without doubling.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _watch_dag(pipeline: Pipeline, app: App, kind: str, doc: str) -> DAG:
    """One watch of one epoch a run. Scheduled runs only: a run by hand would stay queued behind the watch.

    Args:
        pipeline: whose app it is.
        app: what is watched.
        kind: what people call it, and its tag: stream or backup.
        doc: about it.
    """
    name = app.qualified_name
    dag = DAG(
        dag_id=names.app(app),
        description=f"Keep {kind} {name} as wanted, and watch it.",
        doc_md=doc,
        schedule="@continuous",
        allowed_run_types=["scheduled"],
        **common(pipeline.owner, [pipeline.name, kind]),
    )
    waiting = [
        WatchWaiting(task_id=task.value, waiting=task.value, stream=name, doc_md=WAITING_DOCS[task], dag=dag)
        for task in WAITING
    ]
    running = WatchRunning(
        task_id=WatchTask.RUNNING.value,
        stream=name,
        trigger_rule=TriggerRule.NONE_FAILED,  # of the three before it at least two are skipped
        inlets=[topic_asset(pipeline.kafka, topic) for topic in app.reads],
        doc_md="Its app lives. Success: it stopped as asked, or is stuck. Failed: it died; the log says why.",
        dag=dag,
    )
    stuck = WatchStuck(
        task_id=WatchTask.STUCK.value,
        stream=name,
        doc_md="Its app lives and does not move; the log says what it waits for. Success: it moves again.",
        dag=dag,
    )
    waiting >> running >> stuck
    return dag


def _stream_doc(stream: Stream) -> str:
    reads = ", ".join(f"`{topic}`" for topic in stream.reads)
    return (
        f"A run is one watch of one start of **{stream.qualified_name}**, which reads {reads} and writes "
        f"{stream.sink.named}. The task that is deferred says how the stream is; its log says why.\n\n"
        + _tasks_doc(stream, "stream", ", or accepts a recreated topic")
    )


def _backup_doc(backup: BackupApp) -> str:
    rows = "\n".join(f"| `{topic.name}` | {_kept(topic)} |" for topic in backup.topics)
    return (
        f"A run is one watch of one start of **{backup.qualified_name}**, which copies every record of these topics to "
        "the archive, once. The task that is deferred says how the backup is; its log says why.\n\n"
        f"| topic | kept in the archive |\n|---|---|\n{rows}\n\n" + _tasks_doc(backup, "backup", "")
    )


def _audit_dag(pipeline: Pipeline, backup: BackupApp) -> DAG:
    """A task a topic: one that is broken, or large, holds up no other."""
    dag = DAG(
        dag_id=names.backup_audit(pipeline),
        description=f"Prove the backup of {pipeline.name}, hourly; once a day closely.",
        doc_md=(
            f"Holds the archive that **{backup.qualified_name}** writes against the topics, a task a topic: the chain, "
            "its objects, the log. Once a day a task looks deep: it walks the whole chain, reads what is new, of the "
            "rest a thirtieth, and holds a sample against Kafka.\n\n"
            "Red: something is broken, lost without somebody's knowledge, or waits for longer than `max_lag`; the "
            "first lines of the log name the offsets, and one alarm a kind is open until it is over. Evidence lies in "
            "the bucket under `audit/TOPIC/`. By hand: `millrace backup audit [TOPIC] --deep`."
        ),
        schedule=hourly(names.backup_audit(pipeline)),
        **common(pipeline.owner, [pipeline.name, "backup"]) | {"max_active_tasks": 2},
    )
    for topic in backup.topics:
        AuditArchive(
            task_id=topic.name,
            pipeline=pipeline.name,
            topic=topic.name,
            inlets=[topic_asset(pipeline.kafka, topic.name)],
            doc_md="Repeatable: each try is an audit of its own.",
            dag=dag,
            **RETRIED,
        )
    return dag


def _kept(topic: Topic) -> str:
    keep = topic.backup.keep if topic.backup else None
    return f"for {spell_duration(keep)} at least" if keep else "for ever"


def _tasks_doc(app: App, kind: str, or_else: str) -> str:
    return (
        f"| task | the {kind} |\n|---|---|\n"
        "| `stopped` | is stopped as wanted, or belongs to another host |\n"
        "| `backing_off` | ended by itself and is started again when its time has come |\n"
        f"| `given_up` | is not started again until an operator starts it{or_else} |\n"
        "| `running` | has a living app; failed: the app died |\n"
        "| `stuck` | has a living app that does not move |\n\n"
        "Clearing, failing, marking or deleting anything here, or pausing this DAG, neither stops nor doubles the "
        f"app. To start or stop it use the form of DAG `{app.pipeline}.operate`, or "
        f"`millrace streams start|stop {app.qualified_name} --reason ...`."
    )


def _operate_dag(pipeline: Pipeline) -> DAG:
    dag = DAG(
        dag_id=names.operate(pipeline),
        description=f"Start, stop, accept or adopt a stream of {pipeline.name}: press Trigger and fill in the form.",
        doc_md=(
            "Press **Trigger**. `start` also forgets past failures; `stop` lets the app finish its batch; "
            "`accept-recreated` lets the next start read a topic that was deleted and made again; `adopt` takes over a "
            "stream whose host is lost, or that is stopped there. Who, what and why "
            "goes to the action log: `millrace log`." + (BACKUP_DOC if pipeline.backup else "")
        ),
        schedule=None,
        allowed_run_types=["manual"],
        params={
            "stream": stream_param(pipeline.apps),
            "action": Param(
                type="string",
                enum=list(ACTIONS),
                title="Action",
                description="start also forgets past failures; stop lets the app finish its batch.",
            ),
            "reason": reason_param(),
        },
        **common(pipeline.owner, [pipeline.name, "operate"]) | {"max_active_runs": 4},
    )
    OperateStream(
        task_id="operate",
        pipeline=pipeline.name,
        doc_md="Does what the form says, in the name of who triggered the run.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _rewind_dag(pipeline: Pipeline) -> DAG:
    """Many runs at once: one that waits for its form must not hold up the others; a stream decides who is first.

    Streams that write to Kafka or to S3 are not in its form.
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
        schedule=None,
        allowed_run_types=["manual"],
        params={
            "stream": stream_param(pipeline.tabled, preset=True),
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
        **common(pipeline.owner, [pipeline.name, "rewind"]) | {"max_active_runs": 16},
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
    books = TriggerBooks(
        task_id="books",
        books=names.books(pipeline),
        after="rewind",
        doc_md="Has the books of the stream looked at; what that finds turns its own DAG red. Paused, that DAG waits.",
        dag=dag,
        **RETRIED,
    )
    plan >> confirm >> run >> verify >> books
    return dag
