"""The error for an address that can't be listened on."""

from __future__ import annotations

from statehouse.errors import ConfigurationError


def cant_listen(address: str, error: object, flag: str = "--port") -> ConfigurationError:
    """Return an error that says what to do. `flag`: chooses another port."""
    return ConfigurationError(
        f"can't listen on {address}: {error}; is another process on that port? Choose another with {flag}"
    )
