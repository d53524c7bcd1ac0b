"""One suite of tests for each port; every implementation must pass it, yours too.

A test module gives a ``harness`` fixture and subclasses the suite::

    class TestMyTable(TableContract):
        @pytest.fixture
        async def harness(self, tmp_path):
            return MyHarness(tmp_path)
"""
