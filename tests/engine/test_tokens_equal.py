# ruff: noqa: RUF001 - the special tokens of a template are spelt as they are
"""Our tokens are the engine's, on real engines: hard prompts, chat templates, bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.bench.cost.prompt_corpus import prompts
from slotwise.bench.cost.tokens_bench import differences, proven, request
from slotwise.policies.prefix import pack
from slotwise.proxy.chat.request import Kind, prepare
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import ProxyError, UpstreamError
from slotwise.proxy.tokens.probes import PROBE_CHATS
from slotwise.proxy.tokens.tokenizer import Tokenizer
from tests.engine import engines
from tests.engine.conftest import StartEngine
from tests.engine.gemma import gemma
from tests.engine.retemplated import retemplated

# The shapes of well-known templates: turns by special tokens, system joined with the first turn,
# trimmed contents, a clock in the system text, thoughts that are dropped, calls as JSON.
TEMPLATES = {
    "llama-3": """\
{{- bos_token }}{%- set date = strftime_now("%d %b %Y") %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date + "\\n\\n" + system }}
{%- if tools is not none and tools %}{%- for t in tools %}{{- t | tojson(indent=4) }}
{{- "\\n\\n" }}{%- endfor %}{%- endif %}{{- "<|eot_id|>" }}
{%- for m in messages %}{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}
{%- if m.tool_calls %}{%- for c in m.tool_calls %}{{- '{"name": "' + c.function.name + '", ' }}
{{- '"parameters": ' }}{{- c.function.arguments | tojson }}{{- "}" }}{%- endfor %}
{%- else %}{{- m['content'] | trim }}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
    "gemma": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{%- set first = messages[0]['content'] + '\\n\\n' %}{% set loop_messages = messages[1:] %}
{% else %}{%- set first = '' %}{% set loop_messages = messages %}{% endif %}
{% for message in loop_messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
{%- if message['content'] is string %}{{ message['content'] | trim }}
{%- else %}{% for item in message['content'] %}{% if item['type'] == 'text' %}
{{- item['text'] | trim }}{% endif %}{% endfor %}{% endif %}
{{ '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "qwen-3": """\
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- "# Tools\\n\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools><|im_end|>\\n" }}{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{%- set content = message.content or '' %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- elif message.role == "assistant" %}{%- if '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>assistant\\n' + content }}{%- for c in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{%- if c.function.arguments is string %}{{- c.function.arguments }}
{%- else %}{{- c.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- elif message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}
{%- endif %}{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}
{%- endif %}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}""",
    "mistral": """\
{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}
{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{{- bos_token }}{%- for message in rest %}{%- if message["role"] == "user" %}
{%- if loop.last and system is defined %}{{- "[INST]" + system + "\\n\\n" }}
{{- message["content"] + "[/INST]" }}
{%- else %}{{- "[INST]" + message["content"] + "[/INST]" }}{%- endif %}
{%- elif message["role"] == "assistant" %}{{- message["content"] + eos_token }}
{%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}""",
    "deepseek": """\
{{- bos_token }}{%- for message in messages %}{%- if message.role == 'system' %}
{{- message.content }}{%- elif message.role == 'user' %}{{- '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}{%- set said = message.content %}
{%- if '</think>' in said %}{%- set said = said.split('</think>')[-1] %}{%- endif %}
{{- '<｜Assistant｜>' + said + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}""",
}  # fmt: skip


@pytest.mark.slow
def test_hundreds_of_hard_prompts_are_tokenized_as_the_engine_does(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    compared, differing = asyncio.run(differences(tiny_gguf, start_engine("-c", "512").url, 240))
    assert differing == []
    assert compared.total() == 240


@pytest.fixture
def gemma_engine(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    path = gemma()
    flags = ("-t", "1", "-c", "512", "-np", "1")
    engine = engines.start(engines.EMBEDDED, path, tmp_path / "gemma.log", *flags)
    yield path, engine.url
    engine.stop()


@pytest.mark.slow
def test_the_same_for_a_sentencepiece_vocabulary(gemma_engine: tuple[Path, str]) -> None:
    compared, differing = asyncio.run(differences(*gemma_engine, 60))
    assert differing == []
    assert compared.total() == 60


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_conversations_of_well_known_templates_are_rendered_and_tokenized_as_the_engine_does(
    tiny_gguf: Path, tmp_path: Path, name: str
) -> None:
    path = retemplated(tiny_gguf, TEMPLATES[name], tmp_path / "model.gguf")
    engine = engines.start(
        engines.EMBEDDED, path, tmp_path / "log", "-t", "1", "-c", "512", "-np", "1"
    )
    try:
        asyncio.run(_conversations(path, engine.url))
    finally:
        engine.stop()


async def _conversations(path: Path, url: str) -> None:
    async with proven(path, url) as (tokenizer, engine, known):
        served = 0
        for chat in _chats():
            try:
                text = await engine.apply_template(chat)
            except UpstreamError:
                with pytest.raises(UpstreamError):
                    await tokenizer.encode(engine, request(Kind.CHAT, chat))
                continue
            encoded = await tokenizer.encode(engine, request(Kind.CHAT, chat))
            assert encoded.tokens == pack(await engine.tokenize(text)), chat
            assert encoded.sections[-1].end == len(encoded.tokens)
            served += 1
        assert served >= 20
        assert known.differences == 0


def _chats() -> Iterator[dict[str, Any]]:
    yield from PROBE_CHATS
    texts = (text for _, text in prompts(200, ("<|im_end|>", "<|eot_id|>", "[INST]"), seed=7))
    for turns in (1, 3, 5, 3, 1, 7) * 3:
        messages = [{"role": "system", "content": next(texts)[:500]}] if turns > 1 else []
        messages += [
            {"role": ("user", "assistant")[n % 2], "content": next(texts)[:500]}
            for n in range(turns)
        ]
        yield {"messages": messages}


async def _encode(tokenizer: Tokenizer, engine: EngineClient, kind: Kind, raw: bytes) -> Any:
    return await tokenizer.encode(engine, await prepare(kind, "/", raw, {"main": "main"}))


@pytest.mark.slow
def test_bad_input_is_refused_in_words_or_left_to_the_engine(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    url = start_engine("-c", "512").url

    async def work() -> None:
        async with proven(tiny_gguf, url) as (tokenizer, engine, _):
            surrogate = b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}'
            with pytest.raises(ProxyError, match="not JSON"):  # the engine refuses it likewise
                await _encode(tokenizer, engine, Kind.CHAT, surrogate)
            assert (await engine.exchange("POST", "/apply-template", surrogate)).status_code == 400
            pair = b'{"prompt": "\\ud83d\\ude42"}'
            encoded = await _encode(tokenizer, engine, Kind.COMPLETION, pair)
            assert encoded.tokens == pack(await engine.tokenize("🙂"))
            ids = json.dumps({"prompt": [1, 2**31 - 1]}).encode()  # the engine's to refuse
            assert len((await _encode(tokenizer, engine, Kind.COMPLETION, ids)).tokens) == 2
            with pytest.raises(ProxyError, match="expected a token id or text"):
                await _encode(tokenizer, engine, Kind.COMPLETION, b'{"prompt": [1, 4294967296]}')

    asyncio.run(work())


@pytest.mark.slow
def test_a_prompt_of_a_million_tokens_is_encoded(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    url = start_engine("-c", "512").url

    async def work() -> None:
        async with proven(tiny_gguf, url) as (tokenizer, engine, _):
            text = " ".join(text for _, text in prompts(400, ["<|im_end|>"], seed=3))
            text = (text * (3_600_000 // len(text) + 1))[:3_600_000]
            body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
            encoded = await _encode(tokenizer, engine, Kind.CHAT, body)
            assert len(encoded.tokens) > 1_000_000
            assert encoded.sections[0].name == "user"

    asyncio.run(work())
