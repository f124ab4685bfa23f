"""Workload shapes: what clients send, generated from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from slotwise.bench.trace.workload import text

CHAT, INFILL = "/v1/chat/completions", "/infill"
Message = dict[str, Any]
Lane = list["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. ``output``: tokens that are generated; ``pause_s``: since the answer before it,
    in a lane's first turn since the start."""

    lane: str
    body: Mapping[str, Any]  # without the model
    output: int
    answer: str = ""  # its words, where a later prompt repeats them
    asks_tools: bool = False  # the answer does
    pause_s: float = 0.0
    path: str = CHAT
    gives_up_s: float | None = None  # the client closes after so long, and goes on
    side: bool = False  # a side job: nobody waits for it
    beside: tuple[Turn, ...] = ()  # sent at the same moment


@dataclass(frozen=True, slots=True)
class Draw:
    """What a shape draws its sizes with."""

    rng: Random
    pace: float  # s, the scale of all pauses: about what reading 2,000 tokens takes

    def tokens(self, low: int, high: int) -> int:
        """Small sizes as likely as large ones: uniform in the logarithm."""
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def count(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pause_s(self, paces: float) -> float:
        """Around so many paces, log-normal as people's and tools' pauses are."""
        return self.pace * paces * self.rng.lognormvariate(0, 0.6)

    def words(self, low: int, high: int) -> str:
        return self.filler(self.tokens(low, high))

    def filler(self, words: int) -> str:
        return text(words, str(self.rng.random()))


def body(messages: list[Message], stream: bool, limit: int = 0, **fields: Any) -> dict[str, Any]:
    """A chat's request; ``limit``: ``max_tokens``, where it names one."""
    return {
        "messages": list(messages),
        "stream": stream,
        **({"max_tokens": limit} if limit else {}),
        **fields,
    }


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def one_shot(lane: str, system: str, said: str, output: int, stream: bool, **more: Any) -> Turn:
    messages = [message("system", system), message("user", said)]
    return Turn(lane, body(messages, stream, output), output, **more)


def tools(draw: Draw, count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool_{k}", "description": draw.words(30, 120)}}
        for k in range(count)
    ]


def conversation(
    lane: str,
    draw: Draw,
    turns: int,
    head: str,
    first: int,
    grows: tuple[int, int],
    output: tuple[int, int],
    paces: float,
    **fields: Any,
) -> Iterator[Turn]:
    """A chat that grows: the user's words, the answer, the user's next words."""
    messages = [message("system", head)] if head else []
    for k in range(turns):
        messages.append(message("user", draw.filler(first) if not k else draw.words(*grows)))
        n = draw.tokens(*output)
        said = draw.filler(n)
        yield Turn(lane, body(messages, True, **fields), n, said, pause_s=draw.pause_s(paces))
        messages.append(message("assistant", said))


def agent(
    lane: str, draw: Draw, turns: int, head: str, grows: tuple[int, int] = (60, 900)
) -> Iterator[Turn]:
    """Each answer asks for a tool, whose result comes after a short pause."""
    offered = tools(draw, 6)
    messages = [message("system", head), message("user", draw.words(40, 400))]
    for k in range(turns):
        n = draw.tokens(30, 300)
        said, pause_s = draw.filler(n), draw.pause_s(1 if k else 0.5)
        request = body(messages, True, tools=offered)
        yield Turn(lane, request, n, said, asks_tools=k + 1 < turns, pause_s=pause_s)
        call = {
            "id": f"c{k}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": "{}"},
        }
        asked = message("assistant", said) | {"tool_calls": [call]}
        result = message("tool", draw.words(*grows)) | {"tool_call_id": f"c{k}"}
        messages += [asked, result]


_TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history."
_TAGS = "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history."
_FOLLOW_UPS = "### Task:\nSuggest 3-5 relevant follow-up questions or prompts for the chat history."


def _preambles(draw: Draw, stream: bool) -> list[Lane]:
    """Fixed system texts in turn, each with a short user line."""
    texts = [draw.words(300, 6000) for _ in range(draw.count(1, 8))]
    turns = [one_shot("p", texts[k % len(texts)], draw.words(6, 40), 8, stream) for k in range(40)]
    return [turns]


def preambles(draw: Draw) -> list[Lane]:
    return _preambles(draw, stream=False)


def preambles_streamed(draw: Draw) -> list[Lane]:
    return _preambles(draw, stream=True)


def satellites(draw: Draw) -> list[Lane]:
    """Prompts that differ in an early line and have much in common behind it."""
    common = draw.words(300, 3000)
    rooms = [f"You are in room {draw.filler(3)}." for _ in range(draw.count(2, 4))]
    return [
        [
            one_shot("s", f"{rooms[k % len(rooms)]}\n{common}", draw.words(5, 30), 30, True)
            for k in range(36)
        ]
    ]


