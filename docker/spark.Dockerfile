# Made by `./millrace compose`: what is changed here is lost with its next run.
FROM python:3.11-slim-bookworm
ENV LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    MILLRACE_ROOT=/opt/millrace \
    PATH=/opt/millrace/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN useradd --uid 50000 --create-home millrace
WORKDIR /opt/millrace
COPY millrace pyproject.toml requirements.txt README.md LICENSE ./
COPY include/millrace include/millrace
RUN --mount=type=cache,target=/root/.cache UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 ./millrace run -- true
ENV JAVA_HOME=/opt/java
RUN --mount=type=cache,target=/root/.cache python -m millrace.embedded.compose.images
COPY dags dags
COPY plugins plugins
COPY sources sources
COPY spark_apps spark_apps
COPY include include
RUN chmod -R a+rX millrace pyproject.toml requirements.txt README.md LICENSE dags plugins sources spark_apps include \
    && python -m compileall -q include spark_apps \
    && rm -rf .millrace && install -d -o millrace -g millrace -m 700 .millrace .millrace/airflow .millrace/airflow/logs .millrace/s3 .millrace/s3/data .millrace/streams
USER millrace
