"""Server-sent events of a stream: head and deltas in, the JSON of each event out. Pure.

The grammars are those of OpenAI's chat completion and completion chunks with vLLM's additional
keys, and of vLLM's `/inference/v1/generate` (vllm/entrypoints/scale_out).
"""

from collections.abc import Iterator
from typing import Any, Protocol

from schemas.records.reply import StreamDelta, StreamHead, TextPart
from schemas.routes import Kind

Event = dict[str, Any]


class Events(Protocol):
    """The events of one stream, in order: `opening`, `delta` for each delta, `closing`."""

    def opening(self) -> Iterator[Event]: ...

    def delta(self, delta: StreamDelta) -> Iterator[Event]: ...

    def closing(self) -> Iterator[Event]: ...


def events_of(head: StreamHead) -> Events:
    match head.kind:
        case Kind.COMPLETION:
            return CompletionEvents(head)
        case Kind.GENERATE:
            return GenerateEvents(head)
    return ChatEvents(head)


class _Counter:
    """Tokens of each choice so far."""

    def __init__(self, head: StreamHead) -> None:
        self._head = head
        self._tokens: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}

    def add(self, delta: StreamDelta) -> None:
        self._tokens[delta.choice] = delta.start + len(delta.token_ids)
        self._reasoning[delta.choice] = delta.reasoning_tokens

    def of_choice(self, choice: int) -> Event:
        tokens, reasoning = self._tokens.get(choice, 0), self._reasoning.get(choice, 0)
        return self._usage(tokens) | {
            "completion_tokens_details": self._details(reasoning) if tokens else None
        }

    def total(self) -> Event:
        """Without nulls, as in the usage chunk."""
        usage = self._usage(sum(self._tokens.values()))
        details = self._details(sum(self._reasoning.values()))
        return usage if details is None else usage | {"completion_tokens_details": details}

    def _usage(self, completion: int) -> Event:
        prompt = self._head.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }

    def _details(self, reasoning: int) -> Event | None:
        return {"reasoning_tokens": reasoning} if self._head.counts_reasoning else None


class _OpenAIEvents:
    """What chat and completion chunks have in common."""

    object = ""

    def __init__(self, head: StreamHead) -> None:
        self._head = head
        self._count = _Counter(head)

    def closing(self) -> Iterator[Event]:
        if self._head.include_usage:
            usage = {"usage": self._count.total()}
            yield self._shared() | {"choices": []} | usage | self._fingerprint()

    def _shared(self) -> Event:
        head = self._head
        return {
            "id": head.id,
            "object": self.object,
            "created": head.created,
            "model": head.model,
        }

    def _chunk(self, choice: Event, *, is_final: bool = False) -> Event:
        chunk = self._shared() | {"choices": [choice]}
        if self._head.continuous_usage:
            chunk["usage"] = self._count.of_choice(choice["index"])
        if is_final and not self._head.include_usage:
            chunk |= self._fingerprint()
        return chunk

    def _fingerprint(self) -> Event:
        return {"system_fingerprint": self._head.system_fingerprint}


class ChatEvents(_OpenAIEvents):
    object = "chat.completion.chunk"

    def opening(self) -> Iterator[Event]:
        """The role of every choice, then the echoed message where it is asked for."""
        head = self._head
        prompt_ids = head.prompt_token_ids[0] if head.prompt_token_ids else None
        prompt = {"prompt_token_ids": prompt_ids, "prompt_text": head.prompt_text}
        for index in range(head.num_choices):
            choice = _unfinished(index, {"role": head.role, "content": ""})
            yield self._chunk(choice) | prompt
        if head.echo:
            for index in range(head.num_choices):
                yield self._chunk(_unfinished(index, {"content": head.echo}))

    def delta(self, delta: StreamDelta) -> Iterator[Event]:
        self._count.add(delta)
        wants_ids = self._head.wants_ids
        is_final = delta.finish_reason is not None
        if not (delta.parts or is_final or delta.logprobs or (wants_ids and delta.token_ids)):
            return
        choice = _unfinished(delta.choice, _message(delta.parts))
        choice["finish_reason"] = delta.finish_reason
        if delta.logprobs is not None:
            choice["logprobs"] = {"content": delta.logprobs}
        if is_final:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.token_ids if wants_ids else None
        yield self._chunk(choice, is_final=is_final)


