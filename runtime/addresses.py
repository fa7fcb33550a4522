"""Addresses as people and other programs read them."""

import os


def url_of(host: str, port: int) -> str:
    """IPv6 addresses go in brackets (RFC 3986, section 3.2.2)."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening_problem(error: OSError) -> str | None:
    """Why an address cannot be had, without the address that Python's own texts repeat."""
    number = error.errno or 0
    # Those of name resolution are negative.
    return os.strerror(number) if number > 0 else error.strerror
