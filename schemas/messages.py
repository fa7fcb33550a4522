"""Chat messages: what the HTTP schema accepts, message by message and part by part (01-render §4).

Knows the shapes of OpenAI's message objects and no template.
"""

from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
