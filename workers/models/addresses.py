"""Which network addresses a caller may make us connect to. Knows no HTTP."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_SITE_LOCAL = IPv6Network("fec0::/10")
_IPV4_COMPATIBLE = IPv6Network("::/96")

Address = IPv4Address | IPv6Address


def is_public(text: str) -> bool:
    """Whether an address, as the socket layer writes it, belongs to the public internet.

    An IPv6 address that carries an IPv4 one is as public as that one.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_global(candidate) for candidate in (address, *_carried(address)))


def _is_global(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return True  # judged by what it carries
        if address in _SITE_LOCAL:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _carried(address: Address) -> list[IPv4Address]:
    """IPv4 addresses that an IPv6 one is a way of writing, or a tunnel to."""
    if isinstance(address, IPv4Address):
        return []
    teredo = address.teredo or ()
    found = [address.ipv4_mapped, address.sixtofour, *teredo]
    if any(address in network for network in (*_NAT64, _IPV4_COMPATIBLE)):
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]
