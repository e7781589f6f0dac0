import sys

from loadtests.sim.cli import main

sys.exit(main())
