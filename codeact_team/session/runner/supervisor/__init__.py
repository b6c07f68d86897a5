"""The process that owns the stream to the host: starts what runs the code, passes on what comes of it, and ends it."""
