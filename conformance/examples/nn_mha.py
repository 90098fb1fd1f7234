"""torch.nn.MultiheadAttention: its attention between projections, which are the identity here.

cd conformance/examples
mha conform nn_mha:without_weights --arrays torch --claims nn_mha.toml
mha conform nn_mha:with_weights    --arrays torch --claims nn_mha_weights.toml
"""

import torch


def with_weights(query, key, value, *, mask=None, bias=None, return_weights=True):
    (*batch, h, n, d), m = query.shape, key.shape[-2]
    x, y, z = (
        a.transpose(-3, -2).flatten(-2).flatten(0, -3) if batch else a.transpose(-3, -2).flatten(-2)
        for a in (query, key, value)
    )
    layer = torch.nn.MultiheadAttention(h * d, h, bias=False, batch_first=True, dtype=query.dtype)
    layer.load_state_dict({"in_proj_weight": torch.eye(h * d).repeat(3, 1), "out_proj.weight": torch.eye(h * d)})
    blocked = bias if mask is None else ~mask  # its True means "not allowed"
    blocked = None if blocked is None else blocked.expand(*batch, h, n, m).reshape(-1, n, m)
    with torch.no_grad():
        output, weights = layer(x, y, z, attn_mask=blocked, need_weights=return_weights, average_attn_weights=False)
    weights = weights if weights is None else weights.reshape(*batch, h, n, m)
    return output.reshape(*batch, n, h, d).transpose(-3, -2), weights


def without_weights(query, key, value, *, mask=None, bias=None):
    return with_weights(query, key, value, mask=mask, bias=bias, return_weights=False)[0]
