from dataclasses import astuple

from loadtests.real_engines.comparison import Comparison, add, compare, predicted
from tests.loadtests.real_engines.samples import exchange

FIRST = exchange(0, range(1000), [7000, 7001, 7002])


def test_the_terms_lead_from_matched_to_cached() -> None:
    second = exchange(1, [*range(1000), 7000, 8, 9], [1], matched=480, cached=896)
    found = compare(FIRST, second)
    assert found == Comparison(480, 500 - 480, 1000 - 500, 1, 896 - 1001, 896)
    assert sum(astuple(found)[:-1]) == found.cached
    assert add([found, found]).cached == 2 * 896


def test_whole_blocks_of_computed_tokens_are_cached() -> None:
    again = [*range(1000), 7000, 7001, 7002]
    assert predicted(FIRST, exchange(1, [*again, 1], [1]), 128) == 896
    assert predicted(FIRST, exchange(1, [*again, 1], [1]), 1) == 1002  # 7002 was never an input
    assert predicted(FIRST, exchange(1, range(896), [1]), 128) == 768  # one is always computed
    assert predicted(FIRST, exchange(1, [5, *range(999)], [1]), 128) == 0
