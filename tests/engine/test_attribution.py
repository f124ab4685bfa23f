"""On a real engine every prompt token has its cause: in recorded calls, and for seeded faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwise.bench.run import client
from slotwise.bench.trace import trace, workload
from tests.engine.accounts import Told, accounted, send
from tests.engine.conftest import StartEngine
from tests.engine.engines import RunningEngine
from tests.engine.retemplated import retemplated
from tests.engine.sliding import sliding
from tests.engine.talk import NO_RAM_CACHE, PINNABLE, words
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import OPENCODE_TOOLS, Talk, Wire, talk
from tests.running_proxy import RunningProxy
from tests.support import trace as trace_path

FLAGS = (*PINNABLE, *NO_RAM_CACHE)
# the least recently used slot takes whatever comes
BLIND: dict[str, Any] = dict.fromkeys(("home", "guest", "affinity"), False)

THINKING = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.reasoning_content -%}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n' -}}
{%- endif -%}
{{- m.content -}}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
# As of models whose template writes a system text of its own, and in it how hard to think.
EFFORT = """\
{{- '<|im_start|>system\\nYou are a large language model.\\nReasoning: ' -}}
{{- reasoning_effort | default('low') -}}{{- '<|im_end|>\\n' -}}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


# the last of these on an engine's command line counts
def with_model(path: Path) -> tuple[str, str]:
    return "-m", str(path)


def two_turns(proxy: RunningProxy, first: Wire, second: Any) -> Told:
    """``second`` makes the next turn's request of what was said, the first answer included."""
    said = [m for m in first.body["messages"] if m["role"] != "system"]
    answer = send(proxy, first)
    assert set(answer.causes) == {"new"}
    return send(proxy, second([*said, *talk("", answer.text)[1:], *talk(words("next", 20))]))


# ---------------------------------------------------------------- recorded calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tau_airline.jsonl", "sweagent_elide5.jsonl", "oasst.jsonl"])
def test_the_causes_of_recorded_calls_add_up_and_none_is_the_engines(
    start_engine: StartEngine, tiny_gguf: Path, name: str
) -> None:
    calls = workload.interleave(trace.read(str(trace_path(name))), 4, 1)[:12]
    engine = start_engine("-np", "2", "-c", "65536", *FLAGS)
    seen: set[str] = set()
    with accounted(engine, tiny_gguf) as proxy:
        for call in calls:
            causes = send(proxy, Wire({}, client.body(call, 8))).causes
            seen |= set(causes)
        assert {"cached", "new", "evicted"} <= seen
        assert not seen & {"engine", "unknown"}


# ---------------------------------------------------------------- seeded faults


@pytest.mark.slow
def test_a_clock_in_the_system_text(start_engine: StartEngine, tiny_gguf: Path) -> None:
    """Open WebUI with a prompt of the kind people write."""
    engine = start_engine("-np", "1", "-c", "16384", *FLAGS)

    def asked(said: Talk, minute: int = 42) -> Wire:
        rules = words("rules", 100)
        system = f"You are a helpful assistant. It is 2026-02-03 09:{minute}:07.\n{rules}"
        return shapes.open_webui(said, chat="c-1", system=system)

    with accounted(engine, tiny_gguf) as proxy:
        first = asked(talk(words("question", 200)), minute=41)
        second = two_turns(proxy, first, asked)
        assert second.changed == ("system", 0)
        causes = second.causes
        assert set(causes) == {"cached", "changed", "new"}
        assert causes["changed"] > 300
        assert causes["new"] < 50


@pytest.mark.slow
def test_tools_in_another_order(start_engine: StartEngine, tiny_gguf: Path) -> None:
    engine = start_engine("-np", "1", "-c", "16384", *FLAGS)
    with accounted(engine, tiny_gguf) as proxy:
        first = shapes.opencode(talk(words("task", 100)))
        other = (OPENCODE_TOOLS[1], OPENCODE_TOOLS[0], *OPENCODE_TOOLS[2:])
        second = two_turns(proxy, first, lambda said: shapes.opencode(said, offered=other))
        assert second.changed == ("tools", -1)
        assert set(second.causes) == {"cached", "changed", "new"}
        assert second.causes["changed"] > 500


@pytest.mark.slow
def test_reasoning_left_out_of_an_earlier_answer(
    start_engine: StartEngine, tiny_gguf: Path, tmp_path: Path
) -> None:
    """It came back in the turn behind it, and a turn later it is dropped."""
    model = retemplated(tiny_gguf, THINKING, tmp_path / "thinking.gguf")
    engine = start_engine("-np", "2", "-c", "16384", *FLAGS, *with_model(model))
    with accounted(engine, tiny_gguf) as proxy:
        asked, thought = talk(words("question", 100)), words("thought", 200)
        answer = {"role": "assistant", "content": send(proxy, shapes.open_webui(asked)).text}
        more = [*asked, answer | {"reasoning_content": thought}, *talk(words("more", 20))]
        again = send(proxy, shapes.open_webui(more))
        dropped = [*asked, answer, *talk(words("more", 20), again.text, words("last", 20))]
        third = send(proxy, shapes.open_webui(dropped))
        assert third.changed == ("assistant", 1)
        # Where there is no text now, the conversation held the 200 words more that it lost.
        assert set(third.causes) == {"cached", "changed"}


