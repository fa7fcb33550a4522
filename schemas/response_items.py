"""The forms an input item of a Responses request may have (01-render §2.3).

Messages, calls and reasoning are looked into; items that only the caller's platform knows are known
by name, so that they can be refused as what they are. Knows no chat.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from schemas.fields import Body

Detail: TypeAlias = Literal["low", "high", "auto", "original"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class InputText(Body):
    type: Literal["input_text"]
    text: str


class InputImage(Body):
    type: Literal["input_image"]
    detail: Detail = "auto"
    file_id: str | None = None
    image_url: str | None = None


class InputFile(Body):
    type: Literal["input_file"]
    detail: Literal["auto", "low", "high"] = "auto"
    file_data: str = ""
    file_id: str | None = None
    file_url: str = ""
    filename: str = ""


class ShownImage(Body):
    """A picture that a tool returned; nulls are allowed here."""

    type: Literal["input_image"]
    detail: Detail | None = None
    file_id: str | None = None
    image_url: str | None = None


class ShownFile(Body):
    """A file that a tool returned."""

    type: Literal["input_file"]
    detail: Literal["auto", "low", "high"] = "auto"
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class OutputText(Body):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]] = Field(default_factory=list)


class Refusal(Body):
    type: Literal["refusal"]
    refusal: str


class InputMessage(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | InputImage | InputFile]
    phase: Literal["commentary", "final_answer"] | None = None


class OutputMessage(Body):
    """An answer given back to us; `id` and `status` may be left out."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText | Refusal]
    id: str = ""
    status: Status = "completed"


class FunctionCall(Body):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    status: Status | None = None


class FunctionCallOutput(Body):
    output: str | list[InputText | ShownImage | ShownFile]
    call_id: str | None = None
    status: Status | None = None


class CustomToolCall(Body):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CustomToolCallOutput(Body):
    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class Thought(Body):
    text: str
    type: Literal["summary_text", "reasoning_text"]


class ReasoningItem(Body):
    summary: list[Thought]
    id: str = ""
    content: list[Thought] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class ItemReference(Body):
    id: str


_FORMS: Mapping[str | None, tuple[type[Body], ...]] = {
    "message": (InputMessage, OutputMessage),
    "function_call": (FunctionCall,),
    "function_call_output": (FunctionCallOutput,),
    "custom_tool_call": (CustomToolCall,),
    "custom_tool_call_output": (CustomToolCallOutput,),
    "reasoning": (ReasoningItem,),
    "item_reference": (ItemReference,),
    None: (ItemReference,),
}
_FOREIGN: Mapping[str | None, tuple[str, ...]] = {
    "additional_tools": ("role", "tools"),
    "apply_patch_call": ("call_id", "operation", "status"),
    "apply_patch_call_output": ("call_id", "status"),
    "code_interpreter_call": ("id", "code", "container_id", "outputs", "status"),
    "compaction": ("encrypted_content",),
    "compaction_trigger": (),
    "computer_call": ("id", "call_id", "pending_safety_checks", "status"),
    "computer_call_output": ("call_id", "output"),
    "configuration_update": (),
    "file_search_call": ("id", "queries", "status"),
    "image_generation_call": ("id", "result", "status"),
    "local_shell_call": ("id", "action", "call_id", "status"),
    "local_shell_call_output": ("id", "output"),
    "mcp_approval_request": ("id", "arguments", "name", "server_label"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "mcp_call": ("id", "arguments", "name", "server_label"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result", "status"),
    "shell_call": ("action", "call_id"),
    "shell_call_output": ("call_id", "output"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "web_search_call": ("id", "action", "status"),
}
"""What else a history may hold, by kind, and the keys without which it is none."""


def check_item(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it came. ValueError for what is no item of its kind."""
    kind = item.get("type", None if "role" not in item else "message")
    if not isinstance(kind, str | None):
        raise ValueError("the type of an input item must be a string")
    if kind in _FOREIGN:
        missing = [key for key in _FOREIGN[kind] if key not in item]
        if missing:
            raise ValueError(f"an input item of type {kind!r} needs {', '.join(missing)}")
        return item
    if kind not in _FORMS:
        raise ValueError(f"unknown type of an input item: {kind!r}")
    _check_forms(item, _FORMS[kind])
    return item


def _check_forms(item: dict[str, Any], forms: tuple[type[Body], ...]) -> None:
    complaints = []
    for form in forms:
        try:
            form.model_validate(item)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            complaints.append(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        else:
            return
    raise ValueError("; or ".join(complaints))
