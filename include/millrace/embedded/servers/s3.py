"""The embedded object store: s3proxy over a folder, on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any

from millrace.embedded.layout import write_private
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.program import Program

BUCKET = "millrace"


class S3:
    """One s3proxy. It checks write conditions inside its own process: never run two on one folder."""

    name = "s3"
    port_names: tuple[str, ...] = ("s3",)
    program_names: tuple[str, ...] = ("s3",)
    patience = timedelta(seconds=60)

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Write its properties and make its folder."""
        folder = site.layout.state / "s3"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        write_private(folder / "s3proxy.properties", properties(site))

    def programs(self, site: Site) -> list[Program]:
        """The server."""
        assert site.java is not None
        command = [str(site.java.program), "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-DLOG_LEVEL=info"]
        command += ["-jar", str(site.jars["s3proxy"][0])]
        command += ["--properties", str(site.layout.state / "s3" / "s3proxy.properties")]
        return [Program("s3", command)]

    def probe(self, site: Site) -> str:
        """List the buckets with the key."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            buckets = _client(site).list_buckets().get("Buckets", [])
        except (BotoCoreError, ClientError) as error:
            raise NotReadyError(str(error)) from error
        return f"{len(buckets)} bucket" + ("" if len(buckets) == 1 else "s")

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Make the bucket `millrace`."""
        client = _client(site)
        if BUCKET not in [bucket["Name"] for bucket in client.list_buckets().get("Buckets", [])]:
            client.create_bucket(Bucket=BUCKET)


def _client(site: Site) -> Any:
    return _kept_client(f"http://{site.address('s3')}", site.credentials.s3_key, site.credentials.s3_secret)


@lru_cache(maxsize=4)
def _kept_client(url: str, key: str, secret: str) -> Any:
    """A client, kept: who waits for the server asks it many times, and to make one takes longer than an answer."""
    import boto3
    from botocore.config import Config

    patience = Config(
        connect_timeout=3,
        read_timeout=5,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        proxies={},
    )
    session = boto3.session.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
    return session.client("s3", endpoint_url=url, config=patience)


def properties(site: Site) -> str:
    """The server's properties, its key and secret among them."""
    key, secret = site.credentials.s3_key, site.credentials.s3_secret
    lines = {
        "s3proxy.endpoint": f"http://{site.listen}:{site.ports['s3']}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": key,
        "s3proxy.credential": secret,
        "jclouds.provider": "filesystem",
        "jclouds.filesystem.basedir": str(site.layout.state / "s3" / "data"),
        "jclouds.identity": key,
        "jclouds.credential": secret,
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())
