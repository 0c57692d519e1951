"""Calls to one bucket: the client, how long it is patient, and what its errors become.

botocore itself repeats a request whose answer was lost, was cut off, or asked for patience (5xx, SlowDown). So a write
may have happened more than once, or before a call that failed; only conditions on the write can tell.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from http.client import HTTPException
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError
from botocore.session import Session
from urllib3.exceptions import HTTPError

from millrace.adapters.s3.failures import (
    address_of,
    broken,
    code_of,
    no_answer,
    open_cause,
    refusal,
    status_of,
    where,
)
from millrace.errors import Code, MillraceError, UsageError
from millrace.settings import S3Settings

# The most one request may take: 4 times 20 s where no connection comes about, 4 times 30 s where the store takes it and
# says nothing, 4 times 50 s where each connection comes about at the last moment too, and the pauses between. The first
# bound is also urllib3's for each pause in the sending of a body on a fresh connection, so it is not a short one.
CONNECT_SECONDS = 20
READ_SECONDS = 30
ATTEMPTS = 4
DEFAULT_REGION = "us-east-1"
CONNECTIONS = 32
_RAW = (HTTPError, HTTPException, OSError)


class AnswerError(Exception):
    """The store said no in a way that the caller expects and deals with."""

    def __init__(self, code: str, status: int) -> None:
        self.code = code
        self.status = status
        super().__init__(code)


class Bucket:
    """One bucket. Opens its client at the first call; safe for threads.

    Args:
        settings: where it is.
        attempts: how often a request is sent at most; 1 is never again.
        read_seconds: how long a server may be silent; also a bound for the connection, where it is the smaller one.
        connections: how many are kept; more threads than that work too, each with a connection of one use.
    """

    def __init__(
        self,
        settings: S3Settings,
        *,
        attempts: int = ATTEMPTS,
        read_seconds: float = READ_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        address_of(settings)
        self.settings = settings
        self._config = _config(settings, attempts, read_seconds, connections)
        self._opening = threading.Lock()  # making a client is not safe for threads, using it is
        self._opened: list[Any] = []

    @property
    def where(self) -> str:
        """The bucket, for people; with its region as soon as that is known."""
        return where(self.settings)

    def call(
        self, operation: str, *, unless: Collection[str] = (), needs: Collection[str] = (), **arguments: Any
    ) -> dict[str, Any]:
        """The store's answer to one operation, by botocore's name of it.

        Raises:
            AnswerError: it said no with one of the codes or of the statuses of `unless`.
            BrokenBodyError: the answer to a request for an object broke off; nothing was tried again.
            UnreachableError: it did not answer, or will not at present.
            RefusedError: it does not have what is asked of it.
            MillraceError: it said no for another reason, or its answer lacks what it `needs`.
        """
        key = arguments.get("Key") or arguments.get("Prefix")
        doing = f"{operation} {key}" if key else operation
        try:
            answer: dict[str, Any] = getattr(self.client(), operation)(Bucket=self.settings.bucket, **arguments)
        except ClientError as error:
            cause = open_cause(self.settings, error)
            if code_of(error) in unless or str(status_of(error)) in unless:
                raise AnswerError(code_of(error), status_of(error)) from cause
            raise refusal(self.settings, error, doing) from cause
        except (BotoCoreError, ResponseParserError) as error:
            raise no_answer(self.settings, error, doing) from open_cause(self.settings, error)
        except _RAW as error:
            # botocore reads the refusal of an object behind its own tries and its own translation.
            raise broken(self.settings, f"{doing}: {type(error).__name__}") from open_cause(self.settings, error)
        if missing := [name for name in needs if name not in answer]:
            raise MillraceError(
                f"the answer to {doing} lacks {', '.join(missing)}: it is not an answer of S3",
                where=self.where,
                next_step="check that endpoint_url of the connection is the address of the store itself",
                code=Code.STORE_REFUSED,
            )
        return answer

    def client(self) -> Any:
        """Botocore's client, made by the first who asks."""
        if not self._opened:
            with self._opening:
                if not self._opened:
                    self._opened.append(self._open())
        return self._opened[0]

    def _open(self) -> Any:
        s3 = self.settings
        named = {
            "aws_access_key_id": s3.access_key,
            "aws_secret_access_key": s3.secret_key,
            "aws_session_token": s3.session_token,
        }
        # Nothing is said of what is empty, so botocore finds a key where it always does: variables, files, a role.
        keys = {name: value for name, value in named.items() if value and s3.access_key}
        try:
            session = Session()
            session.register_component("data_loader", _models())
            configured = session.get_config_variable("region")
            region = s3.region or os.environ.get("AWS_REGION") or configured or DEFAULT_REGION
            client = session.create_client(
                "s3", region_name=region, endpoint_url=s3.endpoint_url, config=self._config, **keys
            )
        except ValueError as error:
            raise UsageError(
                "the endpoint or the region of the object store is invalid",
                where=self.where,
                next_step="write endpoint_url in the connection's extra as http://HOST:PORT or https://HOST, and "
                "region_name as one of the provider's regions",
                code=Code.WRONG_CONNECTION,
            ) from open_cause(s3, error)
        self.settings = replace(s3, region=region)
        client.meta.events.register_last("before-call.s3.DeleteObjects", _with_md5)
        client.meta.events.register_first("before-parse.s3", _refuse_cut_off)
        return client


@cache
def _models() -> Loader:
    """Botocore's description of the service: megabytes of JSON, which else each client reads again."""
    loader: Loader = Session().get_component("data_loader")
    return loader


def _config(settings: S3Settings, attempts: int, read_seconds: float, connections: int) -> Config:
    # The signature covers the bytes, also with TLS, and no checksum goes behind them: every store takes this form, and
    # refuses bytes that were changed on the way. botocore's newer form, with a trailer, some do not know.
    options: dict[str, Any] = {"payload_signing_enabled": True}
    if settings.endpoint_url:
        options["addressing_style"] = "path"  # names of buckets below it are seldom in the DNS
    return Config(
        connect_timeout=min(CONNECT_SECONDS, read_seconds),
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=connections,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",  # some stores repeat the whole object's checksum with a range
        ignore_configured_endpoint_urls=True,  # AWS_ENDPOINT_URL_S3: where an object is, the connection alone says
        s3=options,
        # None: as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say, by which many reach a provider's store.
        proxies={} if _is_near(settings) else None,
    )


def _is_near(settings: S3Settings) -> bool:
    """Whether a proxy cannot know the host: this machine's own address, or a name that only the local network has."""
    host = address_of(settings).hostname
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return "." not in host


def content_md5(data: bytes) -> str:
    """The value of Content-MD5, without which a bucket that retains its objects by default takes none."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode("ascii")


def _with_md5(params: dict[str, Any], **_: object) -> None:
    """Stores older than S3's newer checksums refuse a deletion of many objects that has no Content-MD5."""
    params["headers"]["Content-MD5"] = content_md5(params["body"])


def _refuse_cut_off(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Turn an answer that was cut off into a failure of the server, which is tried again.

    botocore holds only the bodies of objects against their Content-Length. Without this a listing that broke off
    before its first byte would be an empty one, and a refusal one without a reason.
    """
    headers: Mapping[str, str] = response_dict["headers"]
    told = headers.get("content-length")
    is_object = operation_model.has_streaming_output and response_dict["status_code"] < 300
    if told is None or is_object or operation_model.http["method"] == "HEAD":
        return
    if len(response_dict["body"]) != int(told):
        response_dict["status_code"] = 500
