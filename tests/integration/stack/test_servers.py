"""The embedded servers as a test, an app or a person meets them."""

from __future__ import annotations

import stat
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import Deadline, eventually, result_of

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack


def test_kafka_answers_and_makes_no_topic_unasked(kafka: Stack) -> None:
    admin = AdminClient(dict(kafka.settings().kafka().librdkafka))
    name = f"stack.{uuid.uuid4().hex[:8]}"
    seconds = Deadline.METADATA.seconds
    result_of(admin.create_topics([NewTopic(name, 2, 1)])[name], what=f"topic {name}")
    eventually(
        lambda: name in admin.list_topics(timeout=seconds).topics, within=Deadline.METADATA, what=f"topic {name}"
    )
    assert f"{name}.other" not in admin.list_topics(f"{name}.other", seconds).topics or (
        admin.list_topics(f"{name}.other", seconds).topics[f"{name}.other"].error is not None
    )


def test_each_role_sees_its_own_database_only(postgres: Stack) -> None:
    settings = postgres.settings()
    for name in ("millrace_control", "millrace_control_owner", "millrace_sink"):
        keywords = settings.postgres(name).keywords()
        with psycopg.connect(**keywords) as connection:  # type: ignore[arg-type]
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
            assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (
                False,
            )
        elsewhere = "airflow" if name != "airflow" else "millrace_sink"
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(**{**keywords, "dbname": elsewhere})  # type: ignore[arg-type]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**{**keywords, "password": "wrong"})  # type: ignore[arg-type]


def test_s3_takes_the_key_and_refuses_another(s3: Stack) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    settings = s3.settings().s3()
    path_style = Config(s3={"addressing_style": "path"})

    def client(secret: str) -> object:
        return boto3.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=settings.region,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=secret,
            config=path_style,
        )

    assert "millrace" in [bucket["Name"] for bucket in client(settings.secret_key).list_buckets()["Buckets"]]  # type: ignore[attr-defined]
    with pytest.raises(ClientError):
        client("wrong").list_buckets()  # type: ignore[attr-defined]


def test_nobody_else_can_read_what_holds_a_secret(kafka: Stack, s3: Stack, postgres: Stack) -> None:
    state = kafka.layout.state
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    loose = [
        path
        for path in (*state.glob("*"), *state.glob("run/*"), *state.glob("programs/*"), *state.glob("*/*.properties"))
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert loose == []
