"""jax.nn.dot_product_attention, whose arrays are (batch, positions, heads, channels).

cd conformance/examples
mha conform jax_sdpa:attention --arrays jax --layout bnhd --claims jax_sdpa.toml
mha conform jax_sdpa:attention --arrays jax --layout bnhd --claims jax_sdpa_train.toml     and its gradients
"""

import jax
import jax.numpy as jnp


def attention(query, key, value, *, mask=None, bias=None, is_causal=False, window=None, scale=None, key_lengths=None):
    batch, (n, m) = query.shape[:-3], (query.shape[-3], key.shape[-3])
    one = (jnp.reshape(x, (-1, *x.shape[-3:])) if len(batch) > 1 else x for x in (query, key, value))
    mask, bias = (
        x
        if x is None or len(batch) < 2 or x.ndim == 2
        else jnp.broadcast_to(x, (*batch, *x.shape[-3:])).reshape(-1, *x.shape[-3:])
        for x in (mask, bias)
    )
    window = window and tuple(max(n, m) if side is None else side for side in window)  # ints alone
    lengths = None if key_lengths is None else jnp.broadcast_to(jnp.asarray(key_lengths, jnp.int32), batch or (1,)).ravel()
    output = jax.nn.dot_product_attention(
        *one, bias, mask, is_causal=is_causal, scale=scale, local_window_size=window, key_value_seq_lengths=lengths
    )
    return output.reshape(*query.shape[:-1], value.shape[-1])
