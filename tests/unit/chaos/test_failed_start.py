"""Clusters of the verifier that can't be started."""

import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from broker.local.servers import ServerMissing
from chaos import proxied_cluster
from chaos.proxied_cluster import ChaosCluster
from chaos.standalone import Standalone


@pytest.mark.parametrize("kind", [ChaosCluster, Standalone])
def test_a_failed_start_leaves_no_folder(
    kind: type[ChaosCluster | Standalone], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(**_: object) -> NoReturn:
        raise ServerMissing("Toxiproxy is not here")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(proxied_cluster, "ToxiproxyServer", missing)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ServerMissing), kind():
        pass
    assert list(tmp_path.iterdir()) == []
