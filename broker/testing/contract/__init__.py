"""One suite of tests per port: what every implementation, one's own too, must do.

A test module gives a ``harness`` fixture and subclasses the suite::

    class TestLogStore(LogStoreContract):
        @pytest.fixture
        async def harness(self, tmp_path):
            return MyHarness(tmp_path)
"""
