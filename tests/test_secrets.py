from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import (
    Admin,
    BackendConfig,
    BackendOptions,
    BackendTls,
    ConfigError,
    Discovery,
    FileSource,
    SecretRef,
    Server,
    ServerTls,
    Settings,
)
from gateway.secrets import hash_bytes, hash_key, reveal, warn_of_plain, warn_of_weak


def test_a_secret_is_itself_or_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("from-a-file\n")
    monkeypatch.setenv("THE_SECRET", "from-the-environment")
    assert reveal("itself", "x") == "itself"
    assert reveal(SecretRef(file=str(file)), "x") == "from-a-file"
    assert reveal(SecretRef(env="THE_SECRET"), "x") == "from-the-environment"


@pytest.mark.parametrize("value", [None, "", "  \n", "two\nlines", "gr\u00fcn"])
def test_what_cannot_be_used_names_the_option_and_never_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    file = tmp_path / "secret"
    if value is not None:
        file.write_text(value)
        monkeypatch.setenv("THE_SECRET", value)
    for place in (SecretRef(env="THE_SECRET"), SecretRef(file=str(file))):
        with pytest.raises(ConfigError, match=r"admin.token: ") as caught:
            reveal(place, "admin.token")
        assert (place.env or place.file or "") in str(caught.value)
        assert value is None or not value.strip() or value.strip() not in str(caught.value)


def test_a_file_that_everybody_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("very-secret")
    with caplog.at_level(logging.WARNING):
        file.chmod(0o640)
        reveal(SecretRef(file=str(file)), "admin.token")
        assert caplog.text == ""
        file.chmod(0o644)
        reveal(SecretRef(file=str(file)), "admin.token")
    assert f"admin.token: {file} can be read by everybody" in caplog.text
    assert "very-secret" not in caplog.text


def test_settings_that_everybody_can_read_are_warned_of_when_they_say_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.yaml"
    file.touch(0o644)
    file.chmod(0o644)
    kept = SecretRef(env="X")
    with caplog.at_level(logging.WARNING):
        warn_of_plain(Settings(), file)
        warn_of_plain(Settings(backends=[BackendConfig(url="http://x", api_key=kept)]), file)
        assert caplog.text == ""
        for plain in (
            Settings(admin=Admin(token="t0p-secret")),
            Settings(backends=[BackendConfig(url="http://x", api_key="t0p-secret")]),
            Settings(server=Server(tls=ServerTls(cert="c", key="k", key_password="t0p-secret"))),
            Settings(
                discovery=Discovery(
                    file=[FileSource(path="x", backend=BackendOptions(api_key="t0p-secret"))]
                )
            ),
            Settings(backend_tls=BackendTls(cert="c", key="k", key_password="t0p-secret")),
        ):
            caplog.clear()
            warn_of_plain(plain, file)
            assert f"{file} can be read by everybody" in caplog.text
            assert "t0p-secret" not in caplog.text


def test_a_token_that_can_be_guessed_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for admin in (Admin(), Admin(token="sixteen-letters!")):
            warn_of_weak(Settings(admin=admin))
        assert caplog.text == ""
        warn_of_weak(Settings(admin=Admin(token="t0p-secret")))
    assert "admin.token has 10 characters" in caplog.text
    assert "t0p-secret" not in caplog.text


def test_a_short_key_is_no_key() -> None:
    with pytest.raises(ConfigError, match="12 characters, expected at least 16"):
        hash_bytes(None, "only-guesses", "auth.keys[0].key")


def test_the_command_makes_keys_that_are_found_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["hash-key"]) == 0
    key, hashed = (line.split()[1] for line in capsys.readouterr().out.splitlines())
    assert len(key) > 40
    assert hashed == hash_key(key)
    monkeypatch.setattr(sys, "stdin", io.StringIO(key + "\n"))
    assert main(["hash-key", "--stdin"]) == 0
    assert capsys.readouterr().out.strip() == hashed
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    assert main(["hash-key", "--stdin"]) == 2
    assert "short" not in capsys.readouterr().err
