"""A completion request as the renderer takes it.

01-render §3.2. Tokenizes nothing.
"""

from schemas.completion import CompletionRequest
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.refusals import bad_request
from workers.render.prompts import PromptRules
from workers.render.sampling import structured_outputs
from workers.text.tools import ToolWishes

_NO_FIM = "suffix is only supported for models with FIM completion rendering"
_NO_TEXT = "suffix requires text prompt input for FIM completion rendering"


def check_completion(request: CompletionRequest) -> None:
    """Refuse options that no completion can have."""
    reason = _why_no_suffix(request)
    if reason is not None:
        raise ApiError(reason, param="suffix")
    if request.suffix is not None and request.prompts:
        is_text = all(isinstance(prompt, str) for prompt in request.prompts)
        raise ApiError(_NO_FIM if is_text else _NO_TEXT, param="suffix")
    if request.prompt_embeds is not None:
        _check_beside_embeds(request)


def check_prompts(request: CompletionRequest) -> None:
    """Refuse what no prompt can be made of."""
    if request.prompt_embeds not in (None, []):
        raise bad_request(
            "You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds"
        )
    if not request.prompts:
        raise bad_request("You must pass at least one prompt", "prompt")


def _why_no_suffix(request: CompletionRequest) -> str | None:
    if request.suffix is None:
        return None
    if request.echo:
        return "Echo is unsupported with suffix."
    if request.prompt_embeds is not None:
        return "suffix is not supported with prompt_embeds"
    if request.truncate_prompt_tokens is not None:
        return "suffix is not supported with truncate_prompt_tokens"
    return None


def _check_beside_embeds(request: CompletionRequest) -> None:
    if request.echo:
        raise ApiError("Echo is unsupported with prompt embeds.")
    if request.prompt_logprobs is not None:
        raise ApiError("prompt_logprobs is not compatible with prompt embeds.")


def completion_tools(request: CompletionRequest) -> ToolWishes:
    return ToolWishes(
        structured_outputs=structured_outputs(request.structured_outputs, request.response_format),
        skip_special_tokens=request.skip_special_tokens,
    )


def completion_rules(request: CompletionRequest, limits: ModelLimits) -> PromptRules:
    return PromptRules(
        max_model_len=limits.max_model_len,
        max_output_tokens=request.max_tokens or 0,
        output_param="max_tokens",
        add_special_tokens=request.add_special_tokens,
        truncate_to=request.truncate_prompt_tokens,
        side=request.truncation_side,
        want_offsets=bool(request.return_token_offsets),
    )
