import asyncio

import pytest

from runtime.storage import Embedding
from schemas.envelope import GENERATED, PROMPTS, Item, kwargs_part
from schemas.errors import ApiError, EmbeddingMissing
from schemas.routes import Kind, Stop
from tests.engine.builders import image_body, soon, text_body, without_payload


def tokens(body):
    return [choice["token_ids"] for choice in body["choices"]]


async def encoded(fleet, body):
    """ec_transfer_params of an encode-only server for this body."""
    status, answer = await fleet.ask(body, "encode")
    assert status == 200
    return answer["ec_transfer_params"]


async def test_loaded_embeddings_give_the_tokens_of_local_encoding(fleet):
    body = image_body(images=2)

    _, local = await fleet.ask(body, "prefill")
    params = await encoded(fleet, body)
    _, loaded = await fleet.ask({**without_payload(body), "ec_transfer_params": params}, "prefill")

    assert tokens(loaded) == tokens(local)


async def test_a_missing_embedding_is_reported_with_its_hash(fleet):
    body = {**without_payload(image_body(images=2)), "ec_transfer_params": {"some": "where"}}
    job = await fleet.admit(body, "prefill")

    with pytest.raises(EmbeddingMissing) as error:
        await fleet.prefill.process(job)

    assert set(error.value.hashes) == set(body["features"]["mm_hashes"]["image"])


async def test_an_item_with_tensors_is_encoded_here_while_its_neighbour_is_loaded(fleet):
    whole = image_body(images=2)
    _, expected = await fleet.ask(whole, "prefill")
    params = await encoded(fleet, whole)
    job = await fleet.admit({**whole, "ec_transfer_params": params}, "prefill")
    first, second = job.envelope.items
    job.drop(kwargs_part("image", first.key))
    (fleet.cache._root / second.key / "encoder_cache.safetensors").unlink()

    await fleet.prefill.process(job)

    _, body = await fleet.run(job)
    assert tokens(body) == tokens(expected)


async def test_a_cached_entry_of_another_shape_is_not_used(fleet):
    body = image_body()
    (mm_hash,) = body["features"]["mm_hashes"]["image"]
    job = await fleet.admit(body, "prefill")
    (item,) = job.envelope.items
    odd = Embedding("float32", (1, 192), bytes(768))
    await fleet.cache.put(mm_hash, odd, key=item.key, alias=item.alias)
    _, fresh = await fleet.ask(body, "prefill")

    assert len(tokens(fresh)[0]) > 0
    with pytest.raises(EmbeddingMissing):
        await fleet.prefill.process(
            await fleet.admit({**without_payload(body), "ec_transfer_params": {"a": 1}}, "prefill")
        )


async def test_a_placeholder_that_does_not_fit_the_item_is_refused(fleet):
    body = image_body()
    body["features"]["mm_placeholders"]["image"][0]["length"] -= 1

    status, answer = await fleet.ask(body, "prefill")

    assert status == 400
    assert answer["error"]["param"] == "mm_placeholders"


async def test_two_swapped_items_are_refused_and_the_engine_lives_on(fleet):
    body = image_body(images=2)
    for name in ("mm_hashes", "kwargs_data", "mm_metadata"):
        body["features"][name]["image"].reverse()

    status, _ = await fleet.ask(body, "prefill")

    assert status == 400
    assert (await fleet.ask(text_body()))[0] == 200


async def test_an_item_that_got_lost_on_the_way_is_an_error_not_an_answer(fleet):
    job = await fleet.admit(image_body(images=2), "prefill")
    job.envelope.items.pop()

    with pytest.raises(ApiError, match="1 of 2") as error:
        await fleet.prefill.process(job)

    assert error.value.status == 500


async def test_a_modality_the_model_lacks_is_refused(fleet):
    body = image_body()
    for name in ("mm_hashes", "mm_placeholders", "kwargs_data", "mm_metadata"):
        body["features"][name] = {"audio": body["features"][name]["image"]}

    status, answer = await fleet.ask(body, "prefill")

    assert status == 400
    assert "audio" in answer["error"]["message"]


