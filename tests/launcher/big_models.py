"""The headers of published models, as far as their memory depends on them, each with its source."""

from __future__ import annotations

from tests.launcher import headers

# github.com/ggml-org/llama.cpp/pull/23792: the loader's dump of a 27B of the qwen35 family;
# Qwen3.8-27B has the same layers (github.com/LMCache/LMCache/pull/5079).
QWEN35_27B = headers.model(
    "qwen35",
    vocabulary=248_320,
    block_count=64,
    context_length=262_144,
    embedding_length=5120,
    feed_forward_length=17_408,
    attention__head_count=24,
    attention__head_count_kv=4,
    attention__key_length=256,
    attention__value_length=256,
    ssm__conv_kernel=4,
    ssm__state_size=128,
    ssm__group_count=16,
    ssm__time_step_rank=48,
    ssm__inner_size=6144,
    full_attention_interval=4,
)
# The same with the draft head that newer files carry, github.com/ggml-org/llama.cpp/issues/23577.
QWEN36_27B_MTP = QWEN35_27B | {"qwen35.block_count": 65, "qwen35.nextn_predict_layers": 1}
# github.com/JamePeng/llama-cpp-python/issues/78
QWEN35_9B = QWEN35_27B | {
    "qwen35.block_count": 32,
    "qwen35.embedding_length": 4096,
    "qwen35.attention.head_count": 16,
    "qwen35.ssm.inner_size": 4096,
    "qwen35.ssm.time_step_rank": 32,
}
# github.com/ggml-org/llama.cpp/issues/20093
QWEN36_35B_A3B = headers.model(
    "qwen35moe",
    vocabulary=248_320,
    block_count=40,
    context_length=262_144,
    embedding_length=2048,
    attention__head_count=16,
    attention__head_count_kv=2,
    attention__key_length=256,
    attention__value_length=256,
    expert_count=256,
    expert_used_count=8,
    expert_feed_forward_length=512,
    expert_shared_feed_forward_length=512,
    ssm__conv_kernel=4,
    ssm__state_size=128,
    ssm__group_count=16,
    ssm__time_step_rank=32,
    ssm__inner_size=4096,
    full_attention_interval=4,
)
# github.com/ggml-org/llama.cpp/pull/27742 and the metadata of its published files
QWEN38_FLASH_NEXT = headers.model(
    "qwen4exp",
    vocabulary=248_320,
    block_count=48,
    context_length=262_144,
    embedding_length=2560,
    attention__head_count=24,
    attention__head_count_kv=2,
    attention__key_length=256,
    attention__value_length=256,
    attention__indexer__head_count=4,
    attention__indexer__key_length=128,
    attention__indexer__top_k=2048,
    attention__compress_ratios=[0, 0, 0, 4] * 12,
    expert_count=512,
    expert_used_count=10,
    expert_feed_forward_length=640,
    expert_shared_feed_forward_length=640,
    hyper_connection__count=4,
    ssm__conv_kernel=4,
    ssm__state_size=128,
    ssm__group_count=16,
    ssm__time_step_rank=48,
    ssm__inner_size=6144,
    ple__layers=[1],
    ple__conv_kernel=4,
    ple__ngram_size=3,
    full_attention_interval=4,
)
# github.com/ggml-org/llama.cpp/pull/22101
GRANITE_1B = headers.model(
    "granite",
    block_count=40,
    embedding_length=2048,
    attention__head_count=16,
    attention__head_count_kv=4,
)
# Qwen3-235B-A22B, as in github.com/ikawrakow/ik_llama.cpp/pull/370
QWEN3_235B = headers.model(
    "qwen3moe",
    block_count=94,
    embedding_length=4096,
    attention__head_count=64,
    attention__head_count_kv=4,
    attention__key_length=128,
    attention__value_length=128,
)
# DeepSeek-R1 as it is converted for latent attention, github.com/ikawrakow/ik_llama.cpp/pull/259
DEEPSEEK_671B = headers.model(
    "deepseek2",
    block_count=61,
    embedding_length=7168,
    attention__head_count=128,
    attention__head_count_kv=1,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=192,
    attention__value_length_mla=128,
)
# GLM-5.2, github.com/dfch/biz.dfch.LlmOps, its feature "glm-5.2-onprem-deployment"
GLM52_744B = headers.model(
    "glm-dsa",
    block_count=79,
    nextn_predict_layers=1,
    context_length=1_048_576,
    embedding_length=6144,
    attention__head_count=64,
    attention__head_count_kv=1,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=256,
    attention__value_length_mla=256,
    attention__indexer__head_count=32,
    attention__indexer__key_length=128,
)
# github.com/raketenkater/ggrun, pkg/placement
LAGUNA = headers.model(
    "laguna",
    block_count=48,
    embedding_length=3072,
    attention__head_count=48,
    attention__head_count_kv=8,
    attention__key_length=128,
    attention__value_length=128,
    attention__sliding_window=512,
)
# The model behind `make run`, in github.com/unslothai/unsloth/pull/7530
GEMMA3_270M = headers.model(
    "gemma3",
    block_count=18,
    embedding_length=640,
    attention__head_count=4,
    attention__head_count_kv=1,
    attention__key_length=256,
    attention__value_length=256,
    attention__sliding_window=512,
)
