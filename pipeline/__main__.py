import sys

from probatum.cli import main

raise SystemExit(main(sys.argv[1:] or ["gate"]))
