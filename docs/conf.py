"""The site: `python -m sphinx -n -W -b html docs docs/_build` builds it, and `docs/_build/index.html` opens without a server.

What is special about it stands in `_ext`, one concern per module.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from mha_spec import SPEC_VERSION

project = "mha-core"
author = "The mha-core developers"
copyright = "the mha-core developers; prose of the specification under CC-BY-4.0, code and examples under BSD-3-Clause"
version = SPEC_VERSION
release = version_of("mha-core")
html_title = f"MHA {SPEC_VERSION}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "mathml",
    "chapters",
    "clause_links",
    "clause_table",
    "backend_pages",
    "explained",
    "shell",
    "docstrings",
    "page_context",
    "finished",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 100
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

nitpick_ignore_regex = [
    (
        "py:.*",
        r"(collections|pathlib|jaxtyping|numpy|torch)\..*",
    ),  # other projects' names: their inventories are on the network
    (
        "py:class",
        r"mha_core\.door\.(Attention|MultiHeadAttention|MergePartials)",
    ),  # types of the three functions of api/functions
    ("py:class", r"mha_core\.gradients\.(AttentionVjp|AttentionJvp|MultiHeadAttentionVjp)"),  # likewise, of the gradients
    ("py:class", r"mha_spec\.numerics_filter\.Found"),  # what the filter gives; the campaigns and the judge read it, no user
]

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["accessible.js"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

_SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"
_MONO = "ui-monospace, 'SF Mono', 'Cascadia Mono', Consolas, 'Noto Sans Mono', 'Noto Sans Mono CJK SC', monospace"
html_theme_options = {
    "light_css_variables": {"font-stack": _SANS, "font-stack--monospace": _MONO, "font-stack--headings": _SANS},
    "navigation_with_keys": False,
}
