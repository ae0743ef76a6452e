"""``python -m dptoolkit`` is the ``dptoolkit`` command."""

import sys

from dptoolkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
