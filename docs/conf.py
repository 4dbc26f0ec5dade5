"""How Sphinx builds the documentation (``make docs``), without a network."""

import re
import sys
import warnings
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).parent / "_extensions"),
    str(Path(__file__).parents[1] / "src"),
]
warnings.filterwarnings("ignore", category=DeprecationWarning)

import matplotlib as mpl
import torch

import kcal

mpl.use("agg")
torch.set_num_threads(1)

project = "kcal"
author = "The kcal maintainers"
version = release = kcal.__version__

extensions = [
    "commands",
    "docstrings",
    "formulas",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_*", "gallery/*.ipynb", "gallery/*.md5", "gallery/*.zip"]
templates_path = ["_templates"]
nitpicky = False
default_role = "py:obj"
suppress_warnings = [
    "myst.header",  # tables of the results stand under headings of the third level
    "config.cache",
]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_update_mathjax = False

html_theme = "furo"
html_title = "kcal"
html_math_renderer = "svg"
html_static_path = ["_static"]
html_css_files = ["kcal.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
autosummary_context = {"top_level": set(kcal.__all__)}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "thumbnail_size": (400, 280),
    "backreferences_dir": "api/backreferences",
    "doc_module": ("kcal",),
    "download_all_examples": False,
    "min_reported_time": 10**6,
    "write_computation_times": False,
    "show_memory": False,
    "capture_repr": (),
    "show_signature": False,
    "abort_on_example_error": True,
    "plot_gallery": True,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
}


def keep_one_download(_app, docname, source):
    """Offer an example as a Python file alone: archives hold the time of their making."""
    if docname.startswith("gallery/"):
        container = (
            r"\n *\.\. container:: sphx-glr-download sphx-glr-download-(?:zip|jupyter)\n"
        )
        source[0] = re.sub(container + r"\n *:download:`[^`]+`\n", "\n", source[0])


def setup(app):
    """Register what is done to sources."""
    app.connect("source-read", keep_one_download)
