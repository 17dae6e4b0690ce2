import dataclasses
import sys
from pathlib import Path

import pytest

from dspark.cli.options import UpOptions
from dspark.cli.plan import Layout, prepare_spec, service_specs, store_spec
from dspark.models.method import PROMPT_LOOKUP

LAYOUT = Layout(runtime=Path("/run/d"), cache=Path("/cache"), target=Path("/cache/smol"))
WITH_DRAFTER = UpOptions(drafter=Path("/drafters/smol"))


def _env(options: UpOptions) -> dict[str, str]:
    return {name: value for spec in service_specs(options, LAYOUT) for name, value in spec.env.items()}


def test_each_service_comes_after_those_it_depends_on():
    assert [spec.name for spec in service_specs(WITH_DRAFTER, LAYOUT)] == [
        "drafter",
        "verifier",
        "scheduler",
        "gateway",
    ]


def test_services_find_each_other_over_sockets_in_the_runtime_directory():
    env = _env(WITH_DRAFTER)
    assert env["DRAFTER_LISTEN"] == env["VERIFIER_DRAFTER_ADDRESS"] == env["SCHEDULER_DRAFTER_ADDRESS"]
    assert env["VERIFIER_DRAFTER"] == env["DRAFTER_DRAFTER"] == "/drafters/smol"
    assert env["VERIFIER_LISTEN"] == env["SCHEDULER_VERIFIER_ADDRESS"] == "unix:/run/d/verifier.sock"
    assert env["SCHEDULER_LISTEN"] == env["GATEWAY_SCHEDULER_ADDRESS"]
    assert env["SCHEDULER_REDIS_URL"] == "unix:///run/d/store.sock"
    assert env["GATEWAY_HOST"] == "127.0.0.1"


def test_prompt_lookup_is_told_to_both_engines_and_its_assistance_to_the_drafter():
    env = _env(UpOptions(drafter=PROMPT_LOOKUP))
    assert env["VERIFIER_DRAFTER"] == env["DRAFTER_DRAFTER"] == "prompt-lookup"
    assert "DRAFTER_LOOKUP" not in env
    assert _env(dataclasses.replace(WITH_DRAFTER, lookup=True))["DRAFTER_LOOKUP"] == "true"


def test_without_a_drafter_nobody_waits_for_one():
    specs = service_specs(UpOptions(), LAYOUT)
    assert "drafter" not in [spec.name for spec in specs]
    assert _env(UpOptions())["VERIFIER_DRAFTER_ADDRESS"] == ""
    assert _env(UpOptions())["SCHEDULER_DRAFTER_ADDRESS"] == ""


def test_the_system_can_do_without_the_drafter_only():
    assert [spec.name for spec in service_specs(WITH_DRAFTER, LAYOUT) if not spec.is_essential] == ["drafter"]


def test_settings_reach_their_service_but_do_not_tear_the_system_apart():
    settings = {"verifier": {"POOL_TOKENS": "4096", "LISTEN": "127.0.0.1:1"}, "gateway": {"HOST": "0.0.0.0"}}
    env = _env(UpOptions(settings=settings))
    assert env["VERIFIER_POOL_TOKENS"] == "4096"
    assert env["VERIFIER_LISTEN"] == "unix:/run/d/verifier.sock"
    assert env["GATEWAY_HOST"] == "0.0.0.0"


def test_a_given_or_refused_store_is_passed_on():
    assert _env(UpOptions(redis_url="redis://h:1"))["SCHEDULER_REDIS_URL"] == "redis://h:1"
    assert _env(UpOptions(redis_url=""))["SCHEDULER_REDIS_URL"] == ""


def test_metrics_ports_count_up_from_the_one_given():
    env = _env(dataclasses.replace(WITH_DRAFTER, metrics_port=9100))
    ports = [env[f"{name}_METRICS_PORT"] for name in ("DRAFTER", "VERIFIER", "SCHEDULER")]
    assert ports == ["9100", "9101", "9102"]


def test_python_never_looks_for_services_where_the_user_stands():
    for spec in service_specs(WITH_DRAFTER, LAYOUT):
        assert spec.argv[:2] == (sys.executable, "-P")


@pytest.mark.parametrize(
    ("line", "is_ready"),
    [
        ("ready dspark.api.v1.DrafterService on unix:/x", True),
        ("2026-01-01 12:00:00,123 INFO verifier: ready dspark.api.v1.VerifierService on unix:/x", True),
        ("2026-01-01 12:00:00,123 INFO scheduler: drafter not ready yet", False),
        ("waiting until the verifier is already up", False),
    ],
)
def test_the_ready_line_is_recognised(line, is_ready):
    (spec, *_) = service_specs(WITH_DRAFTER, LAYOUT)
    assert bool(spec.ready.search(line)) is is_ready


def test_the_store_listens_on_a_private_socket_only_and_writes_nothing():
    argv = store_spec(Path("/bin/valkey-server"), Path("/run/d")).argv
    options = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert options["--port"] == "0"
    assert options["--unixsocketperm"] == "700"
    assert (options["--save"], options["--appendonly"]) == ("", "no")


def test_preparing_reads_its_result_from_the_last_line():
    spec = prepare_spec(UpOptions(target=Path("/models/x.gguf")), Path("/run/d"), Path("/cache"))
    assert spec.argv[-2:] == ("--target", "/models/x.gguf")
    match = spec.ready.search("prepared /cache/with space/x")
    assert match is not None
    assert match.group(1) == "/cache/with space/x"


def test_engines_on_the_same_cores_have_one_cohort_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("SCHEDULER_COHORTS", raising=False)
    assert _env(WITH_DRAFTER)["SCHEDULER_COHORTS"] == "1"
    told = UpOptions(drafter=WITH_DRAFTER.drafter, settings={"scheduler": {"COHORTS": "2"}})
    assert _env(told)["SCHEDULER_COHORTS"] == "2"
    monkeypatch.setenv("SCHEDULER_COHORTS", "auto")
    assert _env(WITH_DRAFTER)["SCHEDULER_COHORTS"] == "auto"
    assert _env(told)["SCHEDULER_COHORTS"] == "2"
