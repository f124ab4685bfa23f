"""Seeded faults get their cause; the records agree with the engine; memory is bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.attribution import RECOMPUTED
from policies.prefix import lcp, pack
from proxy.computed import BLOCK_TOKENS, Blocks, chain
from proxy.events import (
    Failure,
    RequestCancelled,
    RequestFinished,
    SlotReport,
    SlotsReported,
)
from proxy.history import History
from tests.proxy.history_world import OFFSET_S, Part, World, by_cause, ids
from tests.proxy.script import PLAIN_COST

TOOLS = ("tools", ids("tools", 200))
SYSTEM = ("system", ids("system", 100))
USER = ("user", ids("user", 50))
ANSWER = ids("answer", 40)
FIRST: list[Part] = [TOOLS, SYSTEM, USER]
SECOND: list[Part] = [*FIRST, ("assistant", ANSWER), ("user", ids("more", 30))]
N = 350  # tokens of FIRST

# the least recently used slot takes whatever comes
BLIND: dict[str, Any] = {name: {"enabled": False} for name in ("home", "guest", "affinity")}


def test_a_turn_that_goes_on_is_cached_with_its_answer() -> None:
    world = World()
    assert by_cause(world.ask("a", FIRST, "s", ANSWER)) == {"new": N}
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N + 39, "new": 31}
    assert (record.bound, record.changed, record.displaced) == (N + 39, None, None)


def test_the_same_prompt_again_computes_its_last_token() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    assert by_cause(world.ask("b", FIRST, "s")) == {"cached": N - 1, "min_one": 1}


def test_a_clock_in_the_system_text_is_changed_there() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    later = [*SYSTEM[1][:14], 7, 8, *SYSTEM[1][16:]]
    record = world.ask("b", [TOOLS, ("system", later), *SECOND[2:]], "s")
    assert by_cause(record) == {"cached": 214, "changed": N + 39 - 214, "new": 31}
    changed = record.changed
    assert changed is not None
    assert (changed.section, changed.message, changed.position) == ("system", 1, 214)
    assert changed.lead == tuple(SYSTEM[1][6:14])
    assert changed.before == tuple(SYSTEM[1][14:38])
    assert changed.after == (7, 8, *SYSTEM[1][16:38])
    by_section = {(s.cause.value, s.section): s.tokens for s in record.shares}
    assert by_section["changed", "system"] == 86
    assert by_section["changed", "user"] == 50


def test_tools_in_another_order_are_changed_there() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    swapped = ("tools", TOOLS[1][100:] + TOOLS[1][:100])
    record = world.ask("b", [swapped, *SECOND[1:]], "s")
    assert by_cause(record) == {"changed": N + 39, "new": 31}
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("tools", 0)


def test_reasoning_that_is_left_out_is_a_change_of_the_answer() -> None:
    world = World()
    world.ask("a", FIRST, "s", [*ids("thought", 500), *ANSWER])
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N, "changed": 40, "new": 30}
    assert record.changed
    assert record.changed.in_answer
    assert (record.changed.section, record.changed.position) == ("assistant", N)
    assert record.changed.before == ()


def test_another_template_is_a_change_of_the_template() -> None:
    world = World(slots=1)
    world.ask("a", [("template", [1, 2, 3]), *FIRST], "s", ANSWER)
    record = world.ask("b", [("template", [1, 2, 4]), *SECOND], "s")
    assert by_cause(record) == {"cached": 2, "changed": N + 3 + 39 - 2, "new": 31}
    assert record.changed
    assert record.changed.section == "template"


def test_a_conversation_sent_to_another_slot_than_its_own_is_the_routers_doing() -> None:
    world = World(slots=2, **BLIND)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("b", [("user", ids("other", 20))])
    world.ask("c", [("user", ids("another", 20))])  # displaces "a" if order were by id
    world.ask("d", FIRST, "s", ANSWER)
    record = world.ask("e", SECOND, "s")
    assert by_cause(record) == {"elsewhere": N + 39, "new": 31}
    assert record.bound == N + 39


def test_a_slot_taken_by_another_is_evicted_and_the_taker_named() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"evicted": N + 39, "new": 31}
    assert record.displaced
    displaced = record.displaced
    assert (displaced.by, displaced.time) == ("guest", world.placed_at["guest"])


def test_of_a_head_that_many_share_the_rest_was_displaced_by_the_next_who_shared_it() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("b", [TOOLS, SYSTEM, ("user", [*USER[1][:25], *ids("else", 60)])], "s2")
    record = world.ask("c", SECOND, "s")
    assert by_cause(record) == {"cached": 325, "evicted": N + 39 - 325, "new": 31}
    assert record.displaced
    assert record.displaced.by == "b"


def test_an_answer_given_to_another_session_is_no_change_of_this_one() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    forked = [*FIRST, ("assistant", ids("what others said", 40)), ("user", ids("go on", 30))]
    record = world.ask("b", forked, "s2")
    assert by_cause(record) == {"cached": N, "new": 70}
    assert record.changed is None


def test_without_a_session_what_was_evicted_is_known_by_blocks() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, answer=ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND)
    whole = N // BLOCK_TOKENS * BLOCK_TOKENS
    assert by_cause(record) == {"evicted": whole, "new": N + 70 - whole}
    assert record.displaced
    assert record.displaced.by == "guest"


def test_a_sliding_window_that_reuses_nothing_is_the_engines_doing() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    record = world.ask("b", SECOND, "s", cached=0)
    assert by_cause(record) == {"engine": N + 39, "new": 31}


def test_a_prompt_restored_from_memory_is_cached_though_no_slot_held_it() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND, "s", cached=N + 39)
    assert by_cause(record) == {"cached": N + 39, "new": 31}
    assert record.displaced is None


def test_what_an_engine_held_that_ended_is_evicted_by_nobody() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    world.lose_engine()
    lost = world.now
    world.start_engine()
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"evicted": N + 39, "new": 31}
    assert record.displaced
    assert (record.displaced.by, record.displaced.time) == ("", lost + OFFSET_S)


def test_a_request_that_failed_is_unknown_but_what_it_computed_counts() -> None:
    world = World(slots=1)
    world.arrive("a", FIRST, "s")
    record = world.fail("a", Failure.CLIENT_GONE, processed=300)
    assert by_cause(record) == {"unknown": N}
    assert (record.failure, record.cached, record.bound) == (Failure.CLIENT_GONE, None, None)
    reported = SlotsReported("e", world.now + 0.5, (SlotReport(0, False, 300),))
    world.feed(reported)
    assert by_cause(world.ask("b", FIRST, "s")) == {"cached": 300, "new": 50}


def test_a_request_that_the_engine_refused_displaced_nothing() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.arrive("bad", [("user", ids("bad", 20))])
    assert by_cause(world.fail("bad", Failure.REFUSED)) == {"unknown": 20}
    world.feed(SlotsReported("e", world.now + 0.5, (SlotReport(0, False, N + 39),)))
    assert "bad" not in [d.by for d in world.history._displaced.values()]
    assert by_cause(world.ask("b", SECOND, "s")) == {"cached": N + 39, "new": 31}


def test_where_the_engine_does_not_say_nothing_is_attributed() -> None:
    world = World()
    world.arrive("a", FIRST, "s")
    record = world.finish("a", silent=True)
    assert by_cause(record) == {"unknown": N}
    assert (record.bound, record.avoided_s, record.shares) == (None, 0, ())


def test_where_the_engine_counts_other_tokens_only_cached_is_known() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    world.arrive("b", SECOND, "s")
    record = world.finish("b", prompt_tokens=500)
    assert by_cause(record) == {"cached": N + 39, "unknown": 500 - N - 39}
    assert record.bound == N + 39


def test_a_title_made_for_a_conversation_is_not_its_next_turn() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    job = [*FIRST, ("assistant", ANSWER), ("user", ids("a title, please", 20))]
    assert by_cause(world.ask("t", job, "s", kind="side")) == {"cached": N + 39, "new": 21}
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N + 40, "new": 30}
    assert record.changed is None


def test_a_first_turn_that_looks_like_a_side_job_is_what_the_second_turn_changed() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER, kind="side")
    later = [*SYSTEM[1][:14], 7, 8, *SYSTEM[1][16:]]
    record = world.ask("b", [TOOLS, ("system", later), *SECOND[2:]], "s", kind="chat")
    assert by_cause(record) == {"cached": 214, "changed": N + 39 - 214, "new": 31}
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("system", 214)


def test_a_summary_is_compared_with_the_turns_it_is_made_of() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    other = ("system", ids("summarise what follows", 60))
    record = world.ask("b", [TOOLS, other, *SECOND[2:]], "s", kind="summary")
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("system", 200)
    third = world.ask("c", SECOND, "s")
    assert third.changed is None


def test_another_session_with_the_same_head_has_changed_nothing() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    record = world.ask("b", [TOOLS, SYSTEM, ("user", ids("else", 60))], "s2", cached=0)
    assert record.changed is None
    head = 300 // BLOCK_TOKENS * BLOCK_TOKENS
    assert by_cause(record)["new"] == 360 - max(head, 300)


def test_a_waiting_request_that_left_leaves_nothing_behind() -> None:
    world = World(slots=1)
    world.arrive("a", FIRST, "s")
    world.arrive("b", [("user", ids("other", 20))])
    assert world.feed(RequestCancelled("b")) is None
    assert world.feed(RequestFinished("b", 20, 0, 1, None)) is None
    world.finish("a")
    assert [r.id for r in world.history.records()] == ["a"]


def test_what_the_shell_saw_is_in_the_record() -> None:
    world = World()
    world.arrive("a", FIRST, "s", kind="agent")
    world.history.note("a", client="curl", ttft_s=0.5)
    world.history.note("a", prefill_s=0.2, decode_s=0.3, finish="stop", ttft_s=None)
    world.history.note("unheard of", client="curl")
    record = world.finish("a", ANSWER)
    known = record.known
    assert (known.client, known.ttft_s, known.finish) == ("curl", 0.5, "stop")
    assert (known.prefill_s, known.decode_s) == (0.2, 0.3)
    assert (record.kind, record.key, record.out_tokens) == ("agent", "k", 40)
    assert record.time == world.now + OFFSET_S
    assert record.took_s == 1


def test_records_are_found_by_id_session_and_number() -> None:
    world = World()
    for id, session in (("a", "s"), ("b", "t"), ("c", "s")):
        world.ask(id, FIRST, session)
    find = world.history.records
    assert [r.id for r in find()] == ["a", "b", "c"]
    assert [r.id for r in find(session="s")] == ["a", "c"]
    assert [r.id for r in find(session="s", last=1)] == ["c"]
    assert [r.id for r in find(last=0)] == []
    assert world.history.record("b") is not None
    assert world.history.record("nobody") is None


# ---------------------------------------------------------------- bounds


def test_the_kept_prompts_stay_within_their_bytes() -> None:
    limit = 20_000
    world = World(keep_bytes=limit)
    for k in range(50):
        world.ask(f"r{k}", [("user", ids(f"c{k}", 500))], f"s{k}")
        assert world.history.kept()["prompt_bytes"] <= limit
    kept = world.history.kept()
    assert 5 <= kept["prompts"] < 10
    again = world.ask("old", [("user", [5, *ids("c0", 499)])], "s0")
    assert by_cause(again) == {"new": 500}  # what it was before is forgotten
    again = world.ask("new", [("user", [6, *ids("c49", 499)])], "s49")
    assert by_cause(again) == {"changed": 500}


def test_a_prompt_larger_than_the_room_is_not_kept() -> None:
    world = World(keep_bytes=1000)
    world.ask("a", FIRST, "s")
    kept = world.history.kept()
    assert (kept["prompts"], kept["prompt_bytes"]) == (0, 0)


def test_ten_thousand_requests_leave_bounded_tables() -> None:
    history = History(lambda profile: PLAIN_COST, most_blocks=100)
    world = World(slots=2)
    world.history = history
    for k in range(10_000):
        world.arrive(f"r{k}", [("user", [k, k])], f"s{k}")
        world.finish(f"r{k}")
    assert history.kept()["records"] == 1000
    assert history.kept()["blocks"] <= 100
    assert len(history._displaced) <= 4096
    assert history._open == {}


def test_the_block_record_forgets_the_end_of_a_prompt_before_its_beginning() -> None:
    blocks = Blocks(most=4)
    one, two = pack(ids("one", 256)), pack(ids("two", 128))
    first, second = chain("p", one), chain("p", two)
    blocks.add(first, 256, 256, "a")
    blocks.add(second, 128, 128, "b")
    assert len(blocks) == 4
    assert blocks.longest(first, 256) == (128, "a")
    assert blocks.longest(second, 128) == (128, "b")


def test_only_blocks_that_were_wholly_computed_are_on_record() -> None:
    blocks = Blocks()
    prompt = pack(ids("one", 200))
    digests = chain("p", prompt)
    blocks.add(digests, 200, 191, "a")
    assert blocks.longest(digests, 200) == (128, "a")
    blocks.add(digests, 200, 200, "b")
    assert blocks.longest(digests, 200) == (200, "b")  # the whole prompt, to its end
    longer = chain("p", pack([*ids("one", 200), 1]))
    assert blocks.longest(longer, 201) == (192, "b")


def test_two_profiles_share_no_blocks_and_a_known_beginning_gives_the_same_digests() -> None:
    prompt = pack(ids("one", 300))
    assert not set(chain("p", prompt)) & set(chain("q", prompt))
    assert chain("p", prompt, chain("p", prompt)[:3]) == chain("p", prompt)
    assert chain("p", pack(())) == []


# ---------------------------------------------------------------- the law

MOVES = st.tuples(st.integers(0, 3), st.integers(1, 90), st.booleans(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(slots=st.integers(1, 3), blind=st.booleans(), moves=st.lists(MOVES, max_size=25))
def test_records_agree_with_an_engine_of_full_attention(
    slots: int, blind: bool, moves: list[tuple[int, int, bool, bool]]
) -> None:
    """Conversations that only grow, two at a time: the sums are exact, nothing is the engine's
    fault, nothing changed, and the bound lies between what was reused and what was ever there."""
    queue = {"max_running": 2}
    world = World(slots, queue=queue, **(BLIND if blind else {}))
    rows: dict[int, list[Part]] = {}
    ever: list[list[int]] = []
    best: dict[str, int] = {}
    for k, (who, size, known, overlap) in enumerate(moves):
        if any(request.key == f"k{who}" for request in world.requests.values()):
            continue  # its last turn still runs or waits
        parts = rows.setdefault(who, [("system", ids("head", 70))])
        parts.append(("user", ids(f"{who}.{k}", size)))
        request = world.arrive(f"r{k}", parts, f"s{who}" if known else "", key=f"k{who}")
        best[request.id] = max((lcp(pack(row), request.tokens) for row in ever), default=0)
        while len(world.requests) > int(overlap):
            id = next(iter(world.running or world.requests))
            ended = world.requests[id]
            answer = ids(f"answer {id}", 1 + size % 7)
            record = world.finish(id, answer)
            rows[int(ended.key[1:])].append(("assistant", answer))
            ever.append([*ended.tokens.ids(), *answer[:-1]])
            counts = by_cause(record)
            assert counts.get("engine", 0) == 0
            assert counts.get("changed", 0) == 0
            assert record.cached is not None
            assert record.bound is not None
            assert record.cached <= record.bound <= max(best[id], record.cached)
            computed = sum(s.tokens for s in record.shares if s.cause in RECOMPUTED)
            assert computed == record.prompt_tokens - counts.get("cached", 0)
