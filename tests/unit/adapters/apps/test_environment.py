"""What an app inherits: little, and the way to a bucket only where a Connection leads to one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.adapters.apps.environment import AWS_IDENTITY, WAY_TO_AWS, app_environment
from millrace.settings import Settings

WAY = {
    *(
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "AWS_USE_FIPS_ENDPOINT",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
    ),
    *("AWS_SHARED_CREDENTIALS_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
}
IDENTITY = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED"),
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_STS_REGIONAL_ENDPOINTS"),
}
NEVER = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "AIRFLOW__CORE__FERNET_KEY", "ALL_PROXY"}
CONNECTIONS: dict[str, dict[str, object]] = {
    "kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "b1:9092"}},
    "control": {"conn_type": "postgres", "host": "pg"},
    "login": {"conn_type": "aws", "login": "AKIA", "password": "hidden"},
    "extra": {"conn_type": "aws", "extra": {"aws_access_key_id": "AKIA", "aws_secret_access_key": "hidden"}},
    "role": {"conn_type": "aws", "extra": {"region_name": "eu-west-1"}},
}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A process that has every variable of AWS, and Connections with and without a key."""
    for name in WAY | IDENTITY | NEVER:
        monkeypatch.setenv(name, f"of {name}")
    return Settings(tmp_path, lambda name: json.dumps(CONNECTIONS[name]) if name in CONNECTIONS else None)


def inherited(environment: dict[str, str]) -> set[str]:
    return {name for name, value in environment.items() if value == f"of {name}"}


@pytest.mark.parametrize(
    ("connections", "expected"),
    [
        ((), set()),
        (("kafka", "control"), set()),
        (("kafka", "login", "control"), WAY),
        (("extra",), WAY),
        (("role",), WAY | IDENTITY),
        (("login", "role"), WAY | IDENTITY),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else "",
)
def test_the_way_to_a_bucket_is_inherited_by_who_sees_a_connection_to_one(
    settings: Settings, connections: tuple[str, ...], expected: set[str]
) -> None:
    environment = app_environment(settings, connections)

    assert inherited(environment) == expected
    assert {name for name in environment if name.startswith("AIRFLOW_")} == {
        f"AIRFLOW_CONN_{name.upper()}" for name in connections
    }


def test_what_is_not_set_is_not_inherited(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.delenv("AWS_PROFILE")

    assert inherited(app_environment(settings, ["role"])) == (WAY | IDENTITY) - {"AWS_REGION", "AWS_PROFILE"}
    assert not {"AWS_REGION", "AWS_PROFILE"} & {*app_environment(settings, ["role"])}


def test_nothing_else_is_on_the_lists() -> None:
    assert ({*WAY_TO_AWS}, {*AWS_IDENTITY}) == (WAY, IDENTITY)
