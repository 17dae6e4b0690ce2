import argparse

import pytest

from dspark.cli import options as options_module
from dspark.cli.options import UpOptions, add_up_options, read_options
from dspark.errors import ConfigurationError
from dspark.models.method import PROMPT_LOOKUP


def _read(*arguments: str) -> UpOptions:
    parser = argparse.ArgumentParser()
    add_up_options(parser)
    return read_options(parser.parse_args(arguments))


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "dspark.toml"
        path.write_text(text)
        return str(path)

    return write


def test_nothing_given_means_the_default_target_and_an_embedded_store():
    options = _read()
    assert options.target is None
    assert options.model_name == "SmolLM2-135M-Instruct"
    assert options.redis_url is None
    assert options.port == 8000


def test_the_command_line_wins_over_the_file(config):
    path = config('port = 9000\npolicy = "off"\n')
    assert _read("--config", path).port == 9000
    assert _read("--config", path, "--port", "9001").port == 9001
    assert _read("--config", path, "--port", "9001").policy == "off"


def test_a_redis_url_on_the_command_line_wins_over_none_in_the_file(config):
    path = config("no_redis = true\n")
    assert _read("--config", path).redis_url == ""
    assert _read("--config", path, "--redis-url", "redis://127.0.0.1:1").redis_url == "redis://127.0.0.1:1"


def test_settings_of_a_service_become_text(config):
    options = _read(
        "--config", config('[settings.verifier]\npool_tokens = 4096\ndtype = "float32"\nexact = true\n')
    )
    assert options.settings == {"verifier": {"POOL_TOKENS": "4096", "DTYPE": "float32", "EXACT": "true"}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1\n", "unknown key 'prot'"),
        ('port = "x"\n', "port must be a whole number"),
        ("port = true\n", "port must be a whole number"),
        ("port = 70000\n", "port must lie between 1 and 65535"),
        ('policy = "fast"\n', "policy must be one of auto, early-stop"),
        ('lookup = "yes"\n', "lookup must be on or off"),
        ("[settings.router]\nx = 1\n", "must be among drafter"),
        ("[settings]\nverifier = 1\n", r"\[settings.verifier\] must hold"),
        ("port = \n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(config, text, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        _read("--config", config(text))


def test_a_file_that_does_not_exist_is_told():
    with pytest.raises(ConfigurationError, match=r"--config nowhere\.toml cannot be read: No such file"):
        _read("--config", "nowhere.toml")


@pytest.mark.parametrize("option", ["target", "drafter"])
def test_a_path_that_does_not_exist_is_told(option):
    with pytest.raises(ConfigurationError, match=f"--{option} nowhere does not exist"):
        _read(f"--{option}", "nowhere")


def test_a_directory_without_a_checkpoint_is_no_drafter(tmp_path):
    with pytest.raises(ConfigurationError, match=r"holds no config\.json"):
        _read("--drafter", str(tmp_path))


def test_another_target_gets_no_drafter_unless_one_is_named(tmp_path):
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    options = _read("--target", str(tmp_path))
    assert options.drafter is None
    assert "--drafter" in options.drafter_note
    assert options.model_name == tmp_path.name
    assert _read("--target", str(tmp_path), "--drafter", str(drafter)).drafter == drafter


def test_prompt_lookup_is_a_drafter_for_any_target(tmp_path):
    assert _read("--drafter", "prompt-lookup", "--target", str(tmp_path)).drafter == PROMPT_LOOKUP
    assert _read().lookup is None
    assert _read("--lookup", "on").lookup is True
    assert _read("--lookup", "off").lookup is False


def test_without_a_shipped_drafter_the_default_target_runs_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(options_module, "shipped_drafter_dir", lambda: tmp_path)
    assert _read().drafter is None
    assert "ships none" in _read().drafter_note
    (tmp_path / "config.json").write_text("{}")
    assert _read().drafter == tmp_path
    assert _read("--drafter", "none").drafter is None
