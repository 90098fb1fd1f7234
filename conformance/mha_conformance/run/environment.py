"""What the process under test has loaded, and the switches that change its arithmetic (MHA-CONF-10)."""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from threadpoolctl import threadpool_info

LIBRARIES = ("numpy", "torch", "jax", "cupy", "array_api_strict", "ml_dtypes", "tensorflow", "mlx")


def package_version() -> str:
    """The version of this package; a source tree that was never installed has none."""
    try:
        return version("mha-core")
    except PackageNotFoundError:
        return "not installed"


def libraries() -> dict[str, str]:
    """The versions of the array libraries that this process has loaded."""
    return {name: str(getattr(sys.modules[name], "__version__", "?")) for name in LIBRARIES if name in sys.modules}


def settings() -> dict[str, Any]:
    """The BLAS and its threads; for torch the devices, its threads, the TF32 switches and reduced reductions; for JAX its precision."""
    found: dict[str, Any] = {
        "blas": [
            f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads, {pool.get('architecture', '?')}"
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        ]
    }
    if torch := sys.modules.get("torch"):
        matmul = torch.backends.cuda.matmul
        found["torch"] = {
            "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["cpu"],
            "threads": torch.get_num_threads(),
            "float32 matmul precision": torch.get_float32_matmul_precision(),
            "TF32 in matmul": matmul.allow_tf32,
            "reduced precision reduction in float16": matmul.allow_fp16_reduced_precision_reduction,
            "reduced precision reduction in bfloat16": matmul.allow_bf16_reduced_precision_reduction,
        }
    if jax := sys.modules.get("jax"):
        found["jax"] = {
            "devices": [str(device) for device in jax.devices()],
            "x64": bool(jax.config.jax_enable_x64),
            "matmul precision": str(jax.config.jax_default_matmul_precision),
        }
    return found
