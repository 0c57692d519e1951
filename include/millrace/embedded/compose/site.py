"""Where the stack's parts are when each runs in a container of `docker-compose.yaml`."""

from __future__ import annotations

from millrace.embedded.compose import images
from millrace.embedded.credentials import Credentials
from millrace.embedded.jars.java import BUNDLED, Java
from millrace.embedded.layout import Layout
from millrace.embedded.servers.part import Site

PORTS = {"kafka": 9092, "kafka_controller": 9093, "s3": 9000, "postgres": 5432, "airflow": 8080}
HOSTS = {"kafka": "kafka", "s3": "s3", "postgres": "postgres", "airflow": "airflow-api-server"}
EVERY_ADDRESS = "0.0.0.0"
"""What servers listen on: their containers' network is the project's own, and only Airflow's port is published."""


def site(credentials: Credentials) -> Site:
    """The stack as its containers see it."""
    return Site(
        Layout(images.ROOT),
        dict(PORTS),
        credentials,
        java=Java(images.JAVA_HOME, 0, BUNDLED),
        jars={"s3proxy": images.jars("s3proxy")},
        listen=EVERY_ADDRESS,
        hosts=HOSTS,
        python=str(images.PYTHON),
    )
