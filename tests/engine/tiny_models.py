"""Random models of each family, a few kilobytes each, in a directory like a published one."""

import torch
import transformers as hf

TEXT = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
PADS = {
    "image_token_id": 290,
    "video_token_id": 291,
    "vision_start_token_id": 292,
    "vision_end_token_id": 293,
}
PATCHES = {"depth": 3, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2}


def _rope(section, **more):
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section}
    return {"rope_parameters": {**parameters, **more}}


def qwen2_vl():
    vision = {**PATCHES, "embed_dim": 32, "hidden_size": 32, "patch_size": 14, "mlp_ratio": 2}
    config = hf.Qwen2VLConfig(
        text_config={**TEXT, **_rope([1, 1, 2])}, vision_config=vision, **PADS
    )
    return hf.Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl():
    vision = {
        **PATCHES,
        "hidden_size": 32,
        "intermediate_size": 64,
        "patch_size": 14,
        "out_hidden_size": 32,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }
    config = hf.Qwen2_5_VLConfig(
        text_config={**TEXT, **_rope([1, 1, 2])}, vision_config=vision, **PADS
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config)


_QWEN3_VISION = {
    **PATCHES,
    "hidden_size": 32,
    "intermediate_size": 64,
    "patch_size": 16,
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
_QWEN3_TEXT = {**TEXT, "head_dim": 16, **_rope([4, 2, 2], mrope_interleaved=True)}


def qwen3_vl():
    config = hf.Qwen3VLConfig(text_config=_QWEN3_TEXT, vision_config=_QWEN3_VISION, **PADS)
    return hf.Qwen3VLForConditionalGeneration(config)


def qwen3_vl_moe():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = hf.Qwen3VLMoeConfig(
        text_config={**_QWEN3_TEXT, **experts}, vision_config=_QWEN3_VISION, **PADS
    )
    return hf.Qwen3VLMoeForConditionalGeneration(config)


_CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}


def gemma3():
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {**TEXT, "head_dim": 16, "sliding_window": 8, "layer_types": layers}
    config = hf.Gemma3Config(
        text_config={**text, "query_pre_attn_scalar": 16},
        vision_config={**_CLIP, "vision_use_head": False},
        image_token_index=290,
        boi_token_index=292,
        eoi_token_index=293,
        mm_tokens_per_image=4,
        tie_word_embeddings=False,  # tied ones make a random model repeat its last token
    )
    return hf.Gemma3ForConditionalGeneration(config)


def llava():
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**TEXT),
        vision_config=hf.CLIPVisionConfig(**_CLIP),
        image_token_index=290,
    )
    return hf.LlavaForConditionalGeneration(config)


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT))


def gemma2():
    return hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**TEXT, head_dim=16, sliding_window=8, query_pre_attn_scalar=16)
    )


def saved(make, folder):
    """The model, its weights spread so that outputs vary, and its directory."""
    model = make().eval()
    generator = torch.Generator().manual_seed(0)
    for _, weight in sorted(model.named_parameters()):
        if weight.dim() >= 2:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.3
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model
