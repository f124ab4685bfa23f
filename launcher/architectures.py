"""What llama.cpp knows of a model by its architecture and no header says: the kinds of its layers.

Repeats what it does on loading (``load_arch_hparams`` of each architecture, build 11434). An
architecture that is not named here sees everything in every layer.
"""

from __future__ import annotations

from collections.abc import Mapping

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
