import pytest

from runtime.errors import SettingsError
from schemas.errors import ApiError, DecodeError
from schemas.routes import Kind

from .builders import LLAVA, QWEN, answer, generated, make_job, make_stage, prompt

HI = [39, 72]  # "Hi"
CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def chat(stage, body, prompts, outputs):
    return await answer(stage, Kind.CHAT, CHAT | body, prompts=prompts, generated=outputs)


async def complete(stage, body, prompts, outputs):
    body = {"prompt": "x"} | body
    return await answer(stage, Kind.COMPLETION, body, prompts=prompts, generated=outputs)


async def test_a_chat_answer_has_vllms_keys_in_vllms_order(start):
    body = {"model": None, "return_prompt_text": True}

    got = await chat(
        await start(), body, [prompt([64], "the prompt")], [generated(HI, finish_reason="stop")]
    )

    assert list(got) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
        "ec_transfer_params", "metrics",
    ]  # fmt: skip
    assert got["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hi",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
    ]
    assert got["id"] == "chatcmpl-1"
    assert got["model"] == QWEN
    assert got["prompt_text"] == "the prompt"
    assert got["usage"]["total_tokens"] == 3
    assert got["system_fingerprint"].startswith("tokenfleet-")


async def test_special_tokens_are_left_out_as_the_sampling_parameters_say(start):
    stage, output = await start(), [generated([2001, 64])]

    hidden = await chat(stage, {}, [prompt([64])], output)
    shown = await chat(stage, {}, [prompt([64], skip_special_tokens=False)], output)

    assert hidden["choices"][0]["message"]["content"] == "a"
    assert shown["choices"][0]["message"]["content"] == "<|im_start|>a"


async def test_each_choice_is_decoded_from_the_prompt_on(start):
    stage = await start(LLAVA)
    hello = stage._model.tokenizer.encode("Hello", add_special_tokens=False)

    got = await chat(stage, {"n": 2}, [prompt(hello)], [generated(hello, hello)])

    assert [c["message"]["content"] for c in got["choices"]] == [" Hello", " Hello"]
    assert got["usage"]["completion_tokens"] == 2 * len(hello)


async def test_text_ends_before_the_stop_string_and_tokens_are_kept(start):
    body = {"return_token_ids": True, "stop": "i"}
    output = [generated(HI, finish_reason="stop", stop_reason="i")]

    got = await chat(await start(), body, [prompt([64], stop=["i"])], output)

    choice = got["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("H", "i")
    assert choice["token_ids"] == HI
    assert got["prompt_token_ids"] == [64]


async def test_an_echo_puts_the_last_message_before_the_answer_where_roles_agree(start):
    stage = await start()
    said = {"role": "assistant", "content": [{"type": "text", "text": "a"},
                                             {"type": "text", "text": "b"}]}  # fmt: skip
    body = {"messages": [*CHAT["messages"], said], "echo": True}

    got = await chat(stage, body, [prompt([64])], [generated(HI)])
    other = await chat(stage, {"echo": True}, [prompt([64])], [generated(HI)])

    assert got["choices"][0]["message"]["content"] == "a\nbHi"
    assert other["choices"][0]["message"]["content"] == "Hi"


async def test_the_role_is_the_last_ones_where_no_prompt_for_a_new_one_was_added(start):
    stage = await start(response_role="oracle")
    body = {"add_generation_prompt": False, "continue_final_message": True}

    got = await chat(stage, body, [prompt([64])], [generated(HI)])
    usual = await chat(stage, {}, [prompt([64])], [generated(HI)])

    assert got["choices"][0]["message"]["role"] == "user"
    assert usual["choices"][0]["message"]["role"] == "oracle"


def scored(*ids: int, top: tuple[int, ...] = ()) -> dict:
    entries = [
        {
            "token_id": token,
            "logprob": -0.5,
            "rank": 1,
            "top_logprobs": [{"token_id": t, "logprob": -0.5 * n, "rank": n}
                             for n, t in enumerate((token, *top), start=1)],
        }
        for token in ids
    ]  # fmt: skip
    return {"content": entries}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"top_logprobs": 0}, []),
        ({"top_logprobs": 1}, ["H"]),
        ({"top_logprobs": 2}, ["H", "i"]),
        ({"top_logprobs": -1}, ["H", "i", "a"]),
        ({"logprob_token_ids": [64]}, ["H", "i", "a"]),
        ({"top_logprobs": 2, "return_tokens_as_token_ids": True}, ["token_id:39", "token_id:72"]),
    ],
)
async def test_a_chat_shows_as_many_candidates_as_it_asked_for(start, asked, expected):
    output = generated([39], logprobs=scored(39, top=(72, 64)))

    got = await chat(await start(), {"logprobs": True} | asked, [prompt([64])], [output])

    (entry,) = got["choices"][0]["logprobs"]["content"]
    assert [top["token"] for top in entry["top_logprobs"]] == expected
    assert entry["bytes"] == [72]


