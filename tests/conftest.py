"""What all tests share: the plugins; fixtures stand with what they are about."""

pytest_plugins = ["broker.testing.fixtures", "tests.plugins.expected_skips", "pytester"]
