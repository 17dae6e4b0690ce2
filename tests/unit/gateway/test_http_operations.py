"""/health, /metrics, /version, /v1/models, /tokenize and /detokenize."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspark.errors import ServiceUnavailableError
from tests.unit.gateway.gateway_fakes import FakeBackend, FakeInfo, says
from tests.unit.gateway.http_client import HELLO, ask, client_of

DOWN = ServiceUnavailableError("down")


@pytest.mark.parametrize(
    ("info", "code", "status", "missing"),
    [
        (FakeInfo(), 200, "ok", set()),
        (FakeInfo(drafter_name="", gamma=0, is_drafter_ready=False), 200, "ok", set()),
        (FakeInfo(is_drafter_ready=False), 200, "degraded", {"drafter"}),
        (FakeInfo(is_store_healthy=False), 200, "degraded", {"store"}),
        (FakeInfo(is_verifier_ready=False), 503, "loading", {"verifier"}),
        (DOWN, 503, "loading", {"scheduler"}),
    ],
)
async def test_health_names_the_missing_part(
    info: FakeInfo | BaseException, code: int, status: str, missing: set[str]
) -> None:
    async with client_of(FakeBackend(says("x"), info)) as client:
        response = await client.get("/health")
    body = response.json()
    assert (response.status_code, body["status"]) == (code, status)
    assert {part for part, state in body["parts"].items() if state == "down"} == missing


@pytest.mark.parametrize("lost", [DOWN, FakeInfo(is_verifier_ready=False)])
async def test_a_part_lost_after_it_was_ready_is_degraded_not_loading(lost: FakeInfo | BaseException) -> None:
    backend = FakeBackend(says("x"))
    async with client_of(backend) as client:
        await client.get("/health")
        backend.info = lost
        responses = [await client.get("/health") for _ in range(2)]
    assert {(r.status_code, r.json()["status"]) for r in responses} == {(503, "degraded")}


async def test_metrics_show_the_schedulers_counters_in_vllms_schema_and_this_edges_times() -> None:
    backend = FakeBackend(says("abcdef", 2, 4))
    async with client_of(backend) as client:
        await client.post("/v1/chat/completions", json={"messages": HELLO})
        await client.post("/v1/chat/completions", json={"messages": []})
        text = (await client.get("/metrics")).text
    samples = {
        (s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    assert samples["dspark:spec_decode_num_drafts_total",] == 10
    assert samples["dspark:spec_decode_num_draft_tokens_total",] == 60
    assert samples["dspark:spec_decode_num_accepted_tokens_total",] == 30
    assert samples["dspark:spec_decode_num_accepted_tokens_per_pos_total", "3"] == 6
    assert samples["dspark:num_requests_running",] == 3
    assert samples["dspark:num_requests_waiting",] == 2
    assert samples["dspark:kv_cache_usage_perc",] == 0.25
    assert samples["dspark:generation_tokens_total",] == 7
    assert samples["dspark:request_success_total", "stop"] == 1
    assert samples["dspark:gateway_http_errors_total", "400"] == 1
    assert samples["dspark:gateway_open_responses",] == 0
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
        assert samples[f"dspark:{name}_seconds_count",] == 1


async def test_metrics_work_without_the_scheduler() -> None:
    async with client_of(FakeBackend(says("x"), DOWN)) as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert "spec_decode" not in response.text


async def test_models_lists_the_one_model_and_finds_it_by_name_and_path() -> None:
    async with client_of(FakeBackend(says("x"))) as client:
        await client.get("/health")
        listed = (await client.get("/v1/models")).json()
        by_path = (await client.get("/v1/models/models/tiny")).json()
        unknown = await client.get("/v1/models/other")
    assert listed == {"object": "list", "data": [by_path]}
    assert (by_path["id"], by_path["object"], by_path["max_model_len"]) == ("tiny", "model", 2048)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_version_is_a_string() -> None:
    async with client_of(FakeBackend(says("x"))) as client:
        assert isinstance((await client.get("/version")).json()["version"], str)


async def test_tokenize_and_detokenize_are_inverse() -> None:
    backend = FakeBackend(says("x"))
    tokens = (await ask(backend, "/tokenize", prompt="hé", return_token_strs=True)).json()
    assert (tokens["tokens"], tokens["count"]) == ([*"hé".encode()], 3)
    assert len(tokens["token_strs"]) == 3
    assert (await ask(backend, "/detokenize", tokens=tokens["tokens"])).json() == {"prompt": "hé"}


async def test_tokenizing_a_conversation_gives_the_prompt_of_the_chat() -> None:
    backend = FakeBackend(says("x"))
    await ask(backend)
    tokens = (await ask(backend, "/tokenize", messages=HELLO)).json()["tokens"]
    assert tuple(tokens) == backend.requests[0].prompt_token_ids


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {}), ("/tokenize", {"prompt": "x", "messages": HELLO}), ("/detokenize", {"tokens": [-1]})],
)
async def test_wrong_bodies_are_400(path: str, body: dict[str, object]) -> None:
    assert (await ask(FakeBackend(says("x")), path, **body)).status_code == 400