async def test_completions_come_prompt_by_prompt_under_one_id(start):
    prompts = [{**prompt([64]), "request_id": f"cmpl-7-{n}"} for n in range(2)]
    outputs = [generated([64], [65]), generated([66], [67])]

    got = await complete(await start(), {"prompt": ["x", "y"], "n": 2}, prompts, outputs)

    assert [(c["index"], c["text"]) for c in got["choices"]] == list(enumerate("abcd"))
    assert got["id"] == "cmpl-7"
    assert got["usage"]["prompt_tokens"] == 2
    assert list(got["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids", "routed_experts",
    ]  # fmt: skip


PROMPT_LOGPROBS = [None, {66: {"logprob": -1.0, "rank": 1, "decoded_token": None}}]


async def test_an_echo_of_a_completion_brings_the_prompts_logprobs(start):
    output = generated([39], logprobs=scored(39, top=(72,))) | {"prompt_logprobs": PROMPT_LOGPROBS}

    got = await complete(
        await start(), {"echo": True, "logprobs": 0}, [prompt([65, 66], "bc")], [output]
    )

    (choice,) = got["choices"]
    assert choice["text"] == "bcH"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -1.0, -0.5],
        "tokens": ["b", "c", "H"],
        "top_logprobs": [None, {"c": -1.0}, {"H": -0.5}],
    }


async def test_an_echo_without_output_shows_the_prompt_alone(start):
    output = generated([39], logprobs=scored(39)) | {"prompt_logprobs": PROMPT_LOGPROBS}
    body = {"echo": True, "max_tokens": 0, "logprobs": 1}

    got = await complete(await start(), body, [prompt([65, 66], "bc")], [output])

    assert got["choices"][0]["text"] == "bc"
    assert got["choices"][0]["logprobs"]["tokens"] == ["b", "c"]
    assert got["usage"]["completion_tokens"] == 1


async def test_an_echo_of_token_ids_is_their_text(start):
    got = await complete(await start(), {"echo": True}, [prompt([65, 66])], [generated([67])])

    assert got["choices"][0]["text"] == "bcd"


async def test_an_output_without_tokens_is_an_empty_text(start):
    got = await chat(await start(), {}, [prompt([64])], [generated([], finish_reason="stop")])

    assert got["choices"][0]["message"]["content"] == ""
    assert got["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("model", [QWEN, LLAVA])
async def test_the_composed_way_reads_like_the_coupled_one(start, model):
    """The same tokens, once through all stages and once posted to the derender endpoint."""
    stage = await start(model)
    tokenizer = stage._model.tokenizer
    seed = tokenizer.encode("Tell me:", add_special_tokens=True)
    said = "Hi \U0001f469‍\U0001f467 你好, 3 < 4\n\n  x = é"
    ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_id]
    output = generated(ids, finish_reason="stop", logprobs=scored(*ids, top=(64,)))
    request = CHAT | {"logprobs": True, "top_logprobs": 2}

    coupled = await chat(stage, request, [prompt(seed)], [output])
    composed = await answer(
        stage,
        Kind.CHAT_DERENDER,
        {"generate_response": output, "prompt_token_ids": seed, "chat_request": request,
         "prompt_tokens": len(seed)},
    )  # fmt: skip

    ours, theirs = coupled["choices"][0], composed["choices"][0]
    assert ours["message"] == theirs["message"]
    assert ours["message"]["content"].strip() == said
    assert ours["logprobs"] == theirs["logprobs"]
    assert coupled["usage"] == composed["usage"]


