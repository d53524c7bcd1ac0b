import pytest

from broker.http.answer import Address


def test_an_address_is_parsed():
    assert Address.of("http://h:1/pre/") == Address("h", 1, False, "/pre", "h:1")
    assert Address.of("https://h").port == 443
    assert Address.of("http://[::1]:8/") == Address("::1", 8, False, "", "[::1]:8")


@pytest.mark.parametrize("user", ["user:word", "user", ":word", ""])
def test_credentials_in_an_address_are_refused_with_advice(user):
    for scheme in ("http", "https", "ftp"):
        with pytest.raises(ValueError, match=f"give {scheme}://h:1/p, and .* as a header") as error:
            Address.of(f"{scheme}://{user}@h:1/p")
        assert "word@" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["h:8080", "ftp://h", "http://", "/path", "", "http://a\0b", "http://a b", "http://a\nb"]
)
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="http://host:port"):
        Address.of(url)
