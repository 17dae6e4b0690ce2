"""A tiny random target with a tokenizer of bytes, and an untrained drafter for it, as directories."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from dspark.models.checkpoint import build_drafter, read_target_tensors, save_drafter
from dspark.models.config import DrafterConfig

_NUM_BYTES = 256
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|mask|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = _NUM_BYTES + len(_SPECIAL)
EOS = _NUM_BYTES + 1
HIDDEN = 64


def write_target(directory: Path, *, seed: int = 0, hidden_size: int = HIDDEN) -> Path:
    """Two random Llama layers; large weights, so that the best token is far from the second best."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=_NUM_BYTES,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    _tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {"eos_token": "<|im_end|>", "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return directory


def write_drafter(directory: Path, target: Path, *, seed: int = 0) -> Path:
    """A drafter that never learned anything: its drafts are valid and nearly always rejected."""
    config = DrafterConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        num_hidden_layers=1,
        num_target_layers=4,
        target_layer_ids=(0, 2),
        mask_token_id=_NUM_BYTES + 2,
        gamma=4,
        markov_rank=8,
        draft_vocab_size=128,
        max_position_embeddings=1024,
    )
    tensors = read_target_tensors(target)
    drafter = build_drafter(config, tensors, torch.arange(128))
    drafter.initialise(torch.Generator().manual_seed(seed), tensors["norm"])
    save_drafter(drafter, directory)
    return directory


def _tokenizer() -> Tokenizer:
    """One token per byte: the letters of byte-level BPE in byte order, then the special tokens."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    printable = [chr(byte) for byte in range(_NUM_BYTES) if chr(byte) in letters]
    spare = sorted(set(letters) - set(printable))
    order = [chr(byte) if chr(byte) in printable else spare.pop(0) for byte in range(_NUM_BYTES)]
    tokenizer = Tokenizer(models.BPE(vocab={letter: k for k, letter in enumerate(order)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name) for name in _SPECIAL])
    return tokenizer
