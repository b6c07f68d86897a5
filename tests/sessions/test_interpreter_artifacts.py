from __future__ import annotations

import struct
from collections.abc import Generator
from pathlib import Path
from shutil import copyfile

import pytest
from support.interpreter import RunningInterpreter, SharedInterpreter

from codeact_team.session.protocol import MAX_ARTIFACTS
from codeact_team.text.screen_text import settled

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def shared_with_a_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedInterpreter]:
    shared = SharedInterpreter(with_a_stand_in(tmp_path_factory.mktemp("stand-in")))
    yield shared
    shared.close()


def with_a_stand_in(workspace: Path) -> Path:
    """Put a library that draws nothing in the place of Matplotlib, which takes seconds to import and to draw."""
    (package := workspace / "matplotlib").mkdir()
    (package / "__init__.py").write_text("import os\ndef get_backend(): return os.environ['MPLBACKEND']\n")
    copyfile(Path(__file__).with_name("drawing_stand_in.py"), package / "pyplot.py")
    copyfile(Path(__file__).with_name("figure_stand_in.py"), package / "figure.py")
    return workspace


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.long)])
def drawing(request: pytest.FixtureRequest) -> RunningInterpreter:
    """One that can draw."""
    if request.param == "real":
        pytest.importorskip("matplotlib")
        return request.getfixturevalue("interpreter")
    shared: SharedInterpreter = request.getfixturevalue("shared_with_a_stand_in")
    return shared.get()


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(PNG)
    return struct.unpack(">II", png[16:24])


def test_open_figures_are_sent_and_closed(drawing: RunningInterpreter) -> None:
    ran = drawing.run(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('one')\nplt.figure()\n_ = plt.plot([3, 1])"
    )
    assert ran.output == ""
    assert [mime_type for mime_type, _ in ran.artifacts] == ["image/png"] * 2
    assert all(size_of(data)[0] > 100 for _, data in ran.artifacts)
    ran = drawing.run("plt.get_fignums()")
    assert (ran.output, ran.artifacts) == ("[]\n", [])


def test_showing_a_figure_warns_of_nothing(drawing: RunningInterpreter) -> None:
    ran = drawing.run("import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nplt.show()")
    assert (ran.output, len(ran.artifacts)) == ("", 1)


PLOT = "import matplotlib.pyplot as plt\n"


def test_a_figure_that_is_closed_after_it_was_shown_is_sent(drawing: RunningInterpreter) -> None:
    ran = drawing.run(f"{PLOT}_ = plt.plot([1, 2])\nplt.show()\nplt.close()")
    assert (ran.output, len(ran.artifacts)) == ("", 1)
    assert drawing.run("plt.get_fignums()").artifacts == []


def test_each_picture_that_is_shown_is_sent_once_and_in_order(drawing: RunningInterpreter) -> None:
    ran = drawing.run(
        f"{PLOT}from matplotlib.pyplot import show\n"
        "for width in (2, 3, 4):\n"
        "    plt.clf()\n"
        "    plt.gcf().set_size_inches(width, 2)\n"
        "    plt.plot([1, width])\n"
        "    show()\n"
        "    show()\n"
        "plt.figure(2, figsize=(5, 2))\n"
        "_ = plt.plot([3, 1])"
    )
    widths = [size_of(data)[0] for _, data in ran.artifacts]
    assert (ran.output, len(widths), widths) == ("", 4, sorted(widths))


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("plt.savefig('growth.png')", ["growth.png"]),
        ("plt.savefig('growth.png')\nplt.show()\nplt.close()", ["growth.png"]),
        ("plt.gcf().savefig(Path('growth'), dpi=150, transparent=True)\nplt.show()", ["growth.png"]),
        ("os.mkdir('charts')\nplt.savefig(os.path.abspath('charts/growth.pdf'))", ["charts/growth.pdf"]),
        (
            "fig, axes = plt.subplots(layout='constrained')\nfig.suptitle('x')\nfig.savefig('b.png')",
            [None, "b.png"],
        ),
        ("plt.savefig('a.png')\nplt.title('more')\nplt.savefig('b.png')", ["b.png"]),
        ("plt.savefig('a.png')\nplt.figure()\nplt.plot([2, 1])\nplt.savefig('a.png')", [None, "a.png"]),
        # it is another picture, elsewhere, hidden, gone or no file
        ("plt.savefig('growth.png')\n_ = plt.title('more')", [None]),
        ("plt.savefig('/tmp/growth-of-a-test.png')", [None]),
        ("plt.savefig('.growth.png')", [None]),
        ("plt.savefig('growth.png')\nos.remove('growth.png')", [None]),
        ("plt.savefig(io.BytesIO())", [None]),
    ],
)
def test_a_figure_that_code_has_saved_itself_is_sent_with_the_name_of_its_file(
    code: str, files: list[str | None], drawing: RunningInterpreter
) -> None:
    ran = drawing.run(f"{PLOT}import io, os\nfrom pathlib import Path\n_ = plt.plot([1, 2])\n{code}")
    assert (ran.output, ran.saved_in) == ("", files)


