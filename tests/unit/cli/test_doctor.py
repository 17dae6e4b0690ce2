"""What the doctor says of a drafter and its target."""

import json

import pytest

from dspark.cli.main import main
from dspark.models.target import quiet_transformers
from tests.deepspec_files import heads_of, qwen3_config, qwen3_target, random_tensors, write_drafter


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    target, drafter = tmp_path_factory.mktemp("pair") / "target", tmp_path_factory.mktemp("pair") / "drafter"
    with quiet_transformers():
        qwen3_target(target)
    config = qwen3_config(**heads_of("none"))
    write_drafter(drafter, config, random_tensors(config, target))
    return str(target), drafter


def test_the_doctor_explains_a_drafter_and_that_it_fits(pair, capsys):
    target, drafter = pair
    main(["doctor", "--target", target, "--drafter", str(drafter)])
    out = capsys.readouterr().out
    assert "is          DFlash (Qwen3DSparkModel), 2 layers, gamma 4, no Markov head" in out
    assert "taps 0,2 of 4 layers, 0.1 M parameters, with copies of embed_tokens and lm_head" in out
    assert "pair        the drafter fits the target" in out


@pytest.mark.parametrize(
    ("changes", "topic", "problem"),
    [
        ({"num_target_layers": 36}, "pair", "num_target_layers 36 against 4"),
        ({"markov_rank": 8}, "is  ", "lacks markov_head.markov_w1.weight"),
        ({"dflash_config": {}}, "is  ", "the key dflash_config says"),
    ],
)
def test_the_doctor_says_why_a_pair_does_not_work(pair, changes, topic, problem, tmp_path, capsys):
    target, drafter = pair
    config = json.loads((drafter / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    (tmp_path / "model.safetensors").write_bytes((drafter / "model.safetensors").read_bytes())
    assert main(["doctor", "--target", target, "--drafter", str(tmp_path)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"! {topic}")]
    assert problem in line


def test_the_doctor_says_what_prompt_lookup_is(pair, capsys):
    target, _ = pair
    main(["doctor", "--target", target, "--drafter", "prompt-lookup"])
    assert "is          drafts copied from earlier text of the same request" in capsys.readouterr().out
