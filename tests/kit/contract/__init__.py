"""One suite of tests per port: what every implementation must do, also one of your own.

A test module gives a ``harness`` fixture and subclasses the suite::

    class TestMyTable(TableContract):
        @pytest.fixture
        async def harness(self, tmp_path):
            return MyHarness(tmp_path)
"""
