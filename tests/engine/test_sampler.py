import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.models.engine import sampler
from workers.models.engine.logprobs import chosen_candidates, top_candidates

ROWS = st.lists(
    st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6), min_size=1, max_size=3
).map(torch.tensor)


def kept(logits):
    return [set(torch.nonzero(row > sampler.NEVER).flatten().tolist()) for row in logits]


@given(ROWS, st.integers(1, 8))
def test_top_k_keeps_the_likeliest_and_their_equals(logits, k):
    found = kept(sampler.truncate(logits, min_p=0, top_k=k, top_p=1))

    for row, ids in zip(logits, found, strict=True):
        worst = row.sort(descending=True).values[min(k, 6) - 1]
        assert ids == {i for i, value in enumerate(row) if value >= worst}


@given(ROWS, st.floats(0.05, 1.0))
def test_top_p_keeps_a_smallest_set_that_reaches_the_mass(logits, p):
    for row, ids in zip(
        logits, kept(sampler.truncate(logits, min_p=0, top_k=0, top_p=p)), strict=True
    ):
        probs = row.softmax(-1)
        mass = sum(float(probs[i]) for i in ids)
        assert ids
        assert mass >= p - 1e-4
        if len(ids) > 1:
            assert mass - min(float(probs[i]) for i in ids) < p + 1e-4


@given(ROWS, st.floats(0.01, 1.0))
def test_min_p_compares_with_the_likeliest(logits, p):
    for row, ids in zip(
        logits, kept(sampler.truncate(logits, min_p=p, top_k=0, top_p=1)), strict=True
    ):
        probs = row.softmax(-1)
        assert all(probs[i] >= p * probs.max() - 1e-6 for i in ids)
        assert int(probs.argmax()) in ids


def test_penalties_are_those_of_the_formula():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    counts = torch.tensor([[2.0, 1.0, 0.0, 0.0]])
    seen = torch.tensor([[True, True, True, False]])

    repeated = sampler.repeat_penalty(logits, seen, 2.0)
    counted = sampler.count_penalties(repeated, counts, 0.5, 0.25)

    assert repeated.tolist() == [[1.0, -4.0, 0.5, 0.5]]
    assert counted.tolist() == [[1.0 - 1.25, -4.0 - 0.75, 0.5, 0.5]]


def test_bias_is_added_to_its_token_in_every_row():
    logits = sampler.add_bias(torch.zeros(2, 3), torch.tensor([1, 2]), torch.tensor([4.0, -1.0]))

    assert logits.tolist() == [[0.0, 4.0, -1.0], [0.0, 4.0, -1.0]]


def test_only_allowed_tokens_are_left():
    assert kept(sampler.allow_only(torch.zeros(1, 5), torch.tensor([1, 3]))) == [{1, 3}]


def test_a_bad_word_blocks_its_last_token_after_its_beginning():
    words = [[7], [1, 2, 3]]

    assert list(sampler.bad_last_tokens(words, [1, 2])) == [7, 3]
    assert list(sampler.bad_last_tokens(words, [2, 1])) == [7]
    assert list(sampler.bad_last_tokens(words, [])) == [7]


def test_the_same_seed_draws_the_same_and_rows_do_not_disturb_each_other():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))

    def draws(seeds):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        rows = logits.expand(len(seeds), -1)
        return torch.stack([sampler.draw(rows, generators) for _ in range(20)]).T.tolist()

    assert draws([3, 4]) == [*draws([3]), *draws([4])]
    assert draws([3]) != draws([4])


def test_draws_follow_the_probabilities():
    logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    generator = torch.Generator().manual_seed(0)

    drawn = [int(sampler.draw(logits, [generator])) for _ in range(4000)]

    shares = [drawn.count(i) / 4000 for i in range(3)]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_removed_tokens_are_never_drawn():
    logits = torch.tensor([[sampler.NEVER, 0.0, sampler.NEVER]])
    generator = torch.Generator().manual_seed(0)

    assert {int(sampler.draw(logits, [generator])) for _ in range(50)} == {1}


def test_candidates_start_with_the_token_and_do_not_repeat_it():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])

    (row,) = top_candidates(logits, [2], 2)

    assert [(c.token_id, c.rank) for c in row] == [(2, 2), (1, 1)]
    assert row[1].logprob == pytest.approx(float(logits.log_softmax(-1)[0, 1]))


def test_zero_candidates_still_score_the_token():
    (row,) = top_candidates(torch.tensor([[1.0, 3.0]]), [0], 0)

    assert [(c.token_id, c.rank) for c in row] == [(0, 2)]


def test_all_candidates_are_the_whole_vocabulary():
    (row,) = top_candidates(torch.randn(1, 9), [4], -1)

    assert sorted(c.token_id for c in row) == list(range(9))
    assert sum(math.exp(c.logprob) for c in row) == pytest.approx(1.0)


def test_listed_candidates_come_in_their_order():
    (row,) = chosen_candidates(torch.tensor([[1.0, 3.0, 2.0]]), [1], [2, 0, 1])

    assert [c.token_id for c in row] == [1, 2, 0]