def test_what_was_saved_in_an_earlier_block_is_no_file_of_this_one(drawing: RunningInterpreter) -> None:
    assert drawing.run(f"{PLOT}_ = plt.plot([1, 2])\nplt.savefig('growth.png')").saved_in == ["growth.png"]
    assert drawing.run("_ = plt.plot([1, 2])").saved_in == [None]


def test_what_is_drawn_after_it_was_shown_is_sent_as_well(drawing: RunningInterpreter) -> None:
    ran = drawing.run(f"{PLOT}_ = plt.plot([1, 2])\nplt.show()\n_ = plt.title('more')")
    assert len(ran.artifacts) == 2


def test_figures_that_were_shown_before_an_interrupt_are_not_those_of_the_next_block(
    drawing: RunningInterpreter,
) -> None:
    drawing.start(
        f"{PLOT}_ = plt.plot([1, 2])\nplt.show()\nplt.close()\nprint('shown', flush=True)\nwhile True: pass"
    )
    assert drawing.interrupt_when("shown").exit_code == 130
    assert drawing.run("1").artifacts == []


def test_what_cannot_be_drawn_is_no_error_of_show(drawing: RunningInterpreter) -> None:
    ran = drawing.run(f"{PLOT}_ = plt.title('$\\\\frac{{$')\nplt.show()\nprint('on')")
    assert ran.exit_code == 0
    assert ran.output.startswith("on\nan artifact (image/png) was left out: ValueError: ")


def test_very_many_figures_that_are_shown_are_counted(drawing: RunningInterpreter) -> None:
    ran = drawing.run(
        f"{PLOT}for n in range({MAX_ARTIFACTS + 3}):\n"
        "    plt.figure(figsize=(0.5, 0.5)).text(0, 0, n)\n    plt.show()\n    plt.close()"
    )
    assert len(ran.artifacts) == MAX_ARTIFACTS
    assert ran.output == f"3 more artifacts were left out: there are {MAX_ARTIFACTS} already\n"


def test_the_library_is_what_it_is_without_the_interpreter(drawing: RunningInterpreter) -> None:
    ran = drawing.run(
        f"{PLOT}import inspect, sys\n"
        "print(type(plt.__loader__).__name__, plt.__spec__.loader is plt.__loader__, plt.show.__name__)\n"
        "print('def show' in inspect.getsource(plt))"
    )
    assert ran.output == "SourceFileLoader True show\nTrue\n"


def test_a_figure_as_the_last_value_is_sent_once(drawing: RunningInterpreter) -> None:
    ran = drawing.run("import matplotlib.pyplot as plt\nfigure = plt.figure()\nfigure")
    assert ran.output == "<Figure size 640x480 with 0 Axes>\n"
    assert len(ran.artifacts) == 1


