"""Names inside: plain, equal for equals, and never another's."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.storage.names import is_plain
from schemas.ec import content_of, descriptor_of
from schemas.identity import announced_key, entry_key

TEXT = st.text(max_size=8) | st.sampled_from(["a", "=a", "", "../x", "\ud800", "x" * 300])
OWNERS = st.fixed_dictionaries({"tenant": TEXT, "salt": st.none() | TEXT})
CONTENTS = st.sampled_from(["", "0" * 64, "1" * 64])
ASKED = st.tuples(TEXT, OWNERS, CONTENTS)


def key_of(asked: tuple[str, dict, str]) -> str:
    mm_hash, owner, content = asked
    return entry_key(mm_hash, content=content, **owner)


@given(ASKED, ASKED)
def test_keys_are_equal_just_where_all_they_are_made_of_is(one, other):
    assert (key_of(one) == key_of(other)) is (one == other)
    assert is_plain(key_of(one))


@given(ASKED, TEXT, OWNERS)
def test_what_was_announced_is_never_an_entry_of_its_own(asked, mm_hash, owner):
    alias = announced_key(mm_hash, **owner)

    assert alias != key_of(asked)
    assert is_plain(alias)


@given(ASKED)
def test_a_key_given_as_a_hash_is_another_key(asked):
    key = key_of(asked)

    if key != asked[0]:
        assert entry_key(key) != key


def test_a_hash_of_bytes_is_its_own_key():
    assert entry_key("0a16d93af5") == "0a16d93af5"


def test_a_descriptor_of_other_content_is_none_of_the_item():
    known = {"aa": {"content_digest": "1" * 64}, "=k": {"x": 1}, "bb": {"content_digest": []}}

    def found(key: str, mm_hash: str, content: str) -> dict | None:
        return descriptor_of(known, key=key, mm_hash=mm_hash, content=content)

    assert found("=other", "aa", "1" * 64) == known["aa"]
    assert found("=other", "aa", "2" * 64) is None
    assert found("=k", "aa", "2" * 64) == {"x": 1}
    assert found("bb", "bb", "") == known["bb"]
    assert content_of(known["bb"]) == ""
