from gateway.prefix.generations import MAX_MODELS, Generations


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


def test_what_others_raise_is_bounded_and_never_lowers() -> None:
    generations = Generations()
    assert generations.raise_to("m", 5)
    assert not generations.raise_to("m", 4)
    assert generations.numbers() == {"m": 5}
    for number in range(MAX_MODELS + 10):
        generations.raise_to(str(number), 1)
    assert len(generations.numbers()) == MAX_MODELS
    assert generations.raise_to("m", 6), "those that are known go on"
