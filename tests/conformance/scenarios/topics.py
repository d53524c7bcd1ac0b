"""Topics: create, show, update, list, delete, and the allowed properties."""

from tests.conformance.script import Script


def life_of_a_topic(s: Script) -> None:
    s.show("t")
    s.update("t")
    s.delete("t")
    s.create("t")
    s.create("t")
    s.create("t", {"ttl": "5"})
    s.show("t")
    s.update("t", {"ttl": "60", "owner": "me"})
    s.show("t")
    s.update("t")
    s.show("t")
    s.delete("t")
    s.show("t")
    s.delete("t")
    s.update("t")
    s.publish("t", "a")
    s.poll("t")


def ttl_values(s: Script) -> None:
    texts = ["1", "60", "2147483647", "05", "+5", "-0", "0", "-1", "2147483648", "99999999999"]
    texts += ["", " 5", "5 ", "5.0", "1e3", "0x10", "five", "1_000", "\u0665"]
    for number, text in enumerate(texts):
        s.create(f"t{number}", {"ttl": text})
        s.show(f"t{number}")


def ttl_types(s: Script) -> None:
    values = [b"7", b"0", b"-7", b"7.0", b"7e0", b"true", b"null", b"[]", b"[7]", b"{}"]
    for number, value in enumerate([*values, b'{"ttl":7}', b'""', b"2147483647", b"2147483648"]):
        s.create(f"t{number}", b'{"ttl":%b}' % value)
        s.show(f"t{number}")


def properties_without_a_meaning(s: Script) -> None:
    s.create("t", b'{"owner":"me","n":1.50,"big":123456789012345678901234567890,"b":false,"":"x"}')
    s.show("t")
    s.update("t", b'{"Ttl":"x","a b":"\\u00e9\\n","e":1e5,"html":"<&>=\'","quote":"\\""}')
    s.show("t")
    s.update("t", b'{"x":null}')
    s.update("t", b'{"x":{"y":1}}')
    s.update("t", b'{"x":[1]}')
    s.show("t")
    s.create("many", {f"key{number}": str(number) for number in range(300)})
    s.show("many")


def generation_as_a_property(s: Script) -> None:
    for number, value in enumerate(["1", "7", "-3", "0", "x", "", "2147483647", "2147483648"]):
        s.create(f"t{number}", {"generation": value, "ttl": "60"})
        s.show(f"t{number}")
    s.update("t0", {"generation": "99"})
    s.show("t0")
    s.update("t0", {"generation": "0"})
    s.update("t0", b'{"generation":5}')
    s.show("t0")


def bodies_of_create(s: Script) -> None:
    bodies = [b"{}", b" {} ", b"{", b"}", b"null", b"[]", b'"x"', b"7", b"true", b" ", b"\n"]
    bodies += [b'{"ttl":"5"', b'{"ttl":"5"}}', b'{"ttl":"5"}{"ttl":"6"}', b'{"ttl":"5",}', b"{,}"]
    bodies += [b'{"ttl"}', b'{"ttl":}', b'{"ttl":"5" "a":"b"}', b"\xff\xfe", b'{"a":"\xff"}']
    bodies += [b"{ttl:5}", b"{'ttl':'5'}", b'{"ttl":"5","ttl":"6"}', b"\xef\xbb\xbf{}"]
    for number, body in enumerate(bodies):
        s.create(f"t{number}", body)
        s.show(f"t{number}")
    s.listing()


def names(s: Script) -> None:
    for name in ["a", "A", "0", "_", "-", "a-b_C9", "x" * 300]:
        s.create(name)
    for name in ["a.b", "a%20b", "a:b", "a+b", "a*", "%C3%A9", "%ff", "a;b", "@", "~"]:
        s.create(name)
        s.publish(name, "m")
        s.poll(name)
        s.delete(name)
    s.listing()


def order_of_a_listing(s: Script) -> None:
    s.listing()
    for name in ["b", "a", "aa", "a1", "a-b", "a_b", "A", "ab", "a9", "Z", "_", "0", "-a", "a-"]:
        s.create(name)
    s.listing()
    s.delete("a1")
    s.listing()
    s.create("a1")
    s.listing()


def creating_again(s: Script) -> None:
    for ttl in ("60", "70", "80"):
        s.create("t", {"ttl": ttl, "made": ttl})
        s.show("t")
        s.poll("t")
        s.publish("t", f"old {ttl}")
        s.store("t", f"stored {ttl}", tx=1)
        s.publish("t", tx=1)
        s.poll("t")
        s.delete("t")
        s.poll("t")
        s.publish("t", "lost")
        s.store("t", "lost", tx=1)
    s.create("t")
    s.show("t")
    s.poll("t")
    s.publish("t", "new")
    s.poll("t")


SCENARIOS = (
    life_of_a_topic,
    ttl_values,
    ttl_types,
    properties_without_a_meaning,
    generation_as_a_property,
    bodies_of_create,
    names,
    order_of_a_listing,
    creating_again,
)
