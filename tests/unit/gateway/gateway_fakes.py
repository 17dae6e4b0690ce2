"""A backend that plays back scripts, and a tiny byte-level model directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dspark.decoding.types import FinishReason, GenerationRequest, RoundStats, TokenDelta, TokenLogprobs
from gateway.backend import GenerationBackend
from gateway.edge import Edge, EdgeOptions, SchedulerView, ServedModel
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import TextTokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EOS = 257


def byte_tokenizer() -> Tokenizer:
    """One token per byte (in byte order), then <|im_start|> = 256, <|im_end|> = 257, `then` = 258."""
    alphabet = _byte_alphabet()
    vocab = {char: byte for byte, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("then")])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The letter of each byte by the published rule: printable bytes as themselves, the rest from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters


def write_model(directory: Path) -> Path:
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@dataclass
class FakeCounters:
    num_drafts: int = 10
    num_draft_tokens: int = 60
    num_accepted_tokens: int = 30
    num_accepted_tokens_per_pos: tuple[int, ...] = (9, 8, 7, 6, 0, 0, 0)
    num_proposed_tokens: int = 70
    num_committed_tokens: int = 40
    num_rounds: int = 11
    num_free_pages: int = 75
    num_pages: int = 100
    num_preemptions: int = 1


@dataclass
class FakeInfo:
    target_name: str = "tiny"
    drafter_name: str = "tiny-dspark"
    gamma: int = 7
    max_context_len: int = 2048
    eos_token_ids: tuple[int, ...] = (EOS,)
    vocab_size: int = 259
    is_verifier_ready: bool = True
    is_drafter_ready: bool = True
    is_store_healthy: bool = True
    num_running: int = 3
    num_waiting: int = 2
    is_exact: bool = True
    counters: FakeCounters = field(default_factory=FakeCounters)


Script = Callable[[GenerationRequest], Sequence[TokenDelta | BaseException | asyncio.Event]]


class FakeBackend:
    """Plays back the deltas of a script. An exception in it is raised, an event is waited for."""

    def __init__(self, script: Script, info: FakeInfo | BaseException | None = None) -> None:
        self.script = script
        self.info = info or FakeInfo()
        self.requests: list[GenerationRequest] = []
        self.num_open = 0
        self.num_sent = 0
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()

    async def get_info(self) -> FakeInfo:
        if isinstance(self.info, BaseException):
            raise self.info
        return self.info

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        self.num_open += 1
        self.opened.set()
        try:
            for step in self.script(request):
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                    continue
                self.num_sent += 1
                yield step
        finally:
            self.num_open -= 1
            self.closed.set()

    def resume(self, request_id: str, received: Sequence[int]) -> AsyncIterator[TokenDelta]:
        raise NotImplementedError("this script has one scheduler only")

    async def all_closed(self) -> None:
        """Wait until no stream is open."""
        while self.num_open > 0:
            self.closed.clear()
            await self.closed.wait()


def deltas(
    token_ids: Sequence[int],
    runs: Sequence[int],
    *,
    finish: FinishReason | None = FinishReason.LENGTH,
    with_logprobs: bool = False,
) -> list[TokenDelta]:
    """The tokens cut into accept runs: each run has all but its last token accepted as drafts."""
    result, start = [], 0
    for length in runs:
        ids = tuple(token_ids[start : start + length])
        if not ids:
            break
        is_last = start + length >= len(token_ids)
        result.append(
            TokenDelta(
                request_id="r",
                start=start,
                token_ids=ids,
                round=RoundStats(num_drafted=7, num_scheduled=len(ids), num_accepted=len(ids) - 1),
                logprobs=tuple(logprobs_of(start + k, i) for k, i in enumerate(ids)) if with_logprobs else (),
                finish_reason=finish if is_last else None,
            )
        )
        start += length
    return result


def logprobs_of(position: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5 - position, (token_id, (token_id + 1) % 256), (-0.5 - position, -9.0))


def says(text: str, *runs: int, finish: FinishReason = FinishReason.STOP) -> Script:
    """A script that answers with this text and an end-of-text token, or runs into the length."""

    def script(request: GenerationRequest) -> list[TokenDelta]:
        ids = [*text.encode()] + ([EOS] if finish is FinishReason.STOP else [])
        lengths = [*runs, *[3] * len(ids)] if runs else [3] * len(ids)
        return deltas(ids, lengths, finish=finish, with_logprobs=request.sampling.num_logprobs is not None)

    return script


def make_edge(backend: GenerationBackend, **options: float) -> Edge:
    tokenizer = TextTokenizer(byte_tokenizer())
    model = ServedModel(
        name="tiny",
        tokenizer=tokenizer,
        template=ChatTemplate(TEMPLATE, {"eos_token": "<|im_end|>"}),
        aliases=frozenset({"models/tiny"}),
        created=1_700_000_000,
    )
    return Edge(
        model=model,
        backend=backend,
        scheduler=SchedulerView(backend),
        options=EdgeOptions(**options),  # type: ignore[arg-type]
    )
