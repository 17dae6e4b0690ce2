"""The whole system as processes, with a tiny random target whose greedy answers transformers also gives."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from running_system import System, start_up, stop, text_of, wait_end, wait_ready
from tiny_models import EOS, write_drafter, write_target
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

# Four processes load torch, on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)

PROMPTS = [f"Say something about the number {n}." for n in range(8)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Short, since the names of unix sockets are.
    path = Path(tempfile.mkdtemp(prefix="e2e"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return write_target(folder / "target")


@pytest.fixture(scope="module")
def drafter(folder: Path, target: Path) -> Path:
    return write_drafter(folder / "drafter", target)


@pytest.fixture(scope="module")
def system(folder: Path, target: Path, drafter: Path) -> Iterator[System]:
    system = start_up(folder / "run", "--target", str(target), "--drafter", str(drafter))
    try:
        wait_ready(system)
        yield system
    finally:
        stop(system)


@pytest.fixture(scope="module")
def plain(target: Path):
    """What plain greedy decoding by transformers answers, in the dtype of the verifier."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(target / "tokenizer.json"))
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

    def answer(prompt: str, num_tokens: int) -> str:
        ids = tokenizer(template.format(prompt), return_tensors="pt")["input_ids"]
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
        return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)

    return answer


def test_many_streams_at_once_answer_as_plain_decoding_does(system, plain):
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: system.answer(prompt, temperature=0, max_tokens=48), PROMPTS))
    assert answers == [plain(prompt, 48) for prompt in PROMPTS]


def test_rounds_with_drafts_are_told_when_asked(system):
    chunks = list(system.stream(PROMPTS[0], temperature=0, max_tokens=32, return_round_details=True))
    details = [choice["dspark"] for chunk in chunks for choice in chunk["choices"] if "dspark" in choice]
    assert max(detail["num_drafted"] for detail in details) > 0
    text = "".join(map(text_of, chunks))
    assert "".join(piece for detail in details for piece in detail["tokens"]) == text


@pytest.mark.parametrize("module", ["services.drafter", "services.verifier"])
def test_a_stream_outlives_the_death_of_an_engine(system, plain, module):
    chunks = system.stream(PROMPTS[1], temperature=0, max_tokens=300)
    text = ""
    while len(text) < 20:
        text += text_of(next(chunks))
    os.kill(system.pid_of(module), signal.SIGKILL)
    text += "".join(map(text_of, chunks))
    assert text == plain(PROMPTS[1], 300)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 7}])
def test_a_stream_outlives_the_death_of_the_scheduler_with_the_text_it_would_have_had(system, sampling):
    whole = system.answer(PROMPTS[2], max_tokens=600, **sampling)
    num_resumed = system.log_of("gateway").count("to be resumed")
    chunks = system.stream(PROMPTS[2], max_tokens=600, **sampling)
    text = ""
    while len(text) < 20:
        text += text_of(next(chunks))
    os.kill(system.pid_of("services.scheduler"), signal.SIGKILL)
    text += "".join(map(text_of, chunks))
    assert text == whole
    assert system.log_of("gateway").count("to be resumed") == num_resumed + 1


def test_a_misspelt_key_of_the_configuration_is_named_with_the_nearest_one(folder, target):
    runtime = folder / "run5"
    system = start_up(runtime, "--target", str(target), more_config='[settings.scheduler]\npolcy = "off"')
    code, errors = wait_end(system)
    assert code == 78
    assert "there is no setting polcy" in errors
    assert errors.endswith("the nearest one is policy\n")


def test_a_drafter_of_another_target_is_told_and_nothing_is_left(folder, target):
    other = write_target(folder / "other", hidden_size=32)
    foreign = write_drafter(folder / "foreign", target)
    runtime = folder / "run2"
    code, errors = wait_end(start_up(runtime, "--target", str(other), "--drafter", str(foreign)))
    assert code == 78
    # Both read the drafter's directory; either may be the first to find that it does not fit.
    assert errors.startswith(("dspark up: drafter: ", "dspark up: verifier: "))
    assert errors.count("\n") == 1
    assert os.listdir(runtime) == []


def test_ctrl_c_leaves_no_process_socket_or_file(folder, target):
    runtime = folder / "run3"
    system = start_up(runtime, "--target", str(target), "--no-redis")
    lines = wait_ready(system)
    assert any(f"http://127.0.0.1:{system.port}/v1" in line for line in lines)
    children = system.children()
    assert len(children) == 3
    assert stop(system) == 0
    assert not any(child.is_running() for child in children)
    assert os.listdir(runtime) == []


def test_a_killed_command_takes_its_processes_along(folder, target):
    system = start_up(folder / "run4", "--target", str(target))
    wait_ready(system)
    children = system.children()
    system.process.kill()
    wait_end(system)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