async def test_without_a_seed_the_same_request_samples_alike_and_another_differs(fleet):
    body = text_body(temperature=1.5, max_tokens=12)

    _, first = await fleet.ask(body, id="one")
    _, again = await fleet.ask(body, id="one")
    _, other = await fleet.ask(body, id="two")

    assert tokens(first) == tokens(again)
    assert tokens(first) != tokens(other)


async def test_choices_differ_and_a_given_seed_repeats_them(fleet):
    body = text_body(temperature=1.5, max_tokens=12, n=3, seed=7)

    _, first = await fleet.ask(body, id="one")
    _, other = await fleet.ask(body, id="two")

    assert tokens(first) == tokens(other)
    assert len({tuple(choice) for choice in tokens(first)}) == 3
    assert first["usage"]["completion_tokens"] == sum(map(len, tokens(first)))


async def test_each_choice_of_a_batch_is_what_it_would_be_alone(fleet):
    body = text_body(temperature=1.5, max_tokens=12, n=2, seed=7)

    _, batch = await fleet.ask(body)
    _, alone = await fleet.ask(text_body(temperature=1.5, max_tokens=12, seed=8))

    assert tokens(batch)[1] == tokens(alone)[0]


async def test_a_choice_that_ends_early_does_not_disturb_the_others(fleet):
    body = text_body(temperature=1.5, max_tokens=30, n=4, seed=1)
    _, whole = await fleet.ask(body)
    stop = tokens(whole)[0][2]
    body["sampling_params"]["stop_token_ids"] = [stop]

    _, stopped = await fleet.ask(body)

    for before, after in zip(tokens(whole), tokens(stopped), strict=True):
        end = before.index(stop) + 1 if stop in before else len(before)
        assert after == before[:end]


async def test_a_long_prompt_is_prefilled_in_pieces_with_the_same_result(fleet, monkeypatch):
    body = image_body(images=2)
    body["sampling_params"]["prompt_logprobs"] = 1
    _, whole = await fleet.ask(body, "prefill")
    monkeypatch.setattr("workers.models.engine.language.CHUNK_TOKENS", 7)

    _, pieces = await fleet.ask(body, "prefill")

    assert tokens(pieces) == tokens(whole)
    for left, right in zip(
        whole["prompt_logprobs"][1:], pieces["prompt_logprobs"][1:], strict=True
    ):
        assert left.keys() == right.keys()
        for token in left:
            assert left[token]["logprob"] == pytest.approx(right[token]["logprob"], abs=1e-4)


async def test_requests_at_once_are_answered_as_one_by_one(fleet):
    bodies = [text_body(temperature=1.5, seed=i, max_tokens=5 + i, n=1 + i % 2) for i in range(8)]
    bodies += [image_body(images=1 + i % 2) for i in range(4)]
    alone = [(await fleet.ask(body, "prefill"))[1] for body in bodies]

    together = await asyncio.gather(*(fleet.ask(body, "prefill") for body in bodies))

    assert [tokens(body) for _, body in together] == [tokens(body) for body in alone]


async def test_a_cancelled_request_frees_the_engine(fleet):
    job = await fleet.admit(text_body(max_tokens=4000, ignore_eos=True))
    task = asyncio.create_task(fleet.prefill.process(job))
    await fleet.ask(text_body())  # the long one runs beside it

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await fleet.ask(text_body()))[0] == 200


async def test_a_passed_deadline_ends_a_generation(fleet):
    job = await fleet.admit(text_body(max_tokens=4000, ignore_eos=True), deadline_ms=int(soon(0.3)))

    with pytest.raises(ApiError) as error:
        await fleet.prefill.process(job)

    assert error.value.status == 504


async def test_a_bad_word_is_not_generated(fleet):
    _, free = await fleet.ask({**text_body(), "output_mode": "text"})
    source = fleet.engines.source
    word = source.token_text(tokens(free)[0][0], [])

    _, held = await fleet.ask(text_body(bad_words=[word]))

    assert tokens(held)[0][0] != tokens(free)[0][0]


async def test_min_tokens_hold_the_end_back(fleet):
    bias = {"2002": 100}

    _, short = await fleet.ask(text_body(logit_bias=bias))
    _, longer = await fleet.ask(text_body(logit_bias=bias, min_tokens=3))

    assert tokens(short) == [[2002]]
    assert len(tokens(longer)[0]) == 4
    assert longer["choices"][0]["finish_reason"] == "stop"


