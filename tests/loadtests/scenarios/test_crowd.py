from __future__ import annotations

import pytest

from loadtests.scenarios import crowd
from loadtests.scenarios.crowd import KINDS, OURS


def test_no_engine_gets_much_more_than_the_others() -> None:
    rows = crowd.run()
    for kind in KINDS:
        ours = rows[f"{OURS}, {kind}"]
        assert ours["max/mean requests"] <= 1.3
        assert ours["max/mean work"] <= 1.3


@pytest.mark.parametrize("cached", [False, True])
def test_a_crowd_that_shares_a_beginning_shares_nothing_else(*, cached: bool) -> None:
    requests = crowd.crowd(shared=True, cached=cached)[-crowd.REQUESTS :]
    blocks = crowd.PREFIX_TOKENS // 512
    assert len({request.blocks[:blocks] for request in requests}) == 1
    deeper = [request.blocks[blocks] for request in requests if len(request.blocks) > blocks]
    assert len(set(deeper)) == len(deeper) > 0


def test_all_of_it_comes_before_anything_is_answered() -> None:
    requests = crowd.crowd(shared=False, cached=False)
    assert requests[-1].arrival - requests[0].arrival < crowd.SPREAD
    assert len({request.blocks[0] for request in requests}) == crowd.REQUESTS
