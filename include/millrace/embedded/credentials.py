"""The passwords and keys of one project's stack, made once and kept in a private file."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass, field

from millrace.embedded.layout import Layout, write_private

DATABASE_ROLES = (
    "postgres",
    "airflow",
    "millrace_control_owner",
    "millrace_control",
    "millrace_sink",
    "millrace_sink_reader",
)
AIRFLOW_USERS = {"admin": "admin", "viewer": "viewer", "operator": "op"}
"""User name to role, in the words of Airflow's simple auth manager."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything secret about one stack. Its printed form shows none of it."""

    database_passwords: dict[str, str] = field(repr=False)
    s3_key: str = field(repr=False)
    s3_secret: str = field(repr=False)
    airflow_jwt_secret: str = field(repr=False)
    airflow_fernet_key: str = field(repr=False)
    airflow_api_key: str = field(repr=False)
    airflow_passwords: dict[str, str] = field(repr=False)

    @classmethod
    def make(cls) -> Credentials:
        """New random ones."""
        return cls(
            database_passwords={role: secrets.token_urlsafe(24) for role in DATABASE_ROLES},
            s3_key="millrace-" + secrets.token_hex(6),
            s3_secret=secrets.token_urlsafe(30),
            airflow_jwt_secret=secrets.token_urlsafe(48),
            airflow_api_key=secrets.token_urlsafe(32),
            airflow_fernet_key=urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            airflow_passwords={user: secrets.token_urlsafe(12) for user in AIRFLOW_USERS},
        )

    @classmethod
    def of(cls, layout: Layout) -> Credentials:
        """The project's credentials, made and stored on the first call."""
        if layout.credentials_file.exists():
            text = layout.credentials_file.read_text(encoding="utf-8")
            made = cls.read(text)
        else:
            text, made = "", cls.make()
        if (whole := json.dumps(asdict(made), indent=1)) != text:
            write_private(layout.credentials_file, whole)
        return made

    @classmethod
    def read(cls, text: str) -> Credentials:
        """Those of a file; a role that came with a later version gets its password here."""
        stored = json.loads(text)
        passwords = {role: secrets.token_urlsafe(24) for role in DATABASE_ROLES} | stored["database_passwords"]
        return cls(**{**stored, "database_passwords": passwords})
