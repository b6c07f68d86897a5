"""The shop of the config `quickstart`: a tool for its agent, and so a function of the host that code in a sandbox calls."""

from __future__ import annotations

from typing import TypedDict


class Order(TypedDict):
    """An order of the shop. ``euros`` is ``None`` until it is billed."""

    number: int
    item: str
    euros: float | None


_ORDERS = {
    "August": [("bolts", 412.50), ("nuts", 96.00), ("screws", 350.25), ("bolts", 180.00)],
    "September": [("screws", 505.75), ("bolts", None), ("nuts", 120.00), ("screws", 298.50)],
    "October": [("bolts", 640.00), ("screws", 410.25), ("nuts", 84.00)],
}


def orders(month: str) -> list[Order]:
    """List the orders of a month of last autumn: number, item, and euros, which are None until the order is billed."""
    first = 100 * (1 + list(_ORDERS).index(month))
    sold = _ORDERS[month]
    return [Order(number=first + place, item=item, euros=euros) for place, (item, euros) in enumerate(sold)]
