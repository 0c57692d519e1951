"""The JSON schema of declarations, for editors."""

from __future__ import annotations

from typing import Any

from millrace.spec.documents import EnvironmentDocument, PipelineDocument


def json_schema(environment: bool = False) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a pipeline file, or of an environment file.

    Does not guarantee that what it accepts is sound: rules over several fields and files are in `spec check`.
    """
    model = EnvironmentDocument if environment else PipelineDocument
    title = "Millrace environment" if environment else "Millrace pipeline"
    schema = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}