def _unfinished(index: int, delta: Event) -> Event:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _message(parts: list[TextPart]) -> Event:
    """Only what has grown has a key."""
    message: Event = {}
    calls = [_call(part) for part in parts if part.channel == "tool"]
    for part in parts:
        if part.channel != "tool":
            message[part.channel] = message.get(part.channel, "") + part.text
    return message | {"tool_calls": calls} if calls else message


def _call(part: TextPart) -> Event:
    call: Event = {"index": part.tool}
    if part.tool_name is None:
        return call | {"function": {"arguments": part.text}}
    function = {"name": part.tool_name} | ({"arguments": part.text} if part.text else {})
    return {"id": part.tool_id, "type": "function"} | call | {"function": function}


class CompletionEvents(_OpenAIEvents):
    object = "text_completion"

    def __init__(self, head: StreamHead) -> None:
        super().__init__(head)
        self._begun: set[int] = set()

    def opening(self) -> Iterator[Event]:
        yield from ()

    def delta(self, delta: StreamDelta) -> Iterator[Event]:
        self._count.add(delta)
        is_final = delta.finish_reason is not None
        choice = {
            "index": delta.choice,
            "text": "".join(part.text for part in delta.parts),
            "logprobs": None if delta.logprobs is None else _in_columns(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": self._prompt_ids(delta.choice),
            "token_ids": delta.token_ids if self._head.wants_ids else None,
        }
        yield self._chunk(choice, is_final=is_final)

    def _prompt_ids(self, choice: int) -> list[int] | None:
        """In the first chunk of each choice; choices are dealt to prompts in order."""
        ids = self._head.prompt_token_ids
        if ids is None or choice in self._begun:
            return None
        self._begun.add(choice)
        return ids[choice * len(ids) // self._head.num_choices]


COLUMNS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def _in_columns(entries: list[Event]) -> Event:
    """OpenAI's completion log-probabilities are parallel lists."""
    return {name: [entry[name] for entry in entries] for name in COLUMNS}


class GenerateEvents:
    def __init__(self, head: StreamHead) -> None:
        self._head = head
        self._count = _Counter(head)
        self._has_begun = False

    def opening(self) -> Iterator[Event]:
        yield from ()

    def delta(self, delta: StreamDelta) -> Iterator[Event]:
        self._count.add(delta)
        total, is_final = delta.start + len(delta.token_ids), delta.finish_reason is not None
        text = "".join(part.text for part in delta.parts)
        if not (delta.token_ids or is_final or text):
            return
        span = [{"version": "default", "start": 0, "end": total}] if total else []
        choice: Event = {
            "index": delta.choice,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": span if is_final else None,
        }
        if self._head.output_mode == "text":
            choice["text"] = text
        choice["logprobs"] = None if delta.logprobs is None else {"content": delta.logprobs}
        yield self._chunk(delta, choice)

    def closing(self) -> Iterator[Event]:
        if self._head.include_usage:
            mode = {"output_mode": self._head.output_mode}
            yield self._named({"usage": self._count.total()}) | mode | {"choices": []}

    def _chunk(self, delta: StreamDelta, choice: Event) -> Event:
        chunk = self._named({"usage": None})
        if self._head.continuous_usage:
            details = {"prompt_tokens_details": None, "completion_tokens_details": None}
            chunk["usage"] = self._count.of_choice(delta.choice) | details
        if not self._has_begun and delta.token_ids:
            self._has_begun = True
            chunk |= self._prompt()
        return chunk | {"output_mode": self._head.output_mode, "choices": [choice]}

    def _prompt(self) -> Event:
        head = self._head
        if head.prompt_token_ids is None:
            return {}
        prompt: Event = {"prompt_token_ids": head.prompt_token_ids[0]}
        places = head.mm_placeholders
        return prompt if places is None else prompt | {"mm_placeholders": places}

    def _named(self, rest: Event) -> Event:
        return {"request_id": self._head.id} | rest
