"""Model clients, and answers of a model in a form that programs read."""
