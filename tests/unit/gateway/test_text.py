"""Tokenizer files and chat templates, as model directories hold them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dspark.errors import ConfigurationError, InvalidRequestError
from gateway.text.chat_template import ChatTemplate
from gateway.text.stops import StopMatcher
from gateway.text.tokenizer import TextTokenizer
from gateway.text.tokens import TokenTable
from tests.unit.gateway.gateway_fakes import byte_tokenizer, write_model

HELLO = [{"role": "user", "content": "hi"}]


def test_every_byte_of_a_byte_level_vocabulary_stands_for_itself() -> None:
    table = TokenTable(byte_tokenizer())
    assert [table.raw_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


def test_special_tokens_have_a_name_but_no_text_and_unknown_ids_have_neither() -> None:
    table = TokenTable(byte_tokenizer())
    assert (table.raw_bytes(257), table.text_bytes(257)) == (b"<|im_end|>", b"")
    assert table.raw_bytes(9999) == b""


def test_a_sentencepiece_vocabulary_has_spaces_and_byte_tokens() -> None:
    vocab = {"<unk>": 0, "▁the": 1, "<0xE2>": 2, "a": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    table = TokenTable(tokenizer)
    assert [table.raw_bytes(i) for i in (1, 2, 3)] == [b" the", b"\xe2", b"a"]


def test_a_vocabulary_without_bytes_is_refused_at_start() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ConfigurationError, match="byte-level or SentencePiece"):
        TokenTable(tokenizer)


def test_truncation_stored_in_the_file_does_not_shorten_prompts(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = TextTokenizer.load(tmp_path)
    text = "long enough"
    assert len(asyncio.run(loaded.encode(text, add_special_tokens=False))) == len(text)


def test_a_text_long_enough_for_a_thread_is_encoded_alike(tmp_path: Path) -> None:
    loaded = TextTokenizer.load(write_model(tmp_path))
    text = "ab" * 10_000
    assert asyncio.run(loaded.encode(text, add_special_tokens=False)) == tuple(text.encode())


def test_a_missing_or_broken_tokenizer_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_TARGET"):
        TextTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a tokenizer"):
        TextTokenizer.load(tmp_path)


def test_the_template_file_wins_over_the_one_in_the_config(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert ChatTemplate.load(tmp_path).render(HELLO).startswith("<|im_start|>user\nhi<|im_end|>")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!{{ eos_token }}")
    assert ChatTemplate.load(tmp_path).render(HELLO) == "hi!<|im_end|>"


def test_named_templates_and_token_objects_of_older_configs_are_understood(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}ok"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(HELLO) == "<s>ok"


def test_templates_may_break_loops_dump_json_and_mark_the_assistants_text() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert ChatTemplate(source, {}).render([{"content": "<é>"}, {}]) == '{"content": "<é>"}'


def test_blocks_leave_no_blank_lines_or_indentation() -> None:
    source = "{% if true %}\n    {% if true %}\nx{% endif %}\n{% endif %}"
    assert ChatTemplate(source, {}).render(HELLO) == "x"


def test_a_template_that_refuses_names_the_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        template.render(HELLO)
    assert caught.value.field == "messages"


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", {})
    with pytest.raises(InvalidRequestError, match="refuses"):
        template.render(HELLO)


def test_a_model_without_template_cannot_chat_and_a_broken_template_does_not_start() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ChatTemplate(None, {}).render(HELLO)
    with pytest.raises(ConfigurationError, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_the_stop_that_completes_first_wins_and_of_two_the_longer_one() -> None:
    assert StopMatcher(["abcd", "bc"]).push("xabcd").text == "xa"
    assert StopMatcher(["bc", "abc"]).push("xabc").text == "x"


def test_a_stop_completed_before_it_may_end_the_text_is_passed_over_for_good() -> None:
    matcher = StopMatcher(["ab", "abcd"])
    assert matcher.push("xab", may_end=False).text == "x"
    # The short one is over; the long one, which began with it, may still come.
    scan = matcher.push("cd")
    assert (scan.text, scan.matched) == ("", "abcd")
    matcher = StopMatcher(["ab", "abcd"])
    matcher.push("xab", may_end=False)
    assert matcher.push("cx").text == "abcx"
    assert matcher.push("ab").matched == "ab"


def test_a_stop_that_began_early_ends_the_text_where_it_is_completed() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("xa", may_end=False).text == "x"
    assert matcher.push("b").matched == "ab"


def test_an_overlapping_beginning_of_a_stop_stays_held() -> None:
    matcher = StopMatcher(["aab"])
    assert [matcher.push(c).text for c in "aaaab"] == ["", "", "a", "a", ""]
    assert matcher.flush() == ""


def test_the_pre_tokenizer_of_the_fake_matches_the_library() -> None:
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    assert alphabet == {byte_tokenizer().id_to_token(i) for i in range(256)}
