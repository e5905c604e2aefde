"""What stands for an exchange that has ended: whatever comes now is too late."""

from __future__ import annotations

from gateway.errors import GatewayError


class Over:
    """What `request.context` holds once its exchange has ended: whatever comes now is too late."""

    __slots__ = ()
    over = True

    def refuse(self, error: GatewayError, close: bool = False) -> None:
        """Nothing: the answer has been given."""

    def abandon(self) -> None:
        """Nothing: the record has been made."""


OVER = Over()
