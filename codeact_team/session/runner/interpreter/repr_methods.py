"""The methods by which values show themselves, by the protocol of IPython.

They are looked for in the class of a value: the value itself may have attributes of any name.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "image/svg+xml": "_repr_svg_",
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}
"""The methods for single forms, by their types, the most useful form first."""
BUNDLE_METHOD = "_repr_mimebundle_"
"""The method for several forms at once."""
DISPLAY_METHOD = "_ipython_display_"
"""The method that shows the value by itself."""
_ALL_METHODS = (DISPLAY_METHOD, BUNDLE_METHOD, *METHODS.values())


def shows_itself(value: object) -> bool:
    """Whether ``value`` may have more forms than its text."""
    # most blocks have no value, and are not to wait for this
    if value is None:
        return False
    kind = type(value)
    return any(hasattr(kind, name) for name in _ALL_METHODS)


def own_method(value: object, name: str) -> Any:
    """A method or property that the class of ``value`` defines; ``None`` if it has none, or not now."""
    # classes have the methods of their objects
    if issubclass(type(value), type) or not hasattr(type(value), name):
        return None
    # a property may have nothing to return now
    return getattr(value, name, None)
