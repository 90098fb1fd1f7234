"""How a call runs: the door, the backends behind it, the layer on top of it. See ``load`` and ``bind``."""

from mha_core.alibi import alibi_slopes
from mha_core.backend import FEATURES, Backend, Claims
from mha_core.cache import Cached, KVCache
from mha_core.door import Api, bind, window_tokens
from mha_core.errors import BackendUnavailable, SmallHeadWarning, Unsupported, Violation
from mha_core.layer_cached import ProjectedKeysValues
from mha_core.layer_gradients import MultiHeadGradients
from mha_core.merge import merge_partials
from mha_core.projections import Merged, Projections
from mha_core.registry import Status, available, load
from mha_core.statistics import AttentionStatistics
from mha_spec.call import AttentionGradients, AttentionResult, Call, Cotangents, Dropout, Tangents
from mha_spec.contract_layer import head_size

__all__ = [
    "FEATURES",
    "Api",
    "AttentionGradients",
    "AttentionResult",
    "AttentionStatistics",
    "Backend",
    "BackendUnavailable",
    "Cached",
    "Call",
    "Claims",
    "Cotangents",
    "Dropout",
    "KVCache",
    "Merged",
    "MultiHeadGradients",
    "ProjectedKeysValues",
    "Projections",
    "SmallHeadWarning",
    "Status",
    "Tangents",
    "Unsupported",
    "Violation",
    "alibi_slopes",
    "available",
    "bind",
    "head_size",
    "load",
    "merge_partials",
    "window_tokens",
]
