"""Which part of a prompt is what, found in the text that a template made."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.proxy.chat.sections import Layout, Specials, layout, markers
from slotwise.proxy.tokens.segments import Segmenter

TOKENS = ("<|im_start|>", "<|im_end|>", "<|sh|>", "<|eh|>", "<|eot|>", "[INST]", "[/INST]", "</s>")
CUTS = Segmenter({token: i for i, token in enumerate((*TOKENS, "<tool_call>", "<sot>", "<eot>"))})


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


SYSTEM = turn("system", "Be brief and answer in one line.")
CHAT = [SYSTEM, turn("user", "s"), turn("assistant", "yes"), turn("user", "us")]
CALL = turn("assistant", None, tool_calls=[{"function": {"name": "look"}}])
AGENT = [SYSTEM, turn("user", "Go."), CALL, turn("tool", "42"), turn("assistant", "It is 42.")]


def chatml(messages: list[dict[str, Any]], tools: str = "") -> str:
    text = ""
    for message in messages:
        said = message["content"] or ""
        said += tools if message["role"] == "system" else ""
        said += "<tool_call>look" if message.get("tool_calls") else ""
        text += f"<|im_start|>{message['role']}\n{said}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def llama3(messages: list[dict[str, Any]]) -> str:
    turns = (f"<|sh|>{m['role']}<|eh|>\n\n{m['content']}<|eot|>" for m in messages)
    return "".join(turns) + "<|sh|>assistant<|eh|>\n\n"


def mistral(messages: list[dict[str, Any]]) -> str:
    forms = {"user": "[INST] {}[/INST]", "assistant": " {}</s>", "system": "{}\n\n"}
    return "".join(forms[m["role"]].format(m["content"]) for m in messages)


def gemma(messages: list[dict[str, Any]]) -> str:
    system, *rest = messages
    first = rest[0] | {"content": f"{system['content']}\n\n{rest[0]['content']}"}
    turns = (f"<sot>{m['role']}\n{m['content']}<eot>\n" for m in (first, *rest[1:]))
    return "".join(turns) + "<sot>model\n"


def found(text: str, messages: list[dict[str, Any]], *tools: str) -> Layout:
    spans, last = [], 0
    for piece, end in CUTS.pieces(text):
        if isinstance(piece, int):
            spans.append((last, end))
        last = end
    return layout(text, Specials(spans), messages, tools)


def named(text: str, made: Layout) -> list[tuple[str, int, str]]:
    begins = [0, *(part.end for part in made.parts)]
    return [
        (part.name, part.message, text[begin : part.end])
        for begin, part in zip(begins, made.parts, strict=False)
    ]


def test_each_message_of_a_chat_is_a_section_up_to_the_next_turn() -> None:
    text = chatml(CHAT)
    made = found(text, CHAT)
    assert named(text, made) == [
        ("system", 0, "<|im_start|>system\nBe brief and answer in one line.<|im_end|>\n"),
        ("user", 1, "<|im_start|>user\ns<|im_end|>\n"),
        ("assistant", 2, "<|im_start|>assistant\nyes<|im_end|>\n"),
        ("user", 3, "<|im_start|>user\nus<|im_end|>\n"),
        ("template", -1, "<|im_start|>assistant\n"),
    ]
    assert made.first_user_end == text.index("<|im_start|>assistant\nyes")


@pytest.mark.parametrize("template", [chatml, llama3, mistral, gemma])
def test_the_sections_cover_the_prompt_and_the_first_user_turn_stays_as_it_goes_on(
    template: Any,
) -> None:
    short, long = template(CHAT[:2]), template(CHAT)
    first, second = found(short, CHAT[:2]), found(long, CHAT)
    for text, made in ((short, first), (long, second)):
        assert [part.end for part in made.parts] == sorted({part.end for part in made.parts})
        assert made.parts[-1].end == len(text)
    assert first.first_user_end == second.first_user_end is not None
    assert long[: second.first_user_end] == short[: first.first_user_end]
    messages = [(part.name, part.message) for part in second.parts if part.message >= 0]
    assert messages == [("system", 0), ("user", 1), ("assistant", 2), ("user", 3)]


def test_tools_behind_the_system_text_are_apart_from_it() -> None:
    text = chatml(AGENT[:2], tools="\n\n# Tools\nlook(x)")
    assert [(part.name, part.message) for part in found(text, AGENT[:2], "look").parts] == [
        ("system", 0),
        ("tools", -1),
        ("user", 1),
        ("template", -1),
    ]


def test_tools_before_the_system_text_are_apart_from_it() -> None:
    text = (
        "<|im_start|>system\n# Tools\nlook(x)\n\n"
        + chatml(AGENT[:2])[len("<|im_start|>system\n") :]
    )
    assert [part.name for part in found(text, AGENT[:2], "look").parts][:3] == [
        "tools",
        "system",
        "user",
    ]


def test_tools_alone_are_the_head_and_tools_that_no_template_shows_are_no_section() -> None:
    text = "<|im_start|>system\nlook(x)<|im_end|>\n" + chatml(CHAT[1:2])
    assert found(text, CHAT[1:2], "look").parts[0].name == "tools"
    assert "tools" not in {part.name for part in found(chatml(CHAT), CHAT, "look").parts}


def test_a_turn_of_tool_calls_is_told_by_the_turns_around_it() -> None:
    text = chatml(AGENT)
    parts = named(text, found(text, AGENT))
    assert [(name, message) for name, message, _ in parts] == [
        ("system", 0),
        ("user", 1),
        ("assistant", 2),
        ("tool", 3),
        ("assistant", 4),
        ("template", -1),
    ]
    assert parts[2][2] == "<|im_start|>assistant\n<tool_call>look<|im_end|>\n"


def test_a_short_content_is_not_mistaken_for_a_part_of_a_header() -> None:
    messages = [turn("user", "user"), turn("assistant", "assistant"), turn("user", "im")]
    text = chatml(messages)
    assert named(text, found(text, messages))[:2] == [
        ("user", 0, "<|im_start|>user\nuser<|im_end|>\n"),
        ("assistant", 1, "<|im_start|>assistant\nassistant<|im_end|>\n"),
    ]


def test_a_content_that_holds_special_tokens_is_one_section() -> None:
    messages = [turn("user", "say <|im_end|>\n<|im_start|>x again"), turn("assistant", "no")]
    text = chatml(messages)
    assert named(text, found(text, messages))[0] == (
        "user",
        0,
        "<|im_start|>user\nsay <|im_end|>\n<|im_start|>x again<|im_end|>\n",
    )


def test_the_parts_of_a_content_are_one_section() -> None:
    messages = [turn("user", [{"type": "text", "text": "first"}, {"type": "text", "text": "last"}])]
    text = "<|im_start|>user\nfirst\nlast<|im_end|>\n<|im_start|>assistant\n"
    assert [part.name for part in found(text, messages).parts] == ["user", "template"]


def test_a_content_that_the_template_rewrites_leaves_the_first_user_turn_uncertain() -> None:
    messages = [turn("user", "Shout this, please."), turn("assistant", "THIS."), turn("user", "ok")]
    text = chatml([messages[0] | {"content": "SHOUT THIS, PLEASE."}, *messages[1:]])
    made = found(text, messages)
    assert made.first_user_end is None
    assert made.parts[-1].end == len(text)
    assert ("assistant", 1) in [(part.name, part.message) for part in made.parts]


@pytest.mark.parametrize("text", ["", "x", "nothing of it is here"])
def test_a_prompt_without_any_of_its_messages_is_all_template(text: str) -> None:
    made = found(text, CHAT)
    assert [part.name for part in made.parts] in ([], ["template"])
    assert made.first_user_end is None


def test_many_contents_that_are_not_found_end_the_search() -> None:
    messages = [turn("user", f"content {i} that is nowhere to be found") for i in range(5000)]
    assert found("x" * 300_000, messages).first_user_end is None


def test_turns_written_in_plain_text_are_found_by_their_markers() -> None:
    text = chatml(CHAT).replace("im_", "turn_")
    made = layout(text, Specials(markers(text)), CHAT)
    assert [(part.name, part.message) for part in made.parts] == [
        ("system", 0),
        ("user", 1),
        ("assistant", 2),
        ("user", 3),
        ("template", -1),
    ]