async def test_generation_ends_at_the_context_length(fleet):
    body = {**text_body(max_tokens=100), "token_ids": [5] * 4093}

    _, answer = await fleet.ask(body)

    assert len(tokens(answer)[0]) == 3
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_choice_ends_in_exactly_one_of_the_given_texts(fleet):
    for seed in range(4):
        body = {
            **text_body(
                temperature=1.0,
                seed=seed,
                max_tokens=20,
                structured_outputs={"choice": ["a café", "a cat", "a cat nap"]},
            ),
            "output_mode": "text",
        }

        _, answer = await fleet.ask(body)

        assert answer["choices"][0]["text"] in ("a café", "a cat", "a cat nap")
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_structured_output_is_what_it_should_be(fleet):
    wanted = {"structured_outputs": {"regex": "(ab){2}c"}, "max_tokens": 12}
    body = text_body(**wanted) | {"output_mode": "text"}

    status, answer = await fleet.ask(body)

    assert (status, answer["choices"][0]["text"]) == (200, "ababc")


async def test_a_constraint_that_is_none_is_the_callers_fault(fleet):
    status, answer = await fleet.ask(text_body(structured_outputs={"regex": "("}))

    assert (status, answer["error"]["param"]) == (400, "structured_outputs")


async def test_ids_and_echoes(fleet):
    body = {**image_body(), "request_id": "mine", "return_token_ids": True}

    _, answer = await fleet.ask(body, "prefill")
    job = await fleet.admit(body, "prefill")
    job.envelope.caller.request_id = "header"
    _, named = await fleet.run(job)

    assert answer["request_id"] == "generate-tokens-mine"
    assert named["request_id"] == "generate-tokens-header"
    assert answer["prompt_token_ids"] == body["token_ids"]
    assert answer["mm_placeholders"] == body["features"]["mm_placeholders"]


async def test_a_chat_hands_its_answers_on_instead_of_ending(fleet):
    prompt = {**text_body(), "request_id": "chatcmpl-1"}
    job = await fleet.admit(text_body())
    job.envelope.kind = Kind.CHAT
    job.envelope.route = [Stop.PREFILL, Stop.DERENDER, Stop.REPLY]
    job.write_msgpack(PROMPTS, [prompt, prompt])

    await fleet.prefill.process(job)

    answers = await job.read_msgpack(GENERATED)
    assert job.envelope.outcome is None
    assert len(answers) == 2
    assert tokens(answers[0]) == tokens(answers[1])


async def test_absent_max_tokens_mean_the_schema_default_in_a_rendered_chat(fleet):
    prompt = text_body()
    del prompt["sampling_params"]["max_tokens"]
    job = await fleet.admit(text_body())
    job.envelope.kind = Kind.CHAT
    job.envelope.route = [Stop.PREFILL, Stop.DERENDER, Stop.REPLY]
    job.write_msgpack(PROMPTS, [prompt])

    await fleet.prefill.process(job)

    (answer,) = await job.read_msgpack(GENERATED)
    assert len(tokens(answer)[0]) == 16


async def test_items_are_placed_by_their_ranges_not_by_their_ids(fleet):
    """A pad id that a user typed is an ordinary token; a range may hold any ids."""
    body = image_body()
    (place,) = body["features"]["mm_placeholders"]["image"]
    _, plain = await fleet.ask(body, "prefill")
    covered = range(place["offset"], place["offset"] + place["length"])
    other_ids = [7 if i in covered else token for i, token in enumerate(body["token_ids"])]

    _, other = await fleet.ask({**body, "token_ids": other_ids}, "prefill")

    assert tokens(other) == tokens(plain)


async def test_runs_inside_a_range_are_used_as_given(fleet):
    body = image_body()
    (place,) = body["features"]["mm_placeholders"]["image"]
    job = await fleet.admit(body, "prefill")
    (item,) = job.envelope.items
    job.envelope.items = [
        Item(
            modality="image",
            mm_hash=item.mm_hash,
            entry=item.entry,
            offset=item.offset - 1,
            length=item.length + 2,
            embeds=[(1, item.length)],
        )
    ]
    _, plain = await fleet.ask(body, "prefill")

    _, given = await fleet.run(job)

    assert place["length"] == item.length
    assert tokens(given) == tokens(plain)
