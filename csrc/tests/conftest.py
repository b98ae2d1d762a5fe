from __future__ import annotations

from hypothesis import settings

# The same examples each time, and no limit on the time of one: a busy machine must not make a test fail.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
