# Runs Python code as if it was another file than the one it is read from. Given as `-c`, with both as arguments.
# No docstring: it would be that of the code.


def _run() -> None:
    import os
    import sys
    from _frozen_importlib_external import SourceFileLoader  # pyright: ignore[reportMissingModuleSource, reportUnknownVariableType, reportMissingImports]

    main = sys.modules["__main__"].__dict__
    del main["_run"]
    source, file = sys.argv[1:]
    with open(source, "rb") as opened:
        code = opened.read()
    path = os.path.abspath(file)
    # run_block.sh hides what pip installs for its user; of that, nothing is to run before the code
    if base := os.environ.pop("PYTHONUSERBASE", "").removeprefix("/dev/null/"):
        os.environ["PYTHONUSERBASE"] = base
    site = sys.modules.get("site")
    if site and site.ENABLE_USER_SITE and not sys.flags.ignore_environment:
        vars(site).update(USER_BASE=None, USER_SITE=None)
        if os.path.isdir(packages := site.getusersitepackages()):
            shared = (number for number, entry in enumerate(sys.path) if entry.endswith("-packages"))
            sys.path.insert(next(shared, len(sys.path)), packages)
    sys.argv[:] = [file]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    try:
        exec(compile(code, path, "exec", dont_inherit=True), main)
    except BaseException as error:
        here, show = error.__traceback__, sys.excepthook
        frames = None if here is None else here.tb_next
        # what is shown begins with the code, not with this
        sys.excepthook = lambda kind, value, _: show(kind, value.with_traceback(frames), frames)
        raise


_run()