@pytest.mark.slow
def test_reasoning_that_never_comes_back(start_engine: StartEngine, tiny_gguf: Path) -> None:
    """What was generated is known as a number of tokens only: the answer came back otherwise."""
    engine = start_engine("-np", "2", "-c", "16384", *FLAGS)
    with accounted(engine, tiny_gguf) as proxy:
        asked = talk(words("question", 200))
        said = send(proxy, shapes.open_webui(asked), max_tokens=60).text.split(" ")
        kept = " " + " ".join(said[-20:])
        second = send(proxy, shapes.open_webui([*asked, *talk("", kept, words("more", 20))[1:]]))
        assert second.changed == ("assistant", 1)
        assert second.record.changed is not None
        assert second.record.changed.in_answer
        assert set(second.causes) == {"cached", "changed", "new"}
        assert second.causes["changed"] <= 24


@pytest.mark.slow
def test_a_conversation_sent_to_another_slot_than_its_own(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    engine = start_engine("-np", "2", "-c", "16384", *FLAGS)
    with accounted(engine, tiny_gguf, BLIND) as proxy:
        said = talk(words("question", 200))
        first = send(proxy, shapes.open_webui(said))
        other = send(proxy, shapes.open_webui(talk(words("else", 50))))
        said += talk("", first.text, words("more", 20))[1:]
        second = send(proxy, shapes.open_webui(said))
        assert second.record.slot == first.record.slot != other.record.slot
        said += talk("", second.text, words("last", 20))[1:]
        third = send(proxy, shapes.open_webui(said))
        assert third.record.slot == other.record.slot
        causes = third.causes
        whole = second.prompt_tokens + 7  # the last of 8 generated tokens was never fed back
        assert causes["cached"] + causes["elsewhere"] == whole
        assert causes["cached"] < 10
        assert third.record.bound == whole


@pytest.mark.slow
def test_a_slot_taken_by_a_title_job(start_engine: StartEngine, tiny_gguf: Path) -> None:
    engine = start_engine("-np", "1", "-c", "8192", *FLAGS)
    with accounted(engine, tiny_gguf) as proxy:
        said = talk(words("question", 200))
        first = send(proxy, shapes.open_webui(said, chat="c-1"))
        said += talk("", first.text)[1:]
        title = send(proxy, shapes.open_webui_title(said, chat="c-1"))
        assert title.record.kind == "side"
        second = send(proxy, shapes.open_webui([*said, *talk(words("more", 20))], chat="c-1"))
        causes = second.causes
        assert causes["cached"] + causes["evicted"] == first.prompt_tokens + 7
        assert causes["cached"] < 10
        assert second.record.displaced is not None
        assert second.record.displaced.by == title.record.id


@pytest.mark.slow
def test_a_sliding_window_that_was_not_kept_whole(
    start_engine: StartEngine, tiny_gguf: Path, tmp_path: Path
) -> None:
    """A long question is edited behind its middle: the engine has only the window before its end,
    and computes all of it again, unless it is told to keep everything (``--swa-full``)."""
    model = sliding(tiny_gguf, tmp_path / "sliding.gguf")
    head = words("document", 600)
    questions = [f"{head} {words(name, 900)}" for name in ("one", "two")]
    windowed, whole = [
        _edited(
            start_engine("-np", "1", "-c", "8192", *FLAGS, *flags, *with_model(model)),
            model,
            questions,
        )
        for flags in ((), ("--swa-full",))
    ]
    assert "engine" not in whole
    assert whole["cached"] > 600
    assert windowed["cached"] < 100
    assert windowed["cached"] + windowed["engine"] == whole["cached"]
    assert windowed["changed"] == whole["changed"]


def _edited(engine: RunningEngine, model: Path, questions: list[str]) -> dict[str, int]:
    """A chat's second question is asked, and then another in its place: what became of that."""
    with accounted(engine, model) as proxy:
        said = talk(words("hello", 10))
        said += talk("", send(proxy, shapes.open_webui(said, chat="c-1")).text)[1:]
        for question in questions:
            edited = send(proxy, shapes.open_webui([*said, *talk(question)], chat="c-1"))
        assert edited.changed == ("user", 2)
        return edited.causes


@pytest.mark.slow
def test_another_text_of_the_template(
    start_engine: StartEngine, tiny_gguf: Path, tmp_path: Path
) -> None:
    """A client that asks for more thinking changes the template's own system text."""
    model = retemplated(tiny_gguf, EFFORT, tmp_path / "effort.gguf")
    engine = start_engine("-np", "1", "-c", "16384", *FLAGS, *with_model(model))

    def asked(said: Talk, effort: str = "high") -> Wire:
        headers, body, path = shapes.open_webui(said, chat="c-1")
        return Wire(headers, body | {"chat_template_kwargs": {"reasoning_effort": effort}}, path)

    with accounted(engine, tiny_gguf) as proxy:
        first = asked(talk(words("question", 200)), effort="low")
        second = two_turns(proxy, first, asked)
        assert second.changed == ("template", -1)
        assert set(second.causes) == {"cached", "changed", "new"}
        assert second.causes["changed"] > 200