def retrieval(draw: Draw) -> list[Lane]:
    """A shared head, a middle that changes, a short question."""
    head = draw.words(300, 2000)
    notes = [draw.words(300, 3000) for _ in range(8)]

    def ask(lane: str) -> Turn:
        middle = "\n".join(draw.rng.sample(notes, 2))
        said = f"Context:\n{middle}\n\nQuestion: {draw.words(8, 30)}"
        return replace(one_shot(lane, head, said, 80, True), pause_s=draw.pause_s(2))

    return [[ask(lane) for _ in range(18)] for lane in ("r0", "r1")]


def classifiers(draw: Draw) -> list[Lane]:
    """Extractors and classifiers with several prompts, called by two workers."""
    prompts = [draw.words(150, 1800) for _ in range(draw.count(2, 5))]
    pick = draw.rng.choice
    return [
        [
            replace(
                one_shot(lane, pick(prompts), draw.words(20, 400), draw.tokens(3, 40), False),
                pause_s=draw.pause_s(0.2),
            )
            for _ in range(24)
        ]
        for lane in ("w0", "w1")
    ]


def batch(draw: Draw) -> list[Lane]:
    """One-shot calls with a common preamble, many at once."""
    head = draw.words(200, 5000)
    lanes = draw.count(2, 8)
    own = (50, 1500)
    return [
        [
            one_shot(f"b{n}", head, draw.words(*own), draw.tokens(16, 200), False)
            for _ in range(48 // lanes)
        ]
        for n in range(lanes)
    ]


def chat_alone(draw: Draw) -> list[Lane]:
    """One chat, nobody else."""
    head = draw.words(20, 1500)
    return [list(conversation("c", draw, 30, head, 80, (10, 300), (40, 400), 4))]


def chat_ui(draw: Draw) -> list[Lane]:
    """Chats of a web interface: after the first turn a title and tags, after each follow-ups."""
    head = draw.words(30, 800)

    def job(lane: str, said: str, turn: Turn, output: int) -> Turn:
        history = "\n".join(m["content"][:1500] for m in turn.body["messages"][-3:])
        request = body([message("user", f"{said}\n<chat_history>\n{history}")], False)
        return Turn(f"{lane} job", request, output, side=True)

    def chat(lane: str) -> Lane:
        turns = list(conversation(lane, draw, 8, head, 60, (10, 200), (40, 300), 4))
        with_jobs = [turns[0]]
        for k, turn in enumerate(turns[1:]):
            jobs = [job(lane, _FOLLOW_UPS, turns[k], 40)]
            if k == 0:
                jobs += [job(lane, _TITLE, turns[0], 12), job(lane, _TAGS, turns[0], 20)]
            # They come when the answer has ended, long before the next turn.
            first = replace(jobs[0], pause_s=0.0, beside=tuple(jobs[1:]))
            with_jobs += [first, turn]
        return with_jobs

    return [chat(f"u{n}") for n in range(draw.count(1, 4))]


def sub_agents(draw: Draw) -> list[Lane]:
    """A main agent, and others with a system text of their own that it starts now and then."""
    main = list(agent("main", draw, 20, draw.words(1500, 6000)))
    head = draw.words(600, 2500)
    subs = [list(agent(f"sub{n}", draw, 6, head)) for n in range(draw.count(2, 4))]
    for n, sub in enumerate(subs):
        sub[0] = replace(sub[0], pause_s=draw.pause_s(3 + 6 * n))
    return [main, *subs]


def agents(draw: Draw) -> list[Lane]:
    """Agents of one client that use tools."""
    head = draw.words(1500, 7000)
    return [list(agent(f"a{n}", draw, 16, head)) for n in range(draw.count(2, 6))]


def agent_with_classifiers(draw: Draw) -> list[Lane]:
    """Between its steps an agent asks two fixed prompts."""
    prompts = [draw.words(300, 1500) for _ in range(2)]
    lane: Lane = []
    for turn in agent("a", draw, 14, draw.words(1000, 4000)):
        lane.append(turn)
        lane += [one_shot("a", prompt, draw.words(10, 60), 6, False) for prompt in prompts]
    return [lane]


def infill(draw: Draw) -> list[Lane]:
    """An editor asks for completions while an agent works."""
    before, after = draw.words(300, 3000), draw.words(100, 1500)
    editor = []
    for _ in range(30):
        before = f"{before} {draw.words(1, 12)}"
        request = {"input_prefix": before, "input_suffix": after, "prompt": "", "n_predict": 24}
        pause_s = draw.pause_s(0.5)
        editor.append(Turn("e", request | {"stream": True}, 24, pause_s=pause_s, path=INFILL))
    return [editor, list(agent("a", draw, 10, draw.words(1500, 6000)))]


def _voice(draw: Draw, stream: bool) -> list[Lane]:
    """Short questions while an agent reads long prompts."""
    head = draw.words(300, 1500)
    asks = [
        replace(
            one_shot("v", head, draw.words(5, 30), draw.tokens(20, 150), stream),
            pause_s=draw.pause_s(2),
        )
        for _ in range(20)
    ]
    return [asks, list(agent("a", draw, 12, draw.words(4000, 16_000), (500, 6000)))]


def voice(draw: Draw) -> list[Lane]:
    return _voice(draw, stream=False)


def voice_streamed(draw: Draw) -> list[Lane]:
    return _voice(draw, stream=True)


def _retries(draw: Draw, stream: bool) -> list[Lane]:
    """A client that leaves and asks again, beside a chat that streams."""
    lane = []
    head = draw.words(50, 1000)
    turns = list(conversation("r", draw, 12, head, draw.tokens(800, 8000), (30, 300), (30, 200), 2))
    for turn in turns:
        request = {**turn.body, "stream": stream}
        once = replace(turn, body=request)
        if draw.rng.random() < 0.6:
            left = replace(once, output=4000, gives_up_s=draw.pause_s(0.7))
            lane.append(left)
            once = replace(once, pause_s=draw.pause_s(0.1))
        lane.append(once)
    other = list(conversation("o", draw, 18, draw.words(50, 1000), 100, (20, 200), (100, 600), 1))
    return [lane, other]


def retries(draw: Draw) -> list[Lane]:
    return _retries(draw, stream=False)


def retries_streamed(draw: Draw) -> list[Lane]:
    return _retries(draw, stream=True)


def regenerate(draw: Draw) -> list[Lane]:
    """Answers are made again, last words are edited."""
    lane: Lane = []
    for turn in conversation("c", draw, 14, draw.words(50, 2000), 100, (20, 400), (40, 300), 3):
        lane.append(turn)
        if draw.rng.random() < 0.4:
            lane.append(replace(turn, pause_s=draw.pause_s(1)))
        elif draw.rng.random() < 0.5:
            *history, last = turn.body["messages"]
            edited = [*history, message("user", f"{last['content']} {draw.words(3, 40)}")]
            lane.append(replace(turn, body={**turn.body, "messages": edited}))
    other = list(conversation("o", draw, 10, draw.words(50, 2000), 100, (20, 400), (40, 300), 3))
    return [lane, other]


def growing(draw: Draw) -> list[Lane]:
    """Prompts of one message that grows by what came of the last."""

    def grow(lane: str) -> Lane:
        said, turns = draw.words(300, 3000), []
        for _ in range(36 // lanes):
            turns.append(
                Turn(lane, body([message("user", said)], True), 60, pause_s=draw.pause_s(1))
            )
            said = f"{said}\n{draw.words(40, 400)}"
        return turns

    lanes = draw.count(1, 3)
    return [grow(f"g{n}") for n in range(lanes)]


def tools_in_turn(draw: Draw) -> list[Lane]:
    """One chat, its requests with and without tools in turn."""
    offered = tools(draw, 8)
    turns = list(conversation("t", draw, 32, draw.words(100, 2000), 100, (20, 200), (30, 200), 1))
    with_tools = [replace(t, body={**t.body, "tools": offered}) for t in turns]
    return [[with_tools[k] if k % 2 else turns[k] for k in range(len(turns))]]


def strangers(draw: Draw) -> list[Lane]:
    """Small calls beside a large conversation that pauses and small ones that do not."""
    large = list(
        conversation("l", draw, 6, "", draw.tokens(6000, 16_000), (50, 300), (40, 200), 12)
    )
    small = [
        list(conversation(f"s{n}", draw, 10, "", 60, (10, 60), (20, 80), 1.5)) for n in range(2)
    ]
    calls = [
        replace(one_shot("x", draw.words(20, 60), draw.words(20, 80), 12, False), pause_s=pause_s)
        for pause_s in [draw.pause_s(3) for _ in range(16)]
    ]
    return [large, *small, calls]


Shape = Callable[[Draw], list[Lane]]
_PLAIN: tuple[Shape, ...] = (
    *(preambles, preambles_streamed, satellites, retrieval, classifiers, batch, chat_alone),
    *(chat_ui, sub_agents, agents, agent_with_classifiers, infill, voice, voice_streamed),
    *(retries, retries_streamed, regenerate, growing, tools_in_turn, strangers),
)


def mixed(draw: Draw) -> list[Lane]:
    """Three shapes at once, half of each."""
    lanes = []
    for n, shape in enumerate(draw.rng.sample(_PLAIN, 3)):
        for lane in shape(draw):
            named = [replace(turn, lane=f"{n} {turn.lane}") for turn in lane]
            lanes.append(named[: max(2, len(named) // 2)])
    return lanes


SHAPES: Mapping[str, Shape] = {shape.__name__: shape for shape in (*_PLAIN, mixed)}


def workload(name: str, seed: int, pace: float) -> list[Lane]:
    """The lanes of one shape; the same for the same seed and pace."""
    return SHAPES[name](Draw(Random(f"{name} {seed}"), pace))
