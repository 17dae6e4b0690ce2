"""Settings and the socket: a wrong one is a sentence, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark.errors import ConfigurationError
from gateway.server import open_socket
from gateway.settings import GatewaySettings, read_settings


def test_a_wrong_or_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_TARGET", raising=False)
    monkeypatch.setenv("GATEWAY_PORT", "high")
    with pytest.raises(ConfigurationError, match=r"GATEWAY_PORT: .*integer.*GATEWAY_TARGET: field required"):
        read_settings()


def test_a_misspelt_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PATIENCE", "1")
    with pytest.raises(ConfigurationError, match=r"patience \(GATEWAY_PATIENCE\).*nearest.*patience_s"):
        read_settings()


def test_the_model_is_called_by_its_directory_unless_it_is_named(tmp_path: Path) -> None:
    settings = GatewaySettings(target=tmp_path / "SmolLM2")
    assert settings.served_name == "SmolLM2"
    assert str(tmp_path / "SmolLM2") in settings.aliases
    assert GatewaySettings(target=tmp_path, model_name="m").served_name == "m"


def test_a_taken_port_is_one_clear_sentence() -> None:
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} .*choose another GATEWAY_PORT"):
            open_socket("127.0.0.1", port)
