"""The files of an executor's code: on this machine or in a container, given, changed, saved, and within their quota."""
