import json
from pathlib import Path
from typing import Any

from loadtests.hop.bodies import write_bodies, write_warm_bodies


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def prompts(bodies: list[dict[str, Any]]) -> list[str]:
    return ["".join(message["content"] for message in body["messages"]) for body in bodies]


def test_bodies_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_bodies(tmp_path / name, 2048, 10)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_bodies_have_their_size_and_share_eight_prefixes(tmp_path: Path) -> None:
    write_bodies(tmp_path / "bodies", 2048, 40)
    lines = (tmp_path / "bodies").read_text().splitlines()
    assert all(abs(len(line) - 2048) < 200 for line in lines)
    bodies = read(tmp_path / "bodies")
    assert len({body["messages"][0]["content"] for body in bodies}) == 8
    assert len(set(prompts(bodies))) == 40


def test_warm_bodies_share_nothing(tmp_path: Path) -> None:
    write_warm_bodies(tmp_path / "warm", 32 * 1024, 30)
    found = prompts(read(tmp_path / "warm"))
    assert len({prompt[:16] for prompt in found}) == 30
    assert all(len(prompt) >= 32 * 1024 for prompt in found)
