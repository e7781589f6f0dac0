from loadtests.rivals.prefix_tree import PrefixTree
from tests.policies.views import chain


def test_the_longest_known_beginning_and_its_owners_in_order() -> None:
    tree = PrefixTree()
    tree.insert(chain("s", "x", "1"), "a")
    tree.insert(chain("s", "x"), "b")
    tree.insert(chain("s", "y"), "c")
    assert tree.match(chain("s", "x", "1", "more")) == (3, ["a"])
    assert tree.match(chain("s", "x", "2")) == (2, ["a", "b"])
    assert tree.match(chain("s", "z")) == (1, ["a", "b", "c"])
    assert tree.match(chain("x")) == (0, [])
    assert tree.match(b"") == (0, [])
    tree.insert(chain("s", "x"), "a")
    assert tree.match(chain("s", "x")) == (2, ["a", "b"])


def test_a_match_ends_where_no_eligible_owner_is_left() -> None:
    tree = PrefixTree()
    tree.insert(chain("s", "x", "1"), "a")
    tree.insert(chain("s"), "b")
    assert tree.match(chain("s", "x", "1"), among={"b", "c"}) == (1, ["b"])
    assert tree.match(chain("s", "x", "1"), among={"c"}) == (0, [])


def test_the_oldest_goes_first_and_a_beginning_after_its_end() -> None:
    tree = PrefixTree()
    tree.insert(chain("old", "1", "2"), "a")
    tree.insert(chain("new", "1"), "a")
    tree.insert(chain("old", "1", "2"), "b")
    tree.trim(3)
    assert tree.match(chain("old", "1", "2"), among={"a"}) == (1, ["a"])
    assert tree.match(chain("new", "1")) == (2, ["a"])
    assert tree.match(chain("old", "1", "2"), among={"b"}) == (3, ["b"])
    tree.insert(chain("old", "1", "2"), "a")
    assert tree.match(chain("old", "1", "2")) == (3, ["b", "a"])
    tree.trim(0)
    assert tree.match(chain("old")) == (0, [])
