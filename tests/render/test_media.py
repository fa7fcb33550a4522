from hypothesis import given
from hypothesis import strategies as st

from workers.render.media import MediaItem, Replacement, expand


def item(*tokens: int) -> MediaItem:
    return MediaItem("image", "h", tokens, None, None, None)


@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
def test_replacements_take_exactly_the_place_of_their_spans(
    texts: list[list[int]], data: st.DataObject
) -> None:
    """Text between the items is untouched, whatever order the spans are given in."""
    ids, spans = list(texts[0]), []
    for text in texts[1:]:
        length = data.draw(st.integers(1, 3))
        spans.append((len(ids), length))
        ids += [99] * length + text
    items = [item(*[100 + n] * data.draw(st.integers(0, 4))) for n in range(len(spans))]
    order = data.draw(st.permutations(range(len(spans))))

    expanded, ranges = expand(ids, [spans[i] for i in order], [items[i] for i in order])

    expected = list(texts[0])
    for one, text in zip(items, texts[1:], strict=True):
        expected += [*one.replacement, *text]
    assert expected == expanded
    for number, (start, length) in zip(order, ranges, strict=True):
        assert list(items[number].replacement) == expanded[start : start + length]


def test_runs_read_like_the_tokens_they_stand_for() -> None:
    replacement = Replacement(((1, 2), (5, 1), (1, 3)))

    assert len(replacement) == 6
    assert list(replacement) == [1, 1, 5, 1, 1, 1]
