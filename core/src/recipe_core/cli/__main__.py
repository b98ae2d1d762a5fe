"""``python -m recipe_core.cli`` is the command ``recipe``; the ranks of a run are started this way."""

import sys

from recipe_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