@pytest.mark.parametrize("library", ["stand-in", pytest.param("real", marks=pytest.mark.long)])
def test_the_backend_that_the_environment_names_is_kept(tmp_path: Path, library: str) -> None:
    if library == "real":
        pytest.importorskip("matplotlib")
    else:
        with_a_stand_in(tmp_path)
    with RunningInterpreter(tmp_path, environment={"MPLBACKEND": "svg"}) as interpreter:
        assert interpreter.run("import matplotlib; matplotlib.get_backend()").output == "'svg'\n"
        assert len(interpreter.run("import matplotlib.pyplot as plt; figure = plt.figure()").artifacts) == 1


def test_figures_of_a_block_that_fails_are_sent(drawing: RunningInterpreter) -> None:
    ran = drawing.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n1 / 0")
    assert (ran.exit_code, len(ran.artifacts)) == (1, 1)


def test_a_figure_that_cannot_be_drawn_is_told_in_a_line(drawing: RunningInterpreter) -> None:
    ran = drawing.run("import matplotlib.pyplot as plt\nplt.figure()\n_ = plt.title('$\\\\frac{$')")
    assert (ran.exit_code, ran.artifacts) == (0, [])
    assert ran.output.startswith("an artifact (image/png) was left out: ValueError: ")
    assert len(ran.output.splitlines()) == 1
    assert drawing.run("plt.get_fignums()").output == "[]\n"


def test_there_are_only_so_many(drawing: RunningInterpreter) -> None:
    ran = drawing.run(
        "import warnings, matplotlib.pyplot as plt\nwarnings.simplefilter('ignore')\n"
        f"for _ in range({MAX_ARTIFACTS + 3}):\n    plt.figure(figsize=(0.5, 0.5))"
    )
    assert len(ran.artifacts) == MAX_ARTIFACTS
    assert ran.output == f"3 more artifacts were left out: there are {MAX_ARTIFACTS} already\n"
    assert drawing.run("plt.get_fignums()").output == "[]\n"


def test_a_picture_as_the_last_value_is_sent(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("from PIL import Image\npicture = Image.new('RGB', (7, 5))\npicture")
    assert ran.output.startswith("<PIL.Image.Image image mode=RGB size=7x5 at ")
    ((mime_type, data),) = ran.artifacts
    assert (mime_type, size_of(data)) == ("image/png", (7, 5))
    assert interpreter.run("picture\nNone").artifacts == []


@pytest.mark.long
def test_a_table_as_the_last_value_is_sent(interpreter: RunningInterpreter) -> None:
    pytest.importorskip("pandas")
    ran = interpreter.run("import pandas as pd\npd.DataFrame({'ä': [1, 2]})")
    assert ran.output == "   ä\n0  1\n1  2\n"
    ((mime_type, data),) = ran.artifacts
    assert mime_type == "text/html"
    assert "<th>ä</th>" in data.decode()


SHOWN = "class Shown:\n    def _repr_html_(self):\n        {}\nShown()"


@pytest.mark.parametrize(
    ("body", "artifact"),
    [
        ("return '<p>\\ud800</p>'", b"<p>?</p>"),
        ("return b'<p>'", b"<p>"),
        ("return None", None),
        ("return 5", None),
    ],
)
def test_what_a_value_shows_is_taken_as_it_is(
    interpreter: RunningInterpreter, body: str, artifact: bytes | None
) -> None:
    ran = interpreter.run(SHOWN.format(body))
    assert ran.exit_code == 0
    assert ran.artifacts == ([] if artifact is None else [("text/html", artifact)])


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("raise ValueError('no\\nhtml')", "ValueError: no html"),
        ("exit(3)", "SystemExit: 3"),
        ("return 'x' * 9_000_000", "it has 8.6 MiB"),
    ],
)
def test_a_value_that_cannot_be_shown_is_told_in_a_line(
    interpreter: RunningInterpreter, body: str, line: str
) -> None:
    ran = interpreter.run(SHOWN.format(body))
    assert (ran.exit_code, ran.artifacts) == (0, [])
    assert ran.output.splitlines()[1:] == [f"an artifact (text/html) was left out: {line}"]


