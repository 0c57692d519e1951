"""The variables that an app runs with: a few of ours, Java's home, the Connections it may see and what they need."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable

from millrace import LAYOUT, LAYOUT_VARIABLE, ROOT_VARIABLE
from millrace.settings import Settings, read_environment_file, variable_name

INHERITED = ("PATH", "HOME", "LANG", "TZ", "MILLRACE_ENVIRONMENT")

# Never AWS_ENDPOINT_URL and its like: where the objects are, the Connection alone says.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
WAY_TO_AWS = (
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    *_PROXIES,
    *(name.lower() for name in _PROXIES),
)
"""How botocore reaches a bucket: inherited by who may see an `aws` Connection."""

AWS_IDENTITY = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_STS_REGIONAL_ENDPOINTS",
)
"""What botocore searches an identity by: inherited where such a Connection has no key, so that apps find it too."""


def app_environment(settings: Settings, connections: Iterable[str]) -> dict[str, str]:
    """All variables that an app gets, but for its name.

    Args:
        settings: the project's.
        connections: the Connections it may see.

    Raises:
        UnreachableError: one of them is not defined.
    """
    environment = _inherited(INHERITED)
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    environment.setdefault("LANG", "C.UTF-8")
    from_file = read_environment_file(settings.state_folder / "env")
    java_home = from_file.get("MILLRACE_JAVA_HOME") or os.environ.get("JAVA_HOME")
    if java_home:
        environment["JAVA_HOME"] = java_home
    environment |= {
        ROOT_VARIABLE: str(settings.root),
        LAYOUT_VARIABLE: str(LAYOUT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for connection in connections:
        known = settings.connection(connection)  # raises where there is none
        environment[variable_name(connection)] = settings.lookup(connection) or ""
        if known.kind == "aws":
            environment |= _inherited(WAY_TO_AWS)
            if not settings.s3(connection).access_key:
                environment |= _inherited(AWS_IDENTITY)
    return environment


def _inherited(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if os.environ.get(name)}
