"""The metrics of several processes as those of one."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.families import FAMILIES
from gateway.telemetry.merging import Reading, Series, Tally, merged

Values = dict[str, float]


def counter(value: float, **labels: str) -> Series:
    return Series("things", "counter", "Things.", [("things_total", labels, value)])


def gauge(name: str, value: float, **labels: str) -> Series:
    return Series(name, "gauge", "State.", [(name, labels, value)])


def histogram(low: int, all: int, sum: float) -> Series:
    samples = [
        ("took_bucket", {"le": "1.0"}, float(low)),
        ("took_bucket", {"le": "+Inf"}, float(all)),
        ("took_count", dict[str, str](), float(all)),
        ("took_sum", dict[str, str](), sum),
    ]
    return Series("took", "histogram", "Seconds.", samples)


def values(reading: Reading) -> list[float]:
    return [value for series in reading for _, _, value in series.samples]


def shown(tally: Tally, **workers: int) -> Values:
    """Samples of the page, by name and the values of their labels."""
    states = {"serving": 0, "silent": 0, "starting": 0} | workers
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(tally.snapshot(states).render().decode())
        for sample in family.samples
    }


def test_every_gauge_says_how_it_merges_and_nothing_else_does() -> None:
    unsaid = [family.name for family in FAMILIES if (family.kind == "gauge") != bool(family.merge)]
    assert unsaid == []


def test_counters_and_histograms_are_added_up() -> None:
    one, other = [counter(3, a="x"), histogram(1, 2, 4.5)], [counter(4, a="x"), histogram(2, 5, 9)]
    assert values(merged([one, other])) == [7, 3, 7, 7, 13.5]


def test_what_only_one_has_is_in_it() -> None:
    both = merged([[counter(1, a="x")], [counter(2, a="y")], [gauge("other", 5)]])
    assert values(both) == [1, 2, 5]


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("prefixgate_in_flight", 5),
        ("prefixgate_index_nodes", 3),
        ("prefixgate_backend_up", 2),
        ("prefixgate_bytes_per_token", 2.5),
        ("process_resident_memory_bytes", 5),
        ("process_start_time_seconds", 2),
    ],
)
def test_gauges_as_their_families_say(name: str, together: float) -> None:
    assert values(merged([[gauge(name, 2)], [gauge(name, 3)]])) == [together]


def test_what_a_worker_counted_outlives_it_and_what_it_had_does_not() -> None:
    tally = Tally()
    for worker in (1, 2):
        tally.report(worker, [counter(10.0 * worker), gauge("prefixgate_in_flight", worker)])
    assert shown(tally) == {"things_total": 30, "prefixgate_in_flight": 3}
    tally.gone(2)
    assert shown(tally) == {"things_total": 30, "prefixgate_in_flight": 1}
    tally.report(2, [counter(5), gauge("prefixgate_in_flight", 4)])  # the one in its place
    assert shown(tally) == {"things_total": 35, "prefixgate_in_flight": 5}
    tally.gone(2)
    tally.gone(1)
    assert shown(tally) == {"things_total": 35}


def test_a_total_does_not_fall_by_its_last_digit_when_a_worker_ends() -> None:
    tally = Tally()
    for worker, value in enumerate((0.1, 0.2, 0.3)):
        tally.report(worker, [counter(value)])
    before = shown(tally)["things_total"]
    tally.gone(0)  # the others' come first now; added up one by one that is 0.6, and was more
    assert 0.1 + 0.2 + 0.3 > 0.2 + 0.3 + 0.1
    assert shown(tally)["things_total"] == before


def test_a_new_reading_takes_the_place_of_the_last() -> None:
    tally = Tally()
    for count in (1, 2, 5):
        tally.report(1, [counter(count)])
    assert shown(tally) == {"things_total": 5}


def test_one_that_never_said_anything_leaves_nothing() -> None:
    tally = Tally()
    tally.gone(1)
    assert shown(tally) == {}


def test_what_was_counted_for_a_backend_goes_with_it() -> None:
    tally = Tally()
    tally.report(1, [counter(1, backend="a")])
    tally.report(2, [counter(1, backend="a"), counter(2, backend="b")])
    tally.gone(2)
    assert shown(tally) == {"things_total a": 2}  # the others do not have b any more


def test_workers_are_counted_by_state() -> None:
    name = "prefixgate_workers"
    samples = [(name, {"state": state}, 1.0) for state in ("serving", "silent", "starting")]
    tally = Tally()
    tally.report(1, [Series(name, "gauge", "Processes.", samples)])
    said = shown(tally, serving=3, silent=1, starting=2)
    assert said == {f"{name} serving": 3, f"{name} silent": 1, f"{name} starting": 2}
