"""Who may ask, and in which tier: the file of keys, the check, and what the scheduler is told."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.errors import ConfigurationError
from gateway.app import create_app
from gateway.keys import ApiKey, KeyRing, digest_of, load_keys
from tests.unit.gateway.gateway_fakes import FakeBackend, make_edge, says
from tests.unit.gateway.http_client import HELLO, ask, events_of

SECRET = "sk-of-the-shop-1234"
PROMISED = Service(ServiceTier.DEFAULT, Sla(tokens_per_s=20.0, ttft_s=0.5))
KEYS = KeyRing([ApiKey("shop", PROMISED, digest_of(SECRET))])
FILE = f"""
[[keys]]
name = "shop"
key = "{SECRET}"
tokens_per_s = 20
ttft_s = 0.5

[[keys]]
name = "batch"
key = "sk-of-the-batch-jobs"
tier = "flex"
"""


def guarded(backend: FakeBackend, secret: str | None = SECRET) -> httpx.AsyncClient:
    app = create_app(replace(make_edge(backend), keys=KEYS))
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers=headers, trust_env=False
    )


async def ask_with_key(backend: FakeBackend, **fields: Any) -> httpx.Response:
    async with guarded(backend) as client:
        return await client.post("/v1/chat/completions", json={"messages": HELLO, **fields})


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, "default"),
        ("auto", "default"),
        ("default", "default"),
        ("flex", "flex"),
        ("priority", "priority"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_tier_reaches_the_scheduler_and_is_echoed(path: str, asked: str | None, given: str) -> None:
    backend = FakeBackend(says("hi"))
    fields: dict[str, Any] = {"service_tier": asked} | ({"prompt": "x"} if path == "/v1/completions" else {})
    whole = (await ask(backend, path, **fields)).json()
    events = events_of(await ask(backend, path, stream=True, **fields))
    assert whole["service_tier"] == given
    assert {event["service_tier"] for event in events} == {given}
    assert {one.service for one in backend.requests} == {Service(ServiceTier(given))}


@pytest.mark.parametrize("tier", ["gold", "", 1, ["flex"]])
async def test_an_unknown_tier_is_named(tier: object) -> None:
    response = await ask(FakeBackend(says("never")), service_tier=tier)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "service_tier")
    assert "'auto', 'default', 'flex' or 'priority'" in error["message"]


@pytest.mark.parametrize("secret", [None, "", "sk-wrong", SECRET[:-1], SECRET + "5", "sk-ö"])
async def test_without_a_known_key_nothing_is_answered_but_401(secret: str | None) -> None:
    backend = FakeBackend(says("never"))
    async with guarded(backend, None) as client:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}".encode()}
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
            response = await client.request(method, path, headers=headers, content=b"{")
            error = response.json()["error"]
            assert response.status_code == 401
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            assert "x-request-id" in response.headers
            assert not secret or secret not in response.text
    assert backend.requests == []


async def test_probes_need_no_key_and_a_known_key_opens_everything() -> None:
    async with guarded(FakeBackend(says("hi")), None) as client:
        for path in ("/health", "/metrics", "/version"):
            assert (await client.get(path)).status_code == 200
    async with guarded(FakeBackend(says("hi"))) as client:
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("asked", "service"),
    [
        (None, PROMISED),
        ("auto", PROMISED),
        ("default", PROMISED),
        # what gives up its tier gives up the promise of that tier
        ("flex", Service(ServiceTier.FLEX)),
    ],
)
async def test_a_request_is_served_as_its_key_is_or_lower(asked: str | None, service: Service) -> None:
    backend = FakeBackend(says("hi"))
    response = await ask_with_key(backend, service_tier=asked, n=2)
    assert response.json()["service_tier"] == service.tier.value
    assert [one.service for one in backend.requests] == [service] * 2


async def test_a_request_may_not_raise_its_tier_above_that_of_its_key() -> None:
    backend = FakeBackend(says("never"))
    response = await ask_with_key(backend, service_tier="priority")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "service_tier")
    assert "the tier of this API key is default" in error["message"]
    assert backend.requests == []


async def test_metrics_count_requests_by_tier() -> None:
    async with guarded(FakeBackend(says("hi"))) as client:
        for tier in ("auto", "flex", "flex"):
            await client.post("/v1/chat/completions", json={"messages": HELLO, "service_tier": tier})
        text = (await client.get("/metrics")).text
    samples = {
        (s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    assert samples["dspark:gateway_requests_total", "default"] == 1
    assert samples["dspark:gateway_requests_total", "flex"] == 2


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_keys_are_read_from_toml_and_json(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"keys.{suffix}"
    entries = [
        {"name": "shop", "key": SECRET, "tokens_per_s": 20, "ttft_s": 0.5},
        {"name": "batch", "key": "sk-of-the-batch-jobs", "tier": "flex"},
    ]
    path.write_text(FILE if suffix == "toml" else json.dumps({"keys": entries}))
    keys = load_keys(path)
    shop, batch = keys.find(SECRET), keys.find("sk-of-the-batch-jobs")
    assert shop is not None
    assert batch is not None
    assert (shop.name, shop.service) == ("shop", PROMISED)
    assert (batch.name, batch.service) == ("batch", Service(ServiceTier.FLEX))
    assert keys.find("sk-of-nobody") is None
    assert "digest" not in repr(shop)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "must hold a list keys of at least one entry"),
        ("keys = []", "must hold a list keys of at least one entry"),
        (FILE + "[other]", "and nothing else"),
        (f"[[keys]]\nname = 'a'\nkey = {SECRET}", "not valid TOML, line 3"),
        ("[[keys]]\nname = ", "not valid TOML"),
        (FILE.replace("ttft_s", "ttft"), "key 'shop': ttft: extra inputs"),
        (FILE.replace("ttft_s = 0.5", "ttft_s = 0"), "key 'shop': ttft_s: input should be greater than 0"),
        (FILE.replace("= 20", "= 'fast'"), "key 'shop': tokens_per_s: input should be a valid number"),
        (FILE.replace("= 20", "= inf"), "key 'shop': tokens_per_s: input should be a finite number"),
        (FILE.replace('"flex"', '"gold"'), "key 'batch': tier: input should be 'priority', 'default' or"),
        (FILE.replace('name = "batch"', ""), "key number 2: name: field required"),
        (FILE.replace(SECRET, "short"), "key 'shop': key: string should match pattern"),
        (FILE.replace('"batch"', '"shop"'), "key 'shop': name: another key has it"),
        (FILE.replace("sk-of-the-batch-jobs", SECRET), "key 'batch': key: another entry has the same"),
        ("keys = [5]", "key number 1: input should be"),
    ],
)
def test_a_wrong_file_is_a_sentence_that_names_file_key_and_field(
    tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load_keys(path)
    message = str(caught.value)
    assert str(path) in message
    assert problem in message
    assert SECRET not in message


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.toml: No such file.*see GATEWAY_KEYS"):
        load_keys(tmp_path / "nowhere.toml")
    (tmp_path / "keys.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"keys.json: it is not UTF-8"):
        load_keys(tmp_path / "keys.json")
    (tmp_path / "keys.json").write_text('{"keys": [\n{"key": "' + SECRET + '"')
    with pytest.raises(ConfigurationError, match=r"not valid JSON, line 2") as caught:
        load_keys(tmp_path / "keys.json")
    assert SECRET not in str(caught.value)


async def test_no_key_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await ask_with_key(FakeBackend(says("hi")))
    async with guarded(FakeBackend(lambda request: [RuntimeError("bug")])) as client:
        with pytest.raises(RuntimeError):
            await client.post("/v1/chat/completions", json={"messages": HELLO})
    assert SECRET not in caplog.text
