"""Every kind of request through a whole fleet on the memory bus."""

import pytest

from schemas.routes import Stop
from tests.fleet.asking import CHAT, COMPLETION, GENERATE, NAME, agreed, chat, generate, picture

RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"


async def test_a_text_chat_goes_from_render_straight_to_prefill(embedded):
    answer = await embedded.ask(CHAT, chat("Hello"))

    assert answer["object"] == "chat.completion"
    assert answer["model"] == NAME
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    assert not embedded.sent_to(Stop.COORDINATE)


async def test_a_picture_changes_the_answer(embedded):
    with_first = await embedded.say(chat("What is it?", [picture(1)]))
    with_second = await embedded.say(chat("What is it?", [picture(2)]))
    without = await embedded.say(chat("What is it?"))

    assert len({with_first, with_second, without}) == 3


async def test_two_pictures_are_told_apart_by_their_order(embedded):
    one = await embedded.say(chat("Which?", [picture(1), picture(2)]))
    other = await embedded.say(chat("Which?", [picture(2), picture(1)]))

    assert one != other


async def test_the_same_picture_twice_is_encoded_once(embedded):
    await embedded.ask(CHAT, chat("Same?", [picture(1), picture(1)]))

    (to_encode,) = embedded.sent_to(Stop.ENCODE)
    assert len(to_encode.items) == 2
    assert sum(name.startswith("kwargs:") for name in to_encode.parts) == 1
    assert len(list(embedded.ec.glob("*/*/*.safetensors"))) == 1


async def test_a_picture_seen_before_passes_encode_by(embedded):
    first = await embedded.ask(CHAT, chat("Again?", [picture(1)]))
    second = await embedded.ask(CHAT, chat("Again?", [picture(1)]))

    assert agreed(first) == agreed(second)
    assert len(embedded.sent_to(Stop.ENCODE)) == 1


async def test_a_list_of_prompts_is_answered_as_a_list(embedded):
    body = {"model": NAME, "max_tokens": 4, "temperature": 0}

    both = await embedded.ask(COMPLETION, {**body, "prompt": ["One", "Two"]})
    alone = await embedded.ask(COMPLETION, {**body, "prompt": "Two"})

    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["choices"][1]["text"] == alone["choices"][0]["text"]


async def test_the_stages_in_a_row_by_hand_answer_as_the_chat_does(embedded):
    body = chat("Describe it.", [picture(1)])
    coupled = await embedded.ask(CHAT, body)

    rendered = await embedded.ask(RENDER, body)
    generated = await embedded.ask(GENERATE, generate(rendered))
    derendered = await embedded.ask(
        DERENDER,
        {"generate_response": generated, "chat_request": body, "prompt_tokens": 1},
    )

    assert generated["usage"]["prompt_tokens"] == len(rendered["token_ids"])
    assert (
        derendered["choices"][0]["message"]["content"]
        == (coupled["choices"][0]["message"]["content"])
    )


async def test_a_bare_render_holds_tensors_and_metadata_of_each_item(embedded):
    rendered = await embedded.ask(RENDER, chat("Two", [picture(1), picture(2, 128, 64)]))

    features = rendered["features"]
    lengths = [place["length"] for place in features["mm_placeholders"]["image"]]
    assert lengths == [6, 8]
    for payload in ("kwargs_data", "mm_metadata", "mm_hashes"):
        assert len(features[payload]["image"]) == 2
    assert not embedded.sent_to(Stop.ENCODE)


async def test_a_generate_with_tensors_tells_where_the_embeddings_are(embedded):
    rendered = await embedded.ask(RENDER, chat("Describe it.", [picture(1), picture(1)]))

    generated = await embedded.ask(GENERATE, generate(rendered, payload="kwargs_data"))

    (entry,) = generated["ec_transfer_params"]["ec_items"]
    assert entry["mm_hash"] == rendered["features"]["mm_hashes"]["image"][0]
    assert entry["item_indices"] == [0, 1]
    assert len(generated["choices"][0]["token_ids"]) == 8


async def test_a_generate_with_metadata_and_a_cache_entry_runs_prefill_alone(embedded):
    rendered = await embedded.ask(RENDER, chat("Describe it.", [picture(1)]))
    encoded = await embedded.ask(GENERATE, generate(rendered, payload="kwargs_data"))
    embedded.bus.sent.clear()

    loaded = await embedded.ask(
        GENERATE,
        generate(rendered, payload="mm_metadata", ec_transfer_params=encoded["ec_transfer_params"]),
    )

    assert loaded["choices"] == encoded["choices"]
    assert not embedded.sent_to(Stop.ENCODE)
    assert not embedded.sent_to(Stop.COORDINATE)


async def test_a_text_is_tokenized_and_back(embedded):
    tokens = (await embedded.ask("/tokenize", {"model": NAME, "prompt": "Hello there"}))["tokens"]
    text = (await embedded.ask("/detokenize", {"model": NAME, "tokens": tokens}))["prompt"]

    assert text == "Hello there"


def with_raw_media(rendered: dict, url: object) -> dict:
    """A generate body that brings the picture itself, its placeholder not expanded yet."""
    (place,) = rendered["features"]["mm_placeholders"]["image"]
    ids, start = rendered["token_ids"], place["offset"]
    body = generate(rendered, return_token_ids=True)
    body["token_ids"] = ids[: start + 1] + ids[start + place["length"] :]
    del body["features"]
    return body | {"content_parts": [{"type": "image_url", "url": url}, {"type": "other"}]}


async def test_a_generate_with_raw_media_is_rendered_first(embedded):
    rendered = await embedded.ask(RENDER, chat("What is it?", [picture(1)]))
    with_features = await embedded.ask(GENERATE, generate(rendered))

    answer = await embedded.ask(GENERATE, with_raw_media(rendered, picture(1)))

    assert answer["prompt_token_ids"] == rendered["token_ids"]
    assert answer["mm_placeholders"] == rendered["features"]["mm_placeholders"]
    assert answer["choices"][0]["token_ids"] == with_features["choices"][0]["token_ids"]


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", 7, None, "ftp://x/y.png"])
async def test_raw_media_that_cannot_be_read_are_refused(embedded, url):
    rendered = await embedded.ask(RENDER, chat("What is it?", [picture(1)]))

    answer = await embedded.ask(GENERATE, with_raw_media(rendered, url), status=400)

    assert answer["error"]["type"] == "BadRequestError"


async def test_raw_media_need_their_placeholder(embedded):
    rendered = await embedded.ask(RENDER, chat("What is it?", [picture(1)]))
    body = with_raw_media(rendered, picture(1))
    body["token_ids"] = [1, 2, 3]

    await embedded.ask(GENERATE, body, status=400)
