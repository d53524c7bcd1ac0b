import pytest

from broker.http.address import Address


def test_an_address_is_parsed():
    assert Address.of("http://h:1/pre/") == Address("h", 1, False, "/pre", "h:1")
    assert Address.of("https://h").port == 443
    assert Address.of("http://user:word@[::1]:8/") == Address("::1", 8, False, "", "[::1]:8")


@pytest.mark.parametrize("url", ["h:8080", "ftp://h", "http://", "/path", ""])
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="http://host:port"):
        Address.of(url)
