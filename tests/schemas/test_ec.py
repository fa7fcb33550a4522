import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ec import descriptors, is_plain_hash, is_present, seed_form, vllm_form

HASHES = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
REST = st.dictionaries(
    st.sampled_from(["peer_host", "peer_port", "size_bytes", "shape", "later"]),
    st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
)
FOUND = st.dictionaries(HASHES, REST, max_size=4)


@given(FOUND)
def test_both_forms_carry_the_same_descriptors(found: dict[str, dict[str, object]]) -> None:
    assert descriptors(seed_form(found)) == found
    assert descriptors(vllm_form(found)) == found


def test_the_seeds_example_names_its_host() -> None:
    params = {"ec_items": [{"mm_hash": "abc123", "peer_host": "10.0.0.1"}]}
    assert descriptors(params) == {"abc123": {"peer_host": "10.0.0.1"}}


def test_unknown_keys_and_entries_without_a_hash_do_no_harm() -> None:
    params = {
        "consumer_zmq": "tcp://x",
        "ec_items": [{"transfer_id": 7}, "odd", {"mm_hash": 5}, {"mm_hash": "a", "future": {}}],
        "b": {"peer_host": "h"},
    }
    assert descriptors(params) == {"a": {"future": {}}, "b": {"peer_host": "h"}}


@pytest.mark.parametrize("params", [None, {}, [], "x", 5, True])
def test_empty_or_odd_parameters_count_as_absent(params: object) -> None:
    assert not is_present(params)
    assert descriptors(params) == {}


@pytest.mark.parametrize("params", [{"a": {}}, {"ec_items": []}, {"anything": 1}])
def test_any_non_empty_object_is_present(params: object) -> None:
    assert is_present(params)


@pytest.mark.parametrize("text", ["a", "0" * 64, "lora:abc", "img-uuid-1", "x" * 200])
def test_tokens_are_plain(text: str) -> None:
    assert is_plain_hash(text)


@given(st.text(max_size=20))
def test_a_plain_hash_stays_one_segment_of_a_path(text: str) -> None:
    if is_plain_hash(text):
        assert text == text.strip("./\\\0 ") or text.endswith(".")
        assert not set(text) & set("/\\\0\n ")
        assert not text.startswith(".")
