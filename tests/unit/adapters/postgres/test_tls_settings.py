"""Files and words for TLS of a `postgres` Connection: what is refused is named, and no secret is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from millrace.domain.streams.supervision import HOPELESS
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.runtime.main import exit_reason
from millrace.settings import PostgresSettings, Settings

SECRET = "s3cret-word"


def of_extra(**extra: object) -> PostgresSettings:
    document = {"conn_type": "postgres", "host": "127.0.0.1", "login": "u", "extra": extra}
    return Settings(Path("/"), {"here": json.dumps(document)}.get).postgres("here")


@pytest.mark.parametrize("key", ["sslrootcert", "sslcert", "sslkey"])
def test_a_file_that_is_not_there_yet_is_named_and_tried_again(key: str) -> None:
    with pytest.raises(UnreachableError) as refused:
        of_extra(sslmode="verify-full", **{key: "/not there/file.pem"})
    assert refused.value.what == f"{key} names /not there/file.pem, which cannot be read (No such file or directory)"
    assert refused.value.where == "connection here"
    assert exit_reason(refused.value) not in HOPELESS


@pytest.mark.parametrize(
    "extra",
    [
        {"sslkey": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"},
        {"sslkey": f"/{SECRET}\n" * 2},
        {"sslcert": SECRET},
        {"sslmode": {"a": SECRET}},
        {"sslmode": SECRET},
    ],
    ids=lambda extra: f"{extra}"[:24],
)
def test_a_value_that_is_no_path_is_never_shown(extra: dict[str, object]) -> None:
    with pytest.raises(MillraceError) as refused:
        of_extra(**extra)
    assert SECRET not in str(refused.value)
    assert next(iter(extra)) in refused.value.what


def test_a_mode_that_libpq_does_not_know_is_hopeless() -> None:
    with pytest.raises(UsageError, match="sslmode") as refused:
        of_extra(sslmode="verify_full")
    assert "verify-full" in refused.value.next_step
    assert exit_reason(refused.value) in HOPELESS


@pytest.mark.parametrize(
    ("mode", "root", "fine"),
    [
        (0o600, False, True),
        (0o640, False, False),
        (0o604, False, False),
        (0o640, True, True),
        (0o660, True, False),
        (0o644, True, False),
    ],
)
def test_a_private_key_that_others_may_read_is_named(tmp_path: Path, mode: int, root: bool, fine: bool) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    key.chmod(mode)
    try:
        os.chown(key, 0 if root else os.getuid() or 1, -1)
    except PermissionError:
        pytest.skip("only root makes files of root's")
    if fine:
        assert of_extra(sslkey=str(key)).tls == (("sslkey", str(key)),)
        return
    with pytest.raises(UnreachableError, match="is open to others") as refused:
        of_extra(sslkey=str(key))
    assert str(key) in refused.value.what
