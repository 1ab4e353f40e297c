"""A record that another lane or job wrote: handed in, kept unedited, and described as it was found."""

from __future__ import annotations

from .records import Body


class Received(Body, frozen=True, kw_only=True):
    """What lay in ``--evidence`` under a planned name. The bytes themselves are the record of that name.

    ``digest``: of those bytes, "" where there were none. ``problem``: why they are no record ("" where they are one).
    ``signature``: what is wrong with it, "" where it holds or nobody asks for one. ``ledger``: the text of ``NAME.ledger``.
    """

    name: str
    digest: str
    problem: str
    signature: str
    ledger: str | None = None
