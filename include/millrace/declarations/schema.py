"""The JSON schema of declarations, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from millrace.declarations.documents import EnvironmentDocument, PipelineDocument
from millrace.declarations.quality_documents import RulesDocument


def json_schema(environment: bool = False, *, rules: bool = False) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a pipeline file, of an environment file, or of a rule file.

    Does not guarantee that what it accepts is sound: rules over several fields and files are in `spec check`.
    """
    model: type[BaseModel] = EnvironmentDocument if environment else RulesDocument if rules else PipelineDocument
    title = f"Millrace {'environment' if environment else 'rules' if rules else 'pipeline'}"
    schema = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}
