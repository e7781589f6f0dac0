"""Names for models besides those that backends use."""

from __future__ import annotations

import pytest

from gateway.config import ConfigError
from gateway.fleet.aliases import Aliases


def test_what_a_name_stands_for() -> None:
    aliases = Aliases({"small": ["m1", "m2"]})
    assert aliases.names("small") == ("m1", "m2")
    assert aliases.names("m1") == ()
    assert (aliases.main("small"), aliases.main("m1")) == ("m1", "m1")


def test_what_can_be_asked_for() -> None:
    aliases = Aliases({"small": ["m1", "m2"], "large": ["m3"]})
    assert aliases.served_by(["m2", "m4"]) == {"m2", "m4", "small"}
    assert aliases.served_by([]) == set()


def test_an_alias_spelt_like_a_model() -> None:
    spread, hiding = Aliases({"m1": ["m1", "m2"]}), Aliases({"m1": ["m2"]})
    assert spread.served_by(["m1"]) == {"m1"}
    assert spread.served_by(["m2"]) == {"m1", "m2"}
    assert hiding.served_by(["m1"]) == set()


def test_aliases_of_aliases_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"models\.a: got 'b'"):
        Aliases({"a": ["b"], "b": ["m"]})
