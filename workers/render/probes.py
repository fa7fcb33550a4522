"""What a model's own templates do with conversations made to find it out.

Each question is asked once, when its answer is first needed. Knows no request.
"""

from functools import cached_property
from typing import Any

from schemas.errors import ApiError
from workers.render.templating import TemplateInput, Templates

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_SYSTEM_BETWEEN = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


class Probes:
    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    @cached_property
    def system_first(self) -> bool:
        """Whether system messages must stand at the front."""
        both = (None, list[dict[str, Any]]())  # the template may differ where tools are given
        return any(self._text(_SYSTEM_BETWEEN, tools, {}) is None for tools in both)

    @cached_property
    def disabled_effort(self) -> str:
        """The effort for no thinking: `low` where the template refuses or ignores `none`."""
        without = self._with_effort("none")
        if without is None or any(self._with_effort(effort) == without for effort in _EFFORTS):
            return "low"
        return "none"

    def _with_effort(self, effort: str) -> str | None:
        fields = {"add_generation_prompt": True, "reasoning_effort": effort}
        return self._text([{"role": "user", "content": "Hi"}], None, fields)

    def _text(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, fields: dict[str, Any]
    ) -> str | None:
        given = TemplateInput(self._templates.effective_kwargs(None, fields), tools)
        try:
            template = self._templates.choose(given)
            if self._templates.content_format(given) == "openai":
                messages = [
                    m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages
                ]
            return self._templates.render(template, messages, given)
        except ApiError:
            return None
