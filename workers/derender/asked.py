"""What the original request says about its answer, beyond what ended the output.

A caller of the derender endpoints may leave the request out; then everything is shown.
"""

from collections.abc import Sequence

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.generate import GenerateStreamChoice
from workers.derender.logprobs import LogprobStyle, chat_limit, completion_limit
from workers.derender.model import TextModel
from workers.derender.outputs import Ending, StopReason, stop_rules, without_stop_token
from workers.text.detokenizer import WindowDecoder


def window_decoder(
    model: TextModel,
    request: ChatCompletionRequest | CompletionRequest | None,
    *,
    keep_special: bool = False,
) -> WindowDecoder:
    """Special tokens are left out unless the request or a parser wants to see them."""
    is_wanted = request is not None and request.skip_special_tokens is False
    return WindowDecoder(model.tokenizer, skip_special_tokens=not (keep_special or is_wanted))


def wants_ids(request: ChatCompletionRequest | CompletionRequest | None) -> bool:
    return request is not None and bool(request.return_token_ids)


def chat_style(request: ChatCompletionRequest | None) -> LogprobStyle:
    """A request that did not ask for log-probabilities says nothing about their number."""
    if request is None or not request.logprobs:
        return LogprobStyle()
    return LogprobStyle(
        chat_limit(top_logprobs=request.top_logprobs, is_all=bool(request.logprob_token_ids))
    )


def completion_style(request: CompletionRequest | None) -> LogprobStyle:
    if request is None:
        return LogprobStyle()
    return LogprobStyle(completion_limit(request.logprobs, is_all=bool(request.logprob_token_ids)))


def stop_ending(
    choice: GenerateStreamChoice,
    request: ChatCompletionRequest | CompletionRequest | None,
    model: TextModel,
) -> tuple[Sequence[int], StopReason]:
    """A chunk's ids without one that ended generation, and why it ended."""
    ending = Ending(choice.token_ids or [], choice.finish_reason, choice.stop_reason)
    return without_stop_token(ending, stop_rules(request), model.eos)