def test_the_largest_artifact_fits(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(SHOWN.format("return 'x' * (8 * 2**20 - 100)"))
    assert len(ran.artifacts[0][1]) == 8 * 2**20 - 100


@pytest.mark.parametrize(
    "code",
    [
        "class Any:\n    def __getattr__(self, name): return lambda: '<p>'\nAny()",
        SHOWN.format("return '<p>'").removesuffix("()"),
        "from unittest.mock import MagicMock\nMagicMock()",
    ],
)
def test_values_that_answer_to_any_name_show_nothing(interpreter: RunningInterpreter, code: str) -> None:
    ran = interpreter.run(code)
    assert (ran.exit_code, ran.artifacts) == (0, [])


def test_a_library_that_is_not_there_to_the_end_is_left_alone(
    fresh_interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    package = tmp_path / "matplotlib"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "pyplot.py").write_text("")
    ran = fresh_interpreter.run("import matplotlib.pyplot")
    assert (ran.exit_code, ran.output) == (0, "")


def test_artifacts_come_with_the_shared_token_before_the_report(drawing: RunningInterpreter) -> None:
    ran = drawing.run("import matplotlib.pyplot as plt\n_ = plt.figure()\n" + SHOWN.format("return '<p>'"))
    assert [mime_type for mime_type, _ in ran.artifacts] == ["image/png", "text/html"]


def test_a_figure_of_an_earlier_block_is_sent_when_it_is_the_last_value(drawing: RunningInterpreter) -> None:
    drawing.run(f"{PLOT}fig = plt.figure()")
    ran = drawing.run("_ = fig.suptitle('second')\nfig")
    assert ran.output == "<Figure size 640x480 with 0 Axes>\n"
    [(mime_type, data)] = ran.artifacts
    assert (mime_type, data[:8]) == ("image/png", PNG)
    assert ran.shown[0].other_forms == {"text/plain": b"<Figure size 640x480 with 0 Axes>"}


@pytest.mark.parametrize("show", ["plt.show()", "fig.show()", "display(fig)"])
def test_a_changed_figure_of_an_earlier_block_is_sent_when_it_is_shown(
    show: str, drawing: RunningInterpreter
) -> None:
    first = drawing.run(f"{PLOT}fig, _ = plt.subplots()").artifacts
    second = drawing.run(f"_ = fig.suptitle('second')\n{show}").artifacts
    assert (len(first), len(second), first == second) == (1, 1, False)


def test_show_sends_no_figure_of_an_earlier_block_that_has_not_changed(drawing: RunningInterpreter) -> None:
    drawing.run(f"{PLOT}fig, _ = plt.subplots()")
    assert drawing.run("plt.show()").artifacts == []


def test_a_figure_that_pyplot_has_not_made_is_sent_when_it_is_shown(drawing: RunningInterpreter) -> None:
    make = "from matplotlib.figure import Figure\nown = Figure()\n"
    assert [len(drawing.run(make + show).artifacts) for show in ("own", "own.show()", "display(own)")] == [
        1,
        1,
        1,
    ]


def test_an_earlier_figure_that_code_saves_again_is_sent_with_its_file(drawing: RunningInterpreter) -> None:
    drawing.run(f"{PLOT}fig, _ = plt.subplots()")
    assert drawing.run("fig.savefig('again.png')\nfig").saved_in == ["again.png"]


RICH = """
class Rich:
    def __init__(self, **forms): self.forms = forms
    def __repr__(self): return '<rich>'
    def _repr_mimebundle_(self, include=None, exclude=None): return {k.replace('_', '/'): v for k, v in self.forms.items()}
class One(Rich):
    _repr_mimebundle_ = None
"""


def test_the_forms_of_a_value_are_one_artifact_the_best_first(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        f"{RICH}import base64\nRich(text_html='<p>', image_png=base64.b64encode(b'png').decode(), application_json={{'a': 1}})"
    )
    assert ran.output == "<rich>\n"
    [artifact] = ran.shown
    assert [*artifact.forms.items()] == [
        ("image/png", b"png"),
        ("text/html", b"<p>"),
        ("application/json", b'{"a": 1}'),
        ("text/plain", b"<rich>"),
    ]


@pytest.mark.parametrize(
    ("method", "returns", "kind", "data"),
    [
        ("_repr_svg_", "'<svg/>'", "image/svg+xml", b"<svg/>"),
        ("_repr_jpeg_", "b'no picture'", "image/jpeg", b"no picture"),
        ("_repr_markdown_", "'*a*'", "text/markdown", b"*a*"),
        ("_repr_latex_", "'$a$', {'wide': True}", "text/latex", b"$a$"),
        ("_repr_json_", "[1, None]", "application/json", b"[1, null]"),
        ("_repr_pdf_", "b'%PDF'", "application/pdf", b"%PDF"),
    ],
)
def test_a_value_shows_itself_by_methods_and_by_properties(
    method: str, returns: str, kind: str, data: bytes, interpreter: RunningInterpreter
) -> None:
    by_method = interpreter.run(f"class Shown:\n    def {method}(self): return {returns}\nShown()")
    by_property = interpreter.run(f"Shown.{method} = property(lambda self: lambda: ({returns}))\nShown()")
    assert by_method.artifacts == by_property.artifacts == [(kind, data)]


def test_a_property_that_has_nothing_to_show_now_is_no_complaint(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Shown:\n    @property\n    def _repr_html_(self): raise AttributeError('only with a setting')\nShown()"
    )
    assert (ran.artifacts, len(ran.output.splitlines())) == ([], 1)


def test_a_form_that_fails_or_is_too_large_leaves_the_others(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Shown:\n"
        "    def __repr__(self): return 'shown'\n"
        "    def _repr_mimebundle_(self, **_): raise OSError('no dot')\n"
        "    def _repr_svg_(self): return 'x' * 9_000_000\n"
        "    def _repr_html_(self): return '<p>'\n"
        "Shown()"
    )
    assert [*ran.shown[0].forms] == ["text/html", "text/plain"]
    assert ran.output == (
        "shown\n"
        "an artifact (_repr_mimebundle_) was left out: OSError: no dot\n"
        "an artifact (image/svg+xml) was left out: it has 8.6 MiB\n"
    )


def test_artifacts_of_one_block_are_bounded_together(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        SHOWN.format("return 'x' * (2**23 - 100)").replace(
            "\nShown()", "\nfor _ in range(6): display(Shown())"
        )
    )
    assert len(ran.artifacts) == 3
    assert ran.output.endswith("3 more artifacts were left out: there are 3 already\n")


def test_scripts_are_left_out_with_a_remark(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(f"{RICH}Rich(application_javascript='alert(1)')")
    assert ran.artifacts == []
    assert ran.output == "<rich>\nan artifact (application/javascript) was left out: no script runs here\n"


def test_display_prints_the_text_of_values_in_its_place_and_sends_their_other_forms(
    interpreter: RunningInterpreter,
) -> None:
    ran = interpreter.run(
        f"{RICH}print('a')\ndisplay(Rich(text_html='1'), 'b')\nprint('c')\n"
        "display({'text/plain': 'd', 'text/html': '2'}, raw=True)\nRich(text_html='3')"
    )
    assert ran.output == "a\n<rich>\n'b'\nc\nd\n<rich>\n"
    assert [data for _, data in ran.artifacts] == [b"1", b"2", b"3"]


def test_a_value_that_displays_itself_is_asked_to(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Own:\n"
        "    def __repr__(self): return 'own'\n"
        "    def _ipython_display_(self): display({'text/html': '<p>'}, raw=True)\n"
        "    def _repr_png_(self): return b'png'\n"
        "display(Own())\nOwn()"
    )
    assert (ran.output, ran.artifacts) == ("own\n", [("text/html", b"<p>")] * 2)


def test_what_was_displayed_before_an_interrupt_is_not_of_the_next_block(
    interpreter: RunningInterpreter,
) -> None:
    interpreter.start("display({'text/html': '1'}, raw=True)\nprint('shown', flush=True)\nwhile True: pass")
    assert interpreter.interrupt_when("shown").exit_code == 130
    assert interpreter.run("display({'text/html': '2'}, raw=True)").artifacts == [("text/html", b"2")]


@pytest.fixture
def without_ipython(tmp_path: Path) -> Generator[RunningInterpreter]:
    """One of a Python that has no IPython, whatever this one has."""
    with RunningInterpreter(tmp_path) as running:
        hide = "import sys\nsys.path[:] = [place for place in sys.path if 'site-packages' not in place]"
        assert running.run(hide).exit_code == 0
        yield running


def test_the_display_module_of_ipython_has_a_stand_in(without_ipython: RunningInterpreter) -> None:
    ran = without_ipython.run(
        "from IPython.display import HTML, SVG, JSON, Code, Image, Latex, Markdown, Pretty, display\n"
        "display(HTML('<p>'), Markdown('*m*'), Latex('$l$'), JSON({'a': 1}), SVG('<svg/>'), Image(b'\\x89PNG'))\n"
        "display(Pretty('pretty'), Code('x = 1', language='python'))"
    )
    assert ran.artifacts == [
        ("text/html", b"<p>"),
        ("text/markdown", b"*m*"),
        ("text/latex", b"$l$"),
        ("application/json", b'{"a": 1}'),
        ("image/svg+xml", b"<svg/>"),
        ("image/png", b"\x89PNG"),
        ("text/markdown", b"```python\nx = 1\n```"),
    ]
    assert ran.output.startswith("<IPython.core.display.HTML object at 0x")
    assert ran.output.endswith("pretty\nx = 1\n")


def test_what_a_block_has_shown_is_taken_back_as_in_a_notebook(without_ipython: RunningInterpreter) -> None:
    show = "from IPython.display import clear_output, HTML, display\nfor step in range(3):\n    "
    ran = without_ipython.run(
        f"{show}clear_output(wait=True)\n    print('step', step)\n    display(HTML(str(step)))"
    )
    assert (settled(ran.output).split("\n")[0], ran.artifacts) == ("step 2", [("text/html", b"2")])
    # it is only replaced
    ran = without_ipython.run(f"{show}display(HTML(str(step)))\n    clear_output(wait=True)")
    assert ran.artifacts == [("text/html", b"2")]
    ran = without_ipython.run(f"{show}display(HTML(str(step)))\nclear_output()")
    assert (settled(ran.output), ran.artifacts) == ("", [])


def test_what_the_stand_in_cannot_show_is_remarked(without_ipython: RunningInterpreter) -> None:
    ran = without_ipython.run(
        "from IPython.display import Javascript, IFrame\ndisplay(Javascript('1'), IFrame('/', 1, 1))"
    )
    assert (ran.exit_code, ran.artifacts) == (0, [])
    assert (
        ran.output
        == "Javascript was left out: no script runs here\nIFrame was left out: no page is loaded here\n"
    )


def test_a_library_that_asks_for_ipython_does_not_find_the_stand_in(
    without_ipython: RunningInterpreter, tmp_path: Path
) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "asking.py").write_text("try: import IPython\nexcept ImportError: IPython = None\n")
    assert (
        without_ipython.run(
            f"sys.path.append({str(library)!r})\nimport asking; asking.IPython is None"
        ).output
        == "True\n"
    )


def test_image_show_sends_the_picture(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("from PIL import Image\nImage.new('RGB', (7, 5)).show()")
    assert (ran.output, [size_of(data) for _, data in ran.artifacts]) == ("", [(7, 5)])


def test_a_picture_that_is_no_png_is_sent_as_png_too(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import io\nfrom PIL import Image\nImage.new('RGB', (7, 5)).save(out := io.BytesIO(), 'JPEG')\n"
        "class Shown:\n    def _repr_jpeg_(self): return out.getvalue()\nShown()"
    )
    assert [*ran.shown[0].forms] == ["image/png", "image/jpeg", "text/plain"]
    assert size_of(ran.artifacts[0][1]) == (7, 5)
