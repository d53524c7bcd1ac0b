"""What all tests share: the plugins; fixtures stand with what they are about."""

import logging
import os

import structlog
from hypothesis import settings

pytest_plugins = [
    "broker.testing.fixtures",
    "tests.plugins.expected_skips",
    "tests.plugins.lanes",
    "tests.plugins.seeds",
    "pytester",
]

# No test asserts how long it takes; and what decides about a change decides the same way twice.
# Elsewhere each run tries other examples, and fewer of them.
settings.register_profile("here", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")

# Lines of the level debug are for those who look for them: a test of many refusals would write many.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
