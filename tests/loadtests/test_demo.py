"""The demonstration itself, with real processes and a workload of a few requests."""

import shlex
from pathlib import Path

import msgspec
import pytest

from gateway.admin.views import ExplainRequest
from gateway.config import convert
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


def test_kept_fleet_comes_with_lines_that_the_gateway_understands() -> None:
    chat, explain, *others = (shlex.split(line) for line in demo.curl_lines("http://gateway:1"))
    asked = convert(msgspec.json.decode(explain[-1]), ExplainRequest, "explain")
    assert asked.body == msgspec.json.decode(chat[-1])
    assert chat[2] == f"http://gateway:1{asked.path}"
    assert [line[-1] for line in others] == [
        "http://gateway:1/admin/v1/backends",
        "http://gateway:1/metrics",
    ]


def test_an_engine_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []
    start = Processes.start

    def watch(self, name, command):
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