async def test_what_only_render_knows_of_a_parser_is_told(start):
    options = {"tool_call_parser": "xlam", "enable_auto_tool_choice": True}
    stage, body = await start(**options), CHAT | {"tools": TOOLS}

    with pytest.raises(ApiError) as coupled:
        await chat(stage, body, [prompt([64])], [generated(HI)])
    with pytest.raises(ApiError) as composed:
        await answer(
            stage,
            Kind.CHAT_DERENDER,
            {"generate_response": generated(HI), "chat_request": body},
        )

    assert coupled.value.status == composed.value.status == 501
    assert coupled.value.type == "NotImplementedError"


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        ({"tool_call_parser": "hermes", "enable_auto_tool_choice": True}, {}),
        (
            {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},
            {"tools": TOOLS, "tool_choice": "none"},
        ),
        ({"tool_call_parser": "hermes"}, {"tools": TOOLS}),
    ],
)
async def test_a_parser_that_has_nothing_to_do_is_in_nobodys_way(start, options, request_):
    got = await chat(await start(**options), CHAT | request_, [prompt([64])], [generated(HI)])

    assert got["choices"][0]["message"]["content"] == "Hi"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], ""), (HI, "Hi"), ([2002, 39], "<|im_end|>H"), ([99_999_999, 39, 2**62], "H")],
)
async def test_detokenize_keeps_special_tokens_and_drops_unknown_ones(start, tokens, expected):
    got = await answer(await start(), Kind.DETOKENIZE, {"tokens": tokens})

    assert got == {"prompt": expected}


async def test_ids_beyond_what_the_tokenizer_takes_are_the_callers_fault(start):
    output = generated([39], logprobs=scored(2**40))

    with pytest.raises(ApiError) as caught:
        await answer(await start(), Kind.CHAT_DERENDER, {"generate_response": output})

    assert caught.value.status == 400


async def test_half_a_surrogate_pair_in_an_id_is_refused(start):
    body = b'{"generate_response": {"request_id": "\\ud800", "choices": []}}'

    with pytest.raises(ApiError) as caught:
        await answer(await start(), Kind.CHAT_DERENDER, body)

    assert (caught.value.status, caught.value.param) == (400, "generate_response.request_id")


async def test_an_unknown_model_is_refused(start):
    with pytest.raises(ApiError) as caught:
        await answer(await start(), Kind.DETOKENIZE, {"model": "other", "tokens": []})

    assert caught.value.status == 404


async def test_parts_that_do_not_fit_together_are_undecodable(start):
    with pytest.raises(DecodeError):
        await chat(await start(), {}, [prompt([64]), prompt([64])], [generated(HI)])
    with pytest.raises(DecodeError):
        await chat(await start(), {}, [{}], [generated(HI)])


async def test_a_kind_that_ends_elsewhere_is_undecodable(start):
    stage, body = await start(), {"token_ids": [1], "sampling_params": {}}

    with pytest.raises(DecodeError):
        await stage.process(make_job(Kind.GENERATE, body))


async def test_a_directory_without_tokenizer_is_one_readable_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(SettingsError, match="tokenizer"):
        await make_stage(str(tmp_path))


async def test_closing_twice_is_harmless():
    stage = await make_stage(QWEN)

    await stage.close()
    await stage.close()
