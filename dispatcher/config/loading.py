"""Arguments over environment over file over defaults, and every fault of all of them at once."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from dispatcher.config.access import Hashed, KeyEntry, KeyLimits, RegistrationSettings
from dispatcher.config.annotate import StepSettings
from dispatcher.config.document import Place
from dispatcher.config.faults import dotted, explain
from dispatcher.config.known_answer import KnownAnswer, Message
from dispatcher.config.kubernetes import KubernetesEntry
from dispatcher.config.servers import ServerEntry
from dispatcher.config.settings import Config, sections, setting_places
from dispatcher.config.sources import Source, from_arguments, from_environment, from_file
from dispatcher.config.steps import STEPS, over_steps
from dispatcher.errors import ConfigError, Fault


def load_config(path: Path | None, overrides: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Read and validate every setting.

    Args:
        path: A YAML file; None for none.
        overrides: Flags or keyword arguments, nested: `{"pool": {"stall_s": 2}}`. A None is one not given.
        environ: The environment: `DISPATCHER_POOL__STALL_S=2`, `DISPATCHER_API_KEY=...`.

    Raises:
        ConfigError: With all faults, each with the setting's path, what would be right, and where it was set.
    """
    sources = (from_arguments(overrides), from_environment(environ), from_file(path))
    faults = [fault for source in sources for fault in source.faults]
    config = _validated(sources, faults)
    if config is None or faults:
        raise ConfigError(tuple(faults))
    return config


def _validated(sources: Sequence[Source], faults: list[Fault]) -> Config | None:
    """The settings, or None and more faults.

    The error of pydantic ends here, unchained: it holds the values, and with them the secrets.
    """
    try:
        return Config.model_validate(_merged(sources))
    except ValidationError as error:
        for place, message in explain(error, _candidates):
            faults.append(Fault(dotted(place), f"{message}{_origin(place, sources)}"))
        return None


def _merged(sources: Sequence[Source]) -> dict[str, object]:
    """The tree of settings; the first source wins. A list of servers replaces another as a whole."""
    top: dict[str, object] = {}
    nested: dict[str, dict[str, object]] = {}
    for source in reversed(sources):
        for (key, *names), value in source.values.items():
            if names:
                nested.setdefault(key, {})[names[0]] = value
            else:
                top[key] = value
    if (steps := over_steps([source.values for source in sources])) is not None:
        nested[STEPS[0]][STEPS[1]] = steps
    return {**top, **nested}


def _origin(place: Place, sources: Sequence[Source]) -> str:
    """Where a setting was set, as near to the spot as is known; nothing for a default."""
    setting_parts = min(len(place), 2 if place[0] in sections() else 1)
    for source in sources:
        for parts in range(len(place), setting_parts - 1, -1):
            if place[:parts] in source.origins:
                return f" (from {source.origins[place[:parts]]})"
    return ""


def _kind_at(place: Place) -> type[BaseModel] | None:
    """What the entries of a list of settings are; None where the place is in no such list."""
    if "servers" in place:
        return ServerEntry
    kinds: dict[tuple[int | str, ...], type[BaseModel]] = {
        STEPS: StepSettings,
        ("discovery", "dns"): ServerEntry,
        ("discovery", "kubernetes"): KubernetesEntry,
        ("pool", "canary"): Message if "messages" in place else KnownAnswer,
        ("api", "keys"): KeyLimits if "limits" in place else KeyEntry,
        ("discovery", "registration"): Hashed if "tokens" in place else RegistrationSettings,
    }
    return kinds.get(place[:2])


def _candidates(place: Place) -> Collection[str]:
    """What a misspelt key may have meant: one of its siblings, or a setting of another section."""
    if (kind := _kind_at(place)) is not None:
        return tuple(kind.model_fields)
    siblings = Config.model_fields if len(place) == 1 else sections()[str(place[0])]
    return *siblings, *(dotted(setting) for setting in setting_places())
