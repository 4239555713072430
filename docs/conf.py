"""How `make docs` builds the pages of this folder."""

import os

import grain_jax

os.environ["JAX_PLATFORMS"] = "cpu"  # autodoc imports what it describes

project = "grain_jax"
author = "The grain_jax authors"
copyright = "The grain_jax authors, Apache-2.0"
release = version = grain_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
suppress_warnings = ["myst.header"]

# Names are documented where users write them, whatever module they are made in.
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autosummary_generate = False
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "default"

html_theme = "sphinx_book_theme"
html_title = "grain_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_logo = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_js_files = [("versions.js", {"defer": "defer"})]
templates_path = ["_templates"]
html_sidebars = {
    "**": ["navbar-logo.html", "versions.html", "search-button-field.html", "sbt-sidebar-nav.html"]
}
html_theme_options = {
    "home_page_in_toc": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "logo": {"text": "grain_jax"},
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
