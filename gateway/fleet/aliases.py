"""Names under which clients may ask for models, besides those that backends use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.config import ConfigError


class Aliases:
    """What each alias stands for: models, by the names that backends list, the preferred ones
    first.

    Raises:
        ConfigError: one stands for another alias.
    """

    def __init__(self, models: Mapping[str, Sequence[str]]) -> None:
        for alias, names in models.items():
            for name in names:
                if name in models and name != alias:
                    raise ConfigError(
                        f"models.{alias}: got {name!r}, which is an alias too; expected names that"
                        " backends list",
                        field=f"models.{alias}",
                    )
        self._models = {alias: tuple(names) for alias, names in models.items()}

    def names(self, model: str) -> tuple[str, ...]:
        """The models that a name stands for; none when it is no alias."""
        return self._models.get(model, ())

    def main(self, model: str) -> str:
        """The first of them; `model` itself when it is no alias."""
        names = self._models.get(model)
        return model if names is None else names[0]

    def served_by(self, models: Collection[str]) -> set[str]:
        """Everything that a backend of these models can be asked for."""
        served = {
            alias for alias, names in self._models.items() if any(name in models for name in names)
        }
        # An alias that is spelt like a model hides it where it does not stand for it.
        return served | {model for model in models if model not in self._models}
