"""``python -m recipe_core`` is the command ``recipe``; the ranks of a run are started this way."""

import sys

from recipe_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
