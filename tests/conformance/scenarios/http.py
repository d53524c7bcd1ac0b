"""HTTP: paths, methods, content types, framing, compression, and connections that stay open."""

from tests.conformance.exchange import Sent
from tests.conformance.script import AVRO, Script

ONE = b"\x02\x02\x02a\x00"
ALL = bytes.fromhex("040100feffffff0f02")


def other_paths(s: Script) -> None:
    s.create("t")
    paths = ["/", "/v1", "/v1/", "/v1/namespaces", "/v2/namespaces/n/topics", "/nope", "/PING"]
    paths += [s.path("t", "nope"), s.path("t", "publish/x"), s.path("t") + "//x"]
    paths += ["/v1/namespaces//topics", "//ping", "/v3/system/services//status"]
    for path in paths:
        s.send(f"GET {path}", Sent("GET", path))


def paths_written_otherwise(s: Script) -> None:
    s.create("t")
    paths = [s.path("t") + "/", s.path("t") + "//", s.path("t").replace("/topics", "//topics")]
    paths += [s.path("%74"), s.path("t") + "?x=1", s.path("t") + "?", "/ping/", "http://x/ping"]
    for path in paths:
        s.send(f"GET {path}", Sent("GET", path))


def other_methods(s: Script) -> None:
    s.create("t")
    wrong = [("POST", ""), ("PATCH", ""), ("HEAD", ""), ("OPTIONS", ""), ("GET", "properties")]
    wrong += [("POST", "properties"), ("DELETE", "properties")]
    for action in ("publish", "store", "rollback", "poll"):
        wrong += [("GET", action), ("PUT", action), ("DELETE", action)]
    for method, action in wrong:
        s.send(f"{method} {action or 'topic'}", Sent(method, s.path("t", action)))
    for method in ("PUT", "POST", "DELETE"):
        s.send(f"{method} topics", Sent(method, s.topics_path))
        s.send(f"{method} ping", Sent(method, "/ping"))
    s.show("t")


def ping_and_status(s: Script) -> None:
    s.send("ping", Sent("GET", "/ping"))
    for service in ("messaging.service", "x"):
        s.send(f"status of {service}", Sent("GET", f"/v3/system/services/{service}/status"))


def content_types(s: Script) -> None:
    s.create("t")
    types = ["Avro/Binary", "avro/binary; charset=utf-8", "avro/binary;", "avro", "text/html"]
    types += ["application/x-www-form-urlencoded", "application/avro", "*/*", ""]
    for action, body in (("publish", ONE), ("store", b"\x00" + ONE), ("poll", ALL)):
        path = s.path("t", action)
        s.send(f"{action} without a type", Sent("POST", path, body))
        for kind in types:
            s.send(f"{action} as {kind!r}", Sent("POST", path, body, {"Content-Type": kind}))
    s.poll("t")
    nothing = bytes.fromhex("000200000000")
    for kind in ("text/html", "avro/binary", "application/octet-stream"):
        sent = Sent("POST", s.path("t", "rollback"), nothing, {"Content-Type": kind})
        s.send(f"rollback as {kind!r}", sent)
    s.send("create as text/html", Sent("PUT", s.path("u"), b"{}", {"Content-Type": "text/html"}))


def unknown_topics(s: Script) -> None:
    s.publish("t", "a")
    s.publish("t", "a", tx=1)
    s.publish("t", tx=1)
    s.publish("t")
    s.store("t", "a", tx=1)
    s.store("t", "a")
    s.poll("t")
    s.poll("t", limit=0)
    s.send("rollback", Sent("POST", s.path("t", "rollback"), bytes.fromhex("000200000000")))


def framing(s: Script) -> None:
    s.create("t")
    path = s.path("t", "publish")
    s.send("in chunks", Sent("POST", path, headers=AVRO, chunks=(ONE[:2], ONE[2:3], ONE[3:])))
    s.send("in one chunk", Sent("POST", path, headers=AVRO, chunks=(ONE,)))
    s.send("no chunk", Sent("POST", path, headers=AVRO, chunks=()))
    s.send("no length", Sent("POST", path, headers=AVRO, length=""))
    s.send("length 0", Sent("POST", path, headers=AVRO))
    s.send("expecting 100", Sent("POST", path, ONE, AVRO | {"Expect": "100-continue"}))
    s.poll_raw("t", b"", label="poll in chunks", chunks=(ALL[:3], ALL[3:]))
    s.send("create in chunks", Sent("PUT", s.path("u"), chunks=(b'{"ttl"', b':"60"}')))
    s.send("create without a length", Sent("PUT", s.path("v"), length=""))
    s.show("u")
    s.show("v")
    s.poll("t")


def bodies_of_requests_that_need_none(s: Script) -> None:
    s.create("t")
    s.send("show with a body", Sent("GET", s.path("t"), b"body"))
    s.send("list with a body", Sent("GET", s.topics_path, b"body"))
    s.send("ping with a body", Sent("GET", "/ping", b"body"))
    s.send("delete with a body", Sent("DELETE", s.path("t"), b"body"))


def compression(s: Script) -> None:
    s.create("t")
    s.publish("t", *(f"message {number}" for number in range(150)))
    for coding in ("gzip", "identity", "gzip;q=0", "deflate", "br", "gzip, deflate"):
        s.poll_raw("t", ALL, label=f"poll, {coding}", headers={"Accept-Encoding": coding})
        sent = Sent("GET", s.path("t"), headers={"Accept-Encoding": coding})
        s.send(f"show, {coding}", sent)


def connections(s: Script) -> None:
    s.create("t")
    s.send("missing", Sent("GET", s.path("nope")))
    s.send("exists", Sent("PUT", s.path("t")))
    s.send("bad name", Sent("PUT", s.path("t.t")))
    s.send("bad ttl", Sent("PUT", s.path("u"), b'{"ttl":"0"}'))
    s.send("bad type", Sent("POST", s.path("t", "publish"), ONE))
    s.send("unknown path", Sent("GET", "/nope"))
    s.send("wrong method", Sent("PATCH", s.path("t")))
    s.show("t")
    for _ in range(20):
        s.publish("t", "a")
    s.poll("t")


def a_large_body(s: Script) -> None:
    """A body above the original's limit and below ours."""
    s.create("t")
    s.publish("t", "x" * 9_000_000)
    s.publish("t", "x" * 11_000_000)
    s.show("t")


SCENARIOS = (
    other_paths,
    paths_written_otherwise,
    other_methods,
    ping_and_status,
    content_types,
    unknown_topics,
    framing,
    bodies_of_requests_that_need_none,
    compression,
    connections,
    a_large_body,
)
