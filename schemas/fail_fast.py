"""Validators that stop at a list's first bad entry, for bodies that may have a million of them.

Each error of pydantic's is an object of a kilobyte; ten are told.
"""

from typing import Any, TypeAlias

from pydantic import BaseModel, TypeAdapter
from pydantic_core import SchemaValidator

Schema: TypeAlias = type[BaseModel] | TypeAdapter[Any]
"""A model, or the adapter of a union of models; lives as long as the process."""
_made: dict[int, SchemaValidator] = {}


def validator_of(schema: Schema) -> SchemaValidator:
    """Its own, which tells all errors."""
    if isinstance(schema, TypeAdapter):
        own: SchemaValidator = schema.validator  # type: ignore[assignment]
        return own
    return schema.__pydantic_validator__  # type: ignore[return-value]


def fail_fast(schema: Schema) -> SchemaValidator:
    """One whose lists, and those of the models in it, stop early. Made once."""
    if id(schema) not in _made:
        core = (
            schema.core_schema
            if isinstance(schema, TypeAdapter)
            else schema.__pydantic_core_schema__
        )
        # Or models in it would be validated by what was made for them before.
        _made[id(schema)] = SchemaValidator(_stopping(core), _use_prebuilt=False)
    return _made[id(schema)]


def _stopping(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stopping(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _stopping(value) for key, value in schema.items()}
    return found | {"fail_fast": True} if found.get("type") == "list" else found
