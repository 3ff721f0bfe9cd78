"""``python -m calculators``."""

import sys

from calculators.site.cli import main

sys.exit(main(sys.argv[1:]))
