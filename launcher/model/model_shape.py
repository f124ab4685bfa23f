"""What of a model's header decides how much memory its context takes, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotwise.launcher.model.gguf_header import Length

# Every nth layer sees everything, the others a window; True: the first of n and not the last.
WINDOWED: Mapping[str, tuple[int, bool]] = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "muse-glimmer": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
# The header itself lists which layers see a window.
WINDOWED_BY_LIST = ("gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
# The window, whatever the header says; one that it need not say.
FIXED_WINDOW = {"llama4": 8192, "smallthinker": 4096}
DEFAULT_WINDOW = {"exaone-moe": 128, "exaone4": 4096, "gemma2": 4096}
EXAONE4_WINDOWED_LAYERS = 64  # the smaller models of this name see everything

RECURRENT = ("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7")
RECURRENT_WITHOUT_HEADS = (
    "bailingmoe3",
    "glm5-next",
    "granitehybrid",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "lfm2",
    "lfm2moe",
    "plamo2",
)
NEMOTRON = ("nemotron_h", "nemotron_h_moe")  # layers with a feed-forward part keep nothing
# All but every nth layer.
RECURRENT_BUT_EVERY = {
    "minimax-01": 8,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "qwen4exp": 4,
}
INDEXED = ("deepseek32", "glm-dsa", "hy_v4", "qwen4exp")  # sparse attention: keys for choosing
GLM_SHARED_FROM = 1_048_576  # GLM 5.2 is told by its context: one indexer serves four layers
# Caches of their own kind, which are not computed here.
UNKNOWN_CACHES = ("deepseek4", "dflash", "dots3note", "glm5-next", "minimax-m3")
GEMMA3N_KV_LAYERS = 20


class ShapeError(ValueError):
    """A header that lacks what its architecture needs; the text is one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one layer keeps of one token, in elements; no values: a latent that serves as both."""

    keys: int
    values: int
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its memory sees it."""

    architecture: str
    layers: int
    rows: tuple[Row, ...]  # of the layers that keep keys
    draft_rows: tuple[Row, ...]  # of the model's own draft heads (MTP)
    widest_values: int  # over all layers
    window: int  # tokens; 0: no layer has one
    indexer_rows: tuple[int, ...]  # elements of a token, by layer
    recurrent_layers: int
    r_elements: int  # of one layer and sequence, f32
    s_elements: int
    ple_elements: int  # of one sequence, f32
    vocabulary: int
    embedding: int
    attention: int  # elements of all query heads
    heads: int
    feed_forward: int  # of a token, in the widest layer; with experts, of those that are used
    experts_used: int
    is_complete: bool  # False: the engine keeps more than is counted here


def from_header(values: Mapping[str, Any]) -> ModelShape:
    """The shape; raises ShapeError."""
    return _Reading(values).shape()


