"""Settings of the scheduler process, from SCHEDULER_… variables."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from dspark.rounds.policies import CohortSetting, PolicyName
from services.runtime.settings import Address, OptionalAddress, ServiceSettings


class SchedulerSettings(ServiceSettings):
    """What the scheduler needs to know."""

    model_config = SettingsConfigDict(env_prefix="SCHEDULER_")

    verifier_address: Address = Field(description="Address of the verifier.")
    drafter_address: OptionalAddress = Field("", description="Address of the drafter; empty: plain decoding.")
    verifier_wait_s: float = Field(600.0, gt=0, description="Seconds to wait at start for the verifier.")
    redis_url: SecretStr = Field(
        SecretStr(""), description="redis://host:port or unix:///path/of/socket of the store; empty: none."
    )
    policy: PolicyName = Field("auto", description="How prefixes are chosen.")
    fixed_len: int = Field(7, ge=0, description="Drafts verified of every block under policy fixed.")
    threshold: float = Field(
        0.5, ge=0, le=1, description="Least confidence of a draft that is verified under policy threshold."
    )
    cohorts: CohortSetting = Field(
        "auto",
        description="Cohorts of requests in flight: 2 drafts one while the other is verified, auto measures "
        "which number is faster.",
    )
    max_running: int = Field(64, ge=1, description="Requests that hold pages of the verifier at once.")
    max_waiting: int = Field(256, ge=0, description="Requests that wait beyond them; more are refused.")
    step_timeout_s: float = Field(30.0, gt=0, description="A step of the verifier that takes longer failed.")
    draft_timeout_s: float = Field(2.0, gt=0, description="A draft that takes longer failed.")
    patience_s: float = Field(
        60.0, gt=0, description="A request whose peers fail for so many seconds ends with an error."
    )
    running_ttl_s: float = Field(900.0, gt=0, description="Seconds the store keeps a request after a write.")
    finished_ttl_s: float = Field(120.0, gt=0, description="Seconds the store keeps a finished request.")
