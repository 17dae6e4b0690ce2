"""Renders a conversation into the prompt a chat model was trained on, with its own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspark.errors import ConfigurationError, InvalidRequestError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """One compiled template and the special tokens it may name."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        """Compile the template; None: the model has none and cannot chat.

        Raises:
            ConfigurationError: the template does not compile.
        """
        self._special_tokens = dict(special_tokens)
        try:
            self._template = None if source is None else _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigurationError(f"The chat template of the model does not compile: {error}.") from error

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate:
        """Read `chat_template.jinja`, or else the template in `tokenizer_config.json`."""
        config_path = directory / "tokenizer_config.json"
        config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
        file = directory / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else _default_template(config.get("chat_template"))
        return cls(source, _special_tokens(config))

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """Text of the conversation, ending where the assistant's answer begins.

        Args:
            messages: role and content of each turn.
            variables: extra names the template may look at, such as `enable_thinking`.

        Raises:
            InvalidRequestError: the model has no template, or its template refuses the conversation.
        """
        if self._template is None:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions, or add chat_template.jinja to its"
                " directory.",
                field="messages",
            )
        names = {"tools": None, "documents": None, **self._special_tokens, **(variables or {})}
        names |= {"messages": list(messages), "add_generation_prompt": True}
        try:
            return self._template.render(names)
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"The chat template of this model refuses these messages: {error}.", field="messages"
            ) from error


class _GenerationBlock(Extension):
    """Lets templates mark the assistant's text with `{% generation %}`; the mark itself prints nothing."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which models have not seen."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _default_template(template: object) -> str | None:
    """A config holds one template, or a list of named ones."""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: t["content"] if isinstance(t, dict) else t for name, t in tokens.items() if t}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
