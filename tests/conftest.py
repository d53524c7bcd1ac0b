"""What all tests share: the plugins; fixtures stand with what they are about."""

import os

from hypothesis import settings

pytest_plugins = ["broker.testing.fixtures", "tests.plugins.expected_skips", "pytester"]

# No test asserts how long it takes; and what decides about a change decides the same way twice.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")
