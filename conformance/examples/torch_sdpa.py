"""torch's scaled_dot_product_attention, as a user would hand it to ``mha conform``: each path under a name of its own.

cd conformance/examples
mha conform torch_sdpa:dispatched --arrays torch --claims torch_sdpa.toml
mha conform torch_sdpa:math       --arrays torch --claims torch_sdpa.toml
mha conform torch_sdpa:dispatched --arrays torch --claims torch_sdpa_train.toml     and its gradients
"""

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def dispatched(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None):
    attn_mask, grouped = mask if bias is None else bias, query.shape[-3] != key.shape[-3]
    return scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=grouped)


def math(*operands, mask=None, bias=None, is_causal=False, scale=None):
    with sdpa_kernel(SDPBackend.MATH):
        return dispatched(*operands, mask=mask, bias=bias, is_causal=is_causal, scale=scale)
