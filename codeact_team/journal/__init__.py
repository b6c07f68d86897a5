"""The record of a run: its entries on a disk, what they mean, and what they bring back."""
