"""The plugins and settings of all tests. Most fixtures stand beside their subject."""

import logging
import os

import structlog
from hypothesis import settings

pytest_plugins = [
    "tests.kit.fixtures",
    "tests.plugins.expected_skips",
    "tests.plugins.groups",
    "tests.plugins.scenarios",
    "tests.plugins.seeds",
    "pytester",
]

# No test asserts how long it takes. plugins/seeds.py draws the examples from the seed of the day. `make check` takes the
# profile quick, `make test-all` takes thorough.
settings.register_profile("here", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, print_blob=True)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=400, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")

# Without debug lines: a test of many refusals would write many of them.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
