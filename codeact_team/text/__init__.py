"""Texts: what hostile code has written, made fit for a person or a model; Markdown; credentials in them."""
