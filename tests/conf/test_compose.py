from __future__ import annotations

import copy
import re
import tomllib
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests.conf.compose import COMPOSE, ENGINES, ROOT, SERVICES, mounts
from tests.conf.compose_schema import COMPOSE as SCHEMA

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_file_fits_the_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)


@pytest.mark.parametrize(
    "change",
    [
        {"privileged": True},
        {"network_mode": "host"},
        {"cap_add": ["SYS_ADMIN"]},
        {"comand": ["serve"]},
        {"ports": ["8080:8080"]},
        {"volumes": ["/var/run/docker.sock:/var/run/docker.sock"]},
        {"healthcheck": {"test": ["curl", "localhost"]}},
        {"restart": "sometimes"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_schema_refuses_mistakes(change: dict[str, Any]) -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"]["gateway"] |= change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(wrong)


def test_all_promised_services_are_there() -> None:
    assert set(SERVICES) - set(ENGINES) == {"gateway", "redis", "prometheus", "grafana"}
    assert ENGINES == ("engine-1", "engine-2", "engine-3", "engine-4")


def test_networks_volumes_and_dependencies_are_declared() -> None:
    volumes = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
    }
    assert {name for name in volumes if not name.startswith("./")} == COMPOSE["volumes"].keys()
    networks = {name for service in SERVICES.values() for name in service["networks"]}
    assert networks == COMPOSE["networks"].keys()
    for service in SERVICES.values():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()


def test_everything_mounted_exists() -> None:
    for name in SERVICES:
        for target, path in mounts(name).items():
            assert path.exists(), f"{name} {target}"
    assert {path.relative_to(ROOT / "conf") for path in mounts("prometheus").values()}
    for path in (ROOT / "conf").rglob("*.y*ml"):
        assert all(yaml.safe_load_all(path.read_text())), path


def test_configs_that_commands_name_are_mounted() -> None:
    gateway = SERVICES["gateway"]["command"]
    assert gateway[gateway.index("--config") + 1] in mounts("gateway")
    [config] = [
        argument.partition("=")[2]
        for argument in SERVICES["prometheus"]["command"]
        if argument.startswith("--config.file=")
    ]
    folder, _, name = config.rpartition("/")
    assert (mounts("prometheus")[folder] / name).is_file()


def test_every_service_has_a_health_check() -> None:
    assert "HEALTHCHECK" in DOCKERFILE
    for name, service in SERVICES.items():
        assert "healthcheck" in service or ("build" in service and name == "gateway"), name


def reachable(name: str) -> set[str]:
    """Services that share a network with this one."""
    own = set(SERVICES[name]["networks"])
    return {other for other, service in SERVICES.items() if own & set(service["networks"])}


def test_whoever_is_talked_to_is_on_a_common_network() -> None:
    command = SERVICES["gateway"]["command"]
    backends = [urlsplit(command[at + 1]) for at, word in enumerate(command) if word == "--backend"]
    assert tuple(url.hostname for url in backends) == ENGINES
    assert {url.port for url in backends} == {8000}
    assert set(ENGINES) <= reachable("gateway")
    assert "redis" in reachable("gateway")
    datasource = yaml.safe_load(
        (ROOT / "conf/grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    url = urlsplit(datasource["datasources"][0]["url"])
    assert url.hostname in reachable("grafana")
    scrape = yaml.safe_load((ROOT / "conf/prometheus/prometheus.yml").read_text())
    targets = {
        target.split(":")[0]
        for job in scrape["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets - {"localhost"} == {"gateway", *ENGINES}
    assert targets - {"localhost"} <= reachable("prometheus")


# Dockerfile


def test_the_image_is_slim_and_does_not_run_as_root() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.match(r"python:3\.\d+-slim\n", last)
    [user] = re.findall(r"(?m)^USER (\S+)$", last)
    assert re.search(rf"useradd .*--uid \d+ .*\b{user}$", last, re.MULTILINE)


def test_the_image_runs_the_command_that_the_package_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [entry] = re.findall(r'(?m)^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE)
    assert entry in project["project"]["scripts"]
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for package in packages:
        assert f"COPY {package} {package}\n" in DOCKERFILE


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [
        source
        for line in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
        for source in line.split()
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
