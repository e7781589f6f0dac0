from gateway.prefix.generations import Generations


def test_each_generation_has_a_namespace_of_its_own() -> None:
    generations = Generations()
    seen = {generations.namespace("m", b"ns")}
    assert seen == {b"ns"}
    for _ in range(3):
        generations.raise_for("m")
        seen.add(generations.namespace("m", b"ns"))
    assert len(seen) == 4


def test_other_models_keep_theirs() -> None:
    generations = Generations()
    generations.raise_for("m")
    assert generations.namespace("other", b"ns") == b"ns"
