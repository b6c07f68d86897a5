"""The forms of a value, by the protocol of IPython: methods, or properties, that return a form, or a bundle of several."""

from __future__ import annotations

import json
from binascii import a2b_base64
from io import BytesIO

from codeact_team.session.protocol import MAX_FORMS, MAX_MIME_TYPE
from codeact_team.session.runner.interpreter.repr_methods import BUNDLE_METHOD, METHODS, own_method
from codeact_team.session.runner.interpreter.user_code import interruptible_module, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Remark = Callable[[str], None]

interruptible_module(__name__)

PLAIN = "text/plain"
_PNG = "image/png"
_SCRIPTS = ("application/javascript", "text/javascript")

_ORDER = {kind: place for place, kind in enumerate([_PNG, "image/jpeg", "image/gif", "image/webp", *METHODS])}
_BYTES = ("image/", "audio/", "video/", "application/pdf")
"""Types whose forms are bytes. As text they are encoded in base64."""


def forms_of(value: Any, remark: Remark, *, only_text: bool = False) -> dict[str, bytes]:
    """The forms of ``value`` by their types, the most useful one first, its text last.

    Args:
        value: The value.
        remark: Called with a reason for each form that is left out.
        only_text: Whether its text is wanted alone.
    """
    found: dict[str, Any] = {}
    if not only_text:
        bundle = _made(
            lambda: _first(_result(own_method(value, BUNDLE_METHOD), include=None, exclude=None)),
            BUNDLE_METHOD,
            remark,
        )
        if issubclass(type(bundle), dict):
            found.update(bundle)
        for kind, name in METHODS.items():
            # most of the pictures that have both are drawn anew for each
            if kind not in found and not (kind == "image/jpeg" and _PNG in found):
                shown = _made(lambda name=name: _first(_result(own_method(value, name))), kind, remark)
                if shown is not None:
                    found[kind] = shown
    if PLAIN not in found:
        found[PLAIN] = _made(lambda: repr(value), PLAIN, remark)
    return forms_of_bundle(found, remark)


def forms_of_bundle(bundle: Mapping[Any, Any], remark: Remark) -> dict[str, bytes]:
    """The forms of a bundle as bytes, in the same order as those of a value."""
    forms: dict[str, bytes] = {}
    for kind, shown in bundle.items():
        if not isinstance(kind, str) or len(kind) > MAX_MIME_TYPE:
            continue
        if kind in _SCRIPTS:
            remark(f"an artifact ({kind}) was left out: no script runs here")
            continue
        data = _made(lambda kind=kind, shown=shown: _as_bytes(kind, shown), kind, remark)
        if data is not None:
            forms[kind] = data
    if _PNG not in forms and (drawn := _as_png(forms)) is not None:
        forms[_PNG] = drawn
    last = len(_ORDER)
    kinds = sorted(forms, key=lambda kind: last + 1 if kind == PLAIN else _ORDER.get(kind, last))
    if len(kinds) > MAX_FORMS:
        kinds = [*kinds[: MAX_FORMS - 1], *kinds[-1:]]
    return {kind: forms[kind] for kind in kinds}


def _made(make: Callable[[], Any], kind: str, remark: Remark) -> Any:
    try:
        return make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        remark(f"an artifact ({kind}) was left out: {one_line(error)}")
        return None


def _result(found: Any, **arguments: Any) -> Any:
    return found(**arguments) if callable(found) else found


def _first(shown: Any) -> Any:
    """A form without its metadata, such as the width of a picture."""
    return shown[0] if issubclass(type(shown), tuple) and len(shown) == 2 else shown


def _as_bytes(kind: str, shown: Any) -> bytes | None:
    if isinstance(shown, bytes):
        return shown
    if isinstance(shown, str):
        is_encoded = kind.startswith(_BYTES) and kind != "image/svg+xml"
        return a2b_base64(shown) if is_encoded else shown.encode("utf-8", "replace")
    if isinstance(shown, dict | list) and kind.endswith("json"):
        return json.dumps(shown, default=str).encode("utf-8", "replace")
    # the value has nothing to show
    return None


def _as_png(forms: Mapping[str, bytes]) -> bytes | None:
    """A picture of another format as the one that a model can be shown, where Pillow is installed."""
    data = next((forms[kind] for kind in ("image/jpeg", "image/gif", "image/webp") if kind in forms), None)
    if data is None:
        return None
    try:
        from PIL import Image  # pyright: ignore[reportMissingImports]

        buffer = BytesIO()
        Image.open(BytesIO(data)).convert("RGBA").save(buffer, "PNG")
    except Exception:
        # the picture is sent in its own format
        return None
    return buffer.getvalue()
