"""What a model's own templates do with conversations made to find it out.

Each question is asked once, when its answer is first needed. Knows no request.
"""

from functools import cached_property
from typing import Any

from schemas.errors import ApiError
from workers.render.templating import TemplateInput, Templates
from workers.text.templates import takes_late_system

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Probes:
    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    @cached_property
    def system_first(self) -> bool:
        """Whether system messages must stand at the front."""
        sources = self._templates.own_sources()
        return not sources or not all(takes_late_system(source) for source in sources)

    @cached_property
    def disabled_effort(self) -> str:
        """The effort for no thinking: `low` where the template refuses or ignores `none`."""
        without = self._with_effort("none")
        if without is None or any(self._with_effort(effort) == without for effort in _EFFORTS):
            return "low"
        return "none"

    def _with_effort(self, effort: str) -> str | None:
        fields = {"add_generation_prompt": True, "reasoning_effort": effort}
        given = TemplateInput(self._templates.effective_kwargs(None, fields))
        content: Any = "Hi"
        opened = self._templates.open(given)
        if opened.content_format == "openai":
            content = [{"type": "text", "text": "Hi"}]
        try:
            return self._templates.render(opened, [{"role": "user", "content": content}], given)
        except ApiError:
            return None