class _Reading:
    """The keys of one architecture, by layer."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.architecture = str(values.get("general.architecture", ""))
        self.blocks = self.whole("block_count")
        if not 0 < self.blocks <= 4096:
            raise ShapeError(f"expected 1 to 4096 layers, got {self.blocks}")
        self.layers = self.blocks - min(self.blocks, self.whole("nextn_predict_layers"))
        if not self.layers:  # a draft head in a file of its own
            self.layers = self.blocks
        self.heads = self.by_layer("attention.head_count", [0] * self.blocks)
        self.kv_heads = self.by_layer("attention.head_count_kv", self.heads)

    def whole(self, key: str, default: int = 0) -> int:
        value = self._values.get(f"{self.architecture}.{key}", default)
        return value if isinstance(value, int) else default

    def by_layer(self, key: str, default: list[int]) -> list[int]:
        """A number for all layers, or one for each."""
        value = self._values.get(f"{self.architecture}.{key}")
        if isinstance(value, list):
            if len(value) < self.layers:
                raise ShapeError(f"{key}: {len(value)} numbers for {self.layers} layers")
            return [int(item) for item in value] + [0] * (self.blocks - len(value))
        return [value] * self.blocks if isinstance(value, int) else default

    def shape(self) -> ModelShape:
        recurrent = self._recurrent()
        window, windowed = self._windows(recurrent)
        rows = self._rows(recurrent, windowed)
        feed_forward, used = self._feed_forward()
        r, s = self._state()
        return ModelShape(
            architecture=self.architecture,
            layers=self.layers,
            rows=tuple(row for row in rows if row is not None),
            draft_rows=tuple(
                Row(
                    self.kv_heads[il] * self._head_size("key", False),
                    self.kv_heads[il] * self._head_size("value", False),
                )
                for il in range(self.layers, self.blocks)
            ),
            widest_values=max(
                heads * self._head_size("value", il in windowed)
                for il, heads in enumerate(self.kv_heads)
            ),
            window=window if windowed else 0,
            indexer_rows=self._indexer(recurrent),
            recurrent_layers=len(recurrent),
            r_elements=r if recurrent else 0,
            s_elements=s if recurrent else 0,
            ple_elements=self._ple(),
            vocabulary=self._vocabulary(),
            embedding=self.whole("embedding_length"),
            attention=max(
                heads * self._head_size("key", il in windowed)
                for il, heads in enumerate(self.heads)
            ),
            heads=max(self.heads),
            feed_forward=feed_forward,
            experts_used=used,
            is_complete=self.architecture not in UNKNOWN_CACHES,
        )

    def _head_size(self, which: str, windowed: bool) -> int:
        """Elements of one head's key or value."""
        heads = self.heads[0] or max(self.heads)
        size = self.whole(
            f"attention.{which}_length", self.whole("embedding_length") // heads if heads else 0
        )
        return self.whole(f"attention.{which}_length_swa", size) if windowed else size

    def _recurrent(self) -> set[int]:
        """The layers that keep a state of fixed size."""
        layers = range(self.layers)
        name = self.architecture
        if name in RECURRENT or name == "falcon-h1":
            return set(layers)
        if name in RECURRENT_WITHOUT_HEADS:
            return {il for il in layers if not self.kv_heads[il]}
        if name in NEMOTRON:
            wide = self.by_layer("feed_forward_length", [0] * self.blocks)
            return {il for il in layers if not self.kv_heads[il] and not wide[il]}
        if name in RECURRENT_BUT_EVERY:
            every = self.whole("full_attention_interval", RECURRENT_BUT_EVERY[name])
            pattern = [int((il + 1) % max(1, every) != 0) for il in range(self.blocks)]
            listed = self.by_layer("attention.recurrent_layers", pattern)
            return {il for il in layers if listed[il]}
        return set()

    def _windows(self, recurrent: set[int]) -> tuple[int, set[int]]:
        """The window in tokens, and the layers that see no further."""
        name, layers = self.architecture, range(self.layers)
        window = FIXED_WINDOW.get(name) or self.whole(
            "attention.sliding_window", DEFAULT_WINDOW.get(name, 0)
        )
        said = self._values.get(f"{name}.attention.sliding_window")
        if not window or (name in FIXED_WINDOW and said == 0):
            return 0, set()
        if name in ("lfm2", "lfm2moe"):
            return (window, set(layers) - recurrent) if name == "lfm2" else (0, set())
        if name in WINDOWED_BY_LIST:
            listed = self.by_layer("attention.sliding_window_pattern", [0] * self.blocks)
            return window, {il for il in layers if listed[il]}
        if name not in WINDOWED or (name == "exaone4" and self.layers != EXAONE4_WINDOWED_LAYERS):
            return 0, set()
        every, dense_first = WINDOWED[name]
        said_pattern = self._values.get(f"{name}.attention.sliding_window_pattern")
        if isinstance(said_pattern, list):
            listed = self.by_layer("attention.sliding_window_pattern", [])
            return window, {il for il in layers if listed[il]}
        every = said_pattern if isinstance(said_pattern, int) else every
        full = 0 if dense_first else every - 1
        return window, {il for il in layers if every == 0 or il % every != full}

    def _rows(self, recurrent: set[int], windowed: set[int]) -> list[Row | None]:
        keeping = self.layers
        if self.architecture == "gemma3n":
            keeping = min(keeping, GEMMA3N_KV_LAYERS)
        elif self.architecture == "gemma4":
            keeping -= self.whole("attention.shared_kv_layers")
        latent = bool(
            self.whole("attention.key_length_mla") and self.whole("attention.value_length_mla")
        )
        feed_forward = self.by_layer("feed_forward_length", [0] * self.blocks)
        rows: list[Row | None] = []
        for il in range(keeping):
            is_windowed = il in windowed
            keeps = il not in recurrent or self.architecture == "falcon-h1"
            if self.architecture in NEMOTRON and feed_forward[il]:
                keeps = False
            heads = self.kv_heads[il]
            keys = heads * self._head_size("key", is_windowed)
            values = 0 if latent else heads * self._head_size("value", is_windowed)
            rows.append(Row(keys, values, is_windowed) if keeps else None)
        return rows

    def _indexer(self, recurrent: set[int]) -> tuple[int, ...]:
        size = self.whole("attention.indexer.key_length")
        if self.architecture not in INDEXED or not size:
            return ()
        if self.architecture == "qwen4exp":  # the pooled key lies beside the token's own
            pooled = any(self.by_layer("attention.compress_ratios", [0] * self.blocks))
            size *= 2 if pooled else 1
        every = [1] * self.blocks
        if self.architecture == "glm-dsa" and self.whole("context_length") >= GLM_SHARED_FROM:
            every = [int(il < 2 or (il - 2) % 4 == 0) for il in range(self.blocks)]
        owners = self.by_layer("attention.indexer.types", every)
        return tuple(size for il in range(self.layers) if il not in recurrent and owners[il])

    def _state(self) -> tuple[int, int]:
        """Elements of a recurrent layer's two states, for one sequence."""
        embedding = self.whole("embedding_length")
        if head := self.whole("wkv.head_size"):
            return self.whole("token_shift_count", 2) * embedding, embedding * head
        if cached := self.whole("shortconv.l_cache"):
            return embedding * (cached - 1), 0
        kernel = self.whole("ssm.conv_kernel")
        if head := self.whole("kda.head_dim"):
            taps = kernel - 1 if kernel else 3
            return 3 * taps * self.heads[0] * head, head * head * self.heads[0]
        if self.architecture == "minimax-01":
            head = self._head_size("key", False)
            return 0, head * head * self.heads[0]
        inner, state = self.whole("ssm.inner_size"), self.whole("ssm.state_size")
        convolved = inner + 2 * self.whole("ssm.group_count") * state
        return (kernel - 1 if kernel else 0) * convolved, state * inner

    def _ple(self) -> int:
        """The history of the n-gram embeddings, of the layers that have some."""
        kernel, size = self.whole("ple.conv_kernel"), self.whole("ple.ngram_size")
        layers = self._values.get(f"{self.architecture}.ple.layers")
        if not kernel or not isinstance(layers, list):
            return 0
        streams = self.whole("hyper_connection.count")
        row = (kernel - 1) * size * streams * self.whole("embedding_length")
        return row * len(layers)

    def _vocabulary(self) -> int:
        tokens = self._values.get("tokenizer.ggml.tokens")
        known = tokens.items if isinstance(tokens, Length) else 0
        return self.whole("vocab_size", known) or known

    def _feed_forward(self) -> tuple[int, int]:
        """Elements of a token between the two halves of the widest layer; experts in use."""
        dense = max(self.by_layer("feed_forward_length", [0] * self.blocks))
        used = max(self.by_layer("expert_used_count", [0] * self.blocks))
        expert = max(self.by_layer("expert_feed_forward_length", [0] * self.blocks))
        shared = self.whole("expert_shared_feed_forward_length")
        return max(dense, used * expert + shared), used
