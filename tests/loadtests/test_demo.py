"""The demonstration itself, with real processes and a workload of a few requests."""

from pathlib import Path

import msgspec
import pytest

from loadtests import demo
from loadtests.process import Processes
from loadtests.workload import Mix

TINY = Mix(chats=3, documents=2, one_offs=2, arrivals=0.5, think=0.2, question_gap=0.3)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MIX", TINY)


def test_it_measures_both_policies_and_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    code = demo.main(["--json", str(file)])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "times the prefix hits" in shown.out
    figures = msgspec.json.decode(file.read_bytes())
    assert list(figures["summaries"]) == list(demo.POLICIES)
    sent = [
        sorted((s["session"], s["turn"]) for s in recording["samples"])
        for recording in figures["recordings"].values()
    ]
    assert sent[0] == sent[1]
    for recording in figures["recordings"].values():
        assert len({sample["backend"] for sample in recording["samples"]}) == demo.ENGINES
        assert all(sample["prompt_tokens"] and sample["ttft"] for sample in recording["samples"])


def test_an_engine_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []
    start = Processes.start

    def watch(self, name, command):  # type: ignore[no-untyped-def]
        service = start(self, name, command)
        started.append(service)
        return service

    check = Processes.check

    def kill_first(self: Processes) -> None:
        started[0].process.kill()
        started[0].process.wait()
        check(self)

    monkeypatch.setattr(Processes, "start", watch)
    monkeypatch.setattr(Processes, "check", kill_first)
    assert demo.main([]) == 1
    assert "engine 1 ended" in capsys.readouterr().err
    assert all(service.process.returncode is not None for service in started)
