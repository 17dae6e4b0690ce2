"""Small parts of the services: addresses, settings, arrivals, idle requests, the breaker, pairing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from dspark.decoding.types import Acceptance, DrafterInfo, DraftRequest, FeatureBatch, SamplingParams
from dspark.engine.threads import quiet_thread_variables
from dspark.errors import ConfigurationError, ModelMismatchError
from gateway.settings import GatewaySettings
from services.drafter.arrivals import FeatureArrivals
from services.drafter.settings import DrafterSettings
from services.runtime.channel import check_address
from services.runtime.idle import IdleRequests
from services.runtime.settings import check_names, read_settings
from services.scheduler.breaker import CircuitBreaker
from services.scheduler.settings import SchedulerSettings
from services.verifier.pairing import TargetShape, check_sizes, layer_check, read_shape
from services.verifier.settings import VerifierSettings
from tests.fakes import FakeClock
from tests.feature_batches import feature_batch

GREEDY = SamplingParams(acceptance=Acceptance.GREEDY)


@pytest.mark.parametrize(
    "address", ["unix:/a/b.sock", "unix:b", "127.0.0.1:0", "[::1]:5005", "drafter:65535"]
)
def test_addresses_grpc_can_use_are_taken(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "unix:", "unix:/" + "a" * 108, "50051", "host:", "host:65536", "http://h:1"]
)
def test_other_addresses_are_refused_with_the_mend(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write unix:|choose a shorter"):
        check_address(address)


def test_a_missing_and_a_wrong_setting_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_LISTEN", "nowhere")
    with pytest.raises(ConfigurationError, match=r"SCHEDULER_LISTEN: .*nowhere.*SCHEDULER_VERIFIER_ADD"):
        read_settings(SchedulerSettings)


def test_layers_are_read_from_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFIER_LISTEN", "unix:v")
    monkeypatch.setenv("VERIFIER_TARGET_LAYER_IDS", "1, 8,15")
    assert read_settings(VerifierSettings).target_layer_ids == (1, 8, 15)


def test_the_password_of_the_store_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_LISTEN", "unix:s")
    monkeypatch.setenv("SCHEDULER_VERIFIER_ADDRESS", "unix:v")
    monkeypatch.setenv("SCHEDULER_REDIS_URL", "redis://:geheim@127.0.0.1:1")
    settings = read_settings(SchedulerSettings)
    assert "geheim" not in settings.describe()
    assert settings.redis_url.get_secret_value().startswith("redis://:geheim@")


@pytest.mark.parametrize(
    ("kind", "name", "nearest"),
    [
        (SchedulerSettings, "SCHEDULER_MAX_RUNING", "max_running"),
        (SchedulerSettings, "scheduler_polcy", "policy"),
        (VerifierSettings, "VERIFIER_POOL_TOKEN", "pool_tokens"),
        (DrafterSettings, "DRAFTER_THREAD", "threads"),
        (GatewaySettings, "GATEWAY_KEEPALIVE_S", "keep_alive_s"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_one(kind, name: str, nearest: str) -> None:
    key = name.lower().partition("_")[2]
    with pytest.raises(ConfigurationError) as caught:
        check_names(kind, [name, "PATH"])
    assert str(caught.value) == f"there is no setting {key} ({name}); the nearest one is {nearest}"


def test_every_setting_and_what_kubernetes_sets_for_services_is_accepted() -> None:
    links = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP_ADDR")
    for kind in (SchedulerSettings, VerifierSettings, DrafterSettings, GatewaySettings):
        prefix = str(kind.model_config["env_prefix"])
        check_names(kind, [prefix + name.upper() for name in (*kind.model_fields, *links)])


def test_settings_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_LISTEN", "unix:d")
    monkeypatch.setenv("DRAFTER_DRAFTER", "checkpoint")
    monkeypatch.setenv("DRAFTER_TARGET", "target")
    settings = read_settings(DrafterSettings)
    with pytest.raises(ValueError, match="frozen"):
        settings.threads = 2


def test_thread_variables_the_user_has_set_stay() -> None:
    assert "OMP_WAIT_POLICY" not in quiet_thread_variables({"OMP_WAIT_POLICY": "ACTIVE"})
    assert "OMP_WAIT_POLICY" in quiet_thread_variables({})


def features(start: int, num_rows: int, *, epoch: int = 1) -> FeatureBatch:
    return feature_batch("r", epoch, start, np.zeros((num_rows, 2), np.float32))


def ask(base: int, *, epoch: int = 1) -> DraftRequest:
    return DraftRequest("r", epoch, base, 0, GREEDY, 4)


def test_features_that_have_not_come_are_expected() -> None:
    arrivals = FeatureArrivals()
    assert arrivals.is_expected(ask(5))
    arrivals.note([features(0, 3)])
    assert arrivals.is_expected(ask(5))


def test_features_are_not_expected_once_the_last_row_has_come() -> None:
    arrivals = FeatureArrivals()
    arrivals.note([features(2, 2)])
    assert not arrivals.is_expected(ask(5))


def test_a_new_epoch_is_waited_for_and_an_old_one_is_not() -> None:
    arrivals = FeatureArrivals()
    arrivals.note([features(0, 4, epoch=2)])
    assert arrivals.is_expected(ask(5, epoch=3))
    assert not arrivals.is_expected(ask(9, epoch=1))


def test_a_request_given_up_is_waited_for_again_after_an_arrival() -> None:
    arrivals = FeatureArrivals()
    arrivals.give_up([ask(5)])
    assert not arrivals.is_expected(ask(5))
    arrivals.note([features(0, 3)])
    assert arrivals.is_expected(ask(5))


def test_a_closed_request_is_forgotten() -> None:
    arrivals = FeatureArrivals()
    arrivals.note([features(0, 4)])
    arrivals.forget(["r"])
    assert arrivals.is_expected(ask(5))


async def test_an_arrival_between_look_and_wait_is_not_missed() -> None:
    arrivals = FeatureArrivals()
    arrival = arrivals.next_arrival()
    arrivals.note([features(0, 1)])
    await asyncio.wait_for(arrival.wait(), 1)
    assert not arrivals.next_arrival().is_set()


def test_only_requests_unused_for_their_time_to_live_are_idle() -> None:
    clock = FakeClock()
    idle = IdleRequests(10, clock.now)
    idle.touch(["old", "used", "closed"])
    clock.time_s += 6
    idle.touch(["used"])
    idle.forget(["closed"])
    clock.time_s += 6
    assert idle.take_idle() == ["old"]
    assert idle.take_idle() == []


def test_the_breaker_opens_after_three_failures_and_again_after_a_failed_probe() -> None:
    clock = FakeClock()
    breaker = CircuitBreaker(clock.now)
    breaker.fail()
    breaker.fail()
    assert not breaker.is_open
    breaker.fail()
    assert breaker.pause_s == 1.0
    clock.time_s += 1
    assert not breaker.is_open
    breaker.fail()
    assert breaker.is_open
    breaker.succeed()
    breaker.fail()
    assert not breaker.is_open


SHAPE = TargetShape("target", hidden_size=8, vocab_size=97, num_layers=4)


def drafter(**changes: object) -> DrafterInfo:
    values = {"target_layer_ids": (0, 3), "hidden_size": 8, "vocab_size": 97, **changes}
    return DrafterInfo(name="d", gamma=4, **values)


def test_a_drafter_of_the_same_shape_fits() -> None:
    check_sizes("d", drafter(), SHAPE)
    layer_check(SHAPE, (0, 3))(drafter())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": 9}, "hidden size"),
        ({"vocab_size": 98}, "vocabulary"),
        ({"target_layer_ids": (4,)}, "layer 4"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_the_reason(changes: dict, word: str) -> None:
    with pytest.raises(ModelMismatchError, match=word):
        check_sizes("d", drafter(**changes), SHAPE)


def test_a_drafter_that_reads_other_layers_needs_a_restart() -> None:
    with pytest.raises(ModelMismatchError, match="restart the verifier"):
        layer_check(SHAPE, (0, 1))(drafter())


def test_the_shape_is_read_from_the_target_directory(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "vocab_size": 97, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path) == TargetShape(tmp_path.name, 8, 97, 4)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"hidden_size": 8}'])
def test_a_directory_without_a_usable_config_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_shape(tmp_path)
