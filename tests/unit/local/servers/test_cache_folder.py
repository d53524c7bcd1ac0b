from pathlib import Path

import pytest

from broker.local.servers import ServerMissing, jvm
from broker.local.servers import cache_folder as cache
from tests.kit.servers.__main__ import main


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BROKER_SERVERS_DIR", str(folder))
    return folder


def test_a_key_changes_with_any_name_or_content(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pom.xml").write_text("one")
    first = cache.key_of_files(project)
    assert cache.key_of_files(project) == first
    (project / "pom.xml").write_text("two")
    second = cache.key_of_files(project)
    (project / "pom.xml").rename(project / "other.xml")
    assert len({first, second, cache.key_of_files(project)}) == 3


def test_a_build_replaces_only_older_builds_of_its_name(cache_folder: Path) -> None:
    with cache.locked():
        for name, key in (("a", "000000000001"), ("a-b", "000000000001"), ("a", "000000000002")):
            cache.build(cache.place(name, key), lambda folder: (folder / "x").touch())
    names = sorted(path.name for path in cache_folder.iterdir() if path.is_dir())
    assert names == ["a-000000000002", "a-b-000000000001"]


def test_a_failed_build_leaves_no_folder(cache_folder: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with cache.locked(), pytest.raises(KeyboardInterrupt):
        cache.build(cache.place("a", "0"), make)
    assert [path.name for path in cache_folder.iterdir()] == ["lock"]


def test_the_error_for_a_missing_server_names_the_command_that_fetches_it() -> None:
    with pytest.raises(ServerMissing, match=r"make test-servers SERVERS=tms$"):
        jvm.installed("tms")


def test_a_class_path_keeps_the_order_of_maven(tmp_path: Path) -> None:
    (tmp_path / "classpath").write_text("z.jar\na.jar\n")
    first = tmp_path / "conf"
    expected = [first, tmp_path / "classes", tmp_path / "lib/z.jar", tmp_path / "lib/a.jar"]
    assert jvm.class_path(tmp_path, first=[first]) == ":".join(map(str, expected))


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize(
    ("options", "ci", "code"),
    [([], "", 1), (["--if-possible"], "", 0), (["--if-possible"], "true", 1)],
)
def test_the_command_names_missing_parts(
    options: list[str],
    ci: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI", ci)
    assert main(["fetch", *options, "tms", "redis", "toxiproxy"]) == code
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "MISSING tms: java is not installed: apt-get install default-jdk-headless",
        "MISSING redis: redis is not installed: apt-get install redis-server",
        "MISSING toxiproxy: go is not installed: apt-get install golang-go",
    ]


def test_the_command_refuses_an_unknown_name() -> None:
    with pytest.raises(SystemExit):
        main(["fetch", "nosuch"])
