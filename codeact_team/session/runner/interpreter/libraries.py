"""Has the functions of libraries that show something show it as artifacts: of IPython, plotly and Pillow."""

from __future__ import annotations

import os
import sys

from codeact_team.session.runner.interpreter.ipython_stand_in import (
    clear_output,
    display,
    publish_display_data,
)
from codeact_team.session.runner.interpreter.user_code import get_ipython, interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from codeact_team.session.runner.interpreter.artifacts import Artifacts

interruptible_module(__name__)


def watch(module: Any, artifacts: Artifacts) -> None:
    """Have the functions of ``module``, which is just loaded, show what they show by ``artifacts``."""
    _WATCHED[module.__name__](module, artifacts)


def _watch_ipython(module: Any, artifacts: Artifacts) -> None:
    # without a shell of IPython's they would only print; its other functions call these
    module.display, module.publish_display_data = display, publish_display_data
    module.clear_output = clear_output


def _watch_shell(module: Any, artifacts: Artifacts) -> None:
    # this is no shell of IPython's, and its own is none here
    module.get_ipython = get_ipython


def _watch_plotly(module: Any, artifacts: Artifacts) -> None:
    class Renderer(module.ExternalRenderer):
        """Shows figures as artifacts; used by ``Figure.show``."""

        def render(self, fig_dict: Any) -> None:
            io: Any = sys.modules["plotly.io"]
            forms = {
                "text/html": io.to_html(fig_dict, full_html=False, include_plotlyjs="cdn", validate=False),
                "application/vnd.plotly.v1+json": io.to_json(fig_dict, validate=False),
                "text/plain": "<plotly.graph_objs.Figure>",
            }
            artifacts.show(forms, raw=True)

    module.renderers[_RENDERER] = Renderer()
    if "PLOTLY_RENDERER" not in os.environ:
        module.renderers.default = _RENDERER


_RENDERER = "artifact"


def _watch_pillow(module: Any, artifacts: Artifacts) -> None:
    class Viewer(module.Viewer):
        """Shows pictures as artifacts; used by ``Image.show``."""

        def show(self, image: Any, **_: Any) -> bool:
            artifacts.show(image)
            return True

    module.register(Viewer, 0)


_WATCHED = {
    "IPython.core.display_functions": _watch_ipython,
    "IPython.core.getipython": _watch_shell,
    "plotly.io._renderers": _watch_plotly,
    "PIL.ImageShow": _watch_pillow,
}
