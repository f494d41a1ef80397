"""`python -m oddrank`."""

from oddrank.command import main

raise SystemExit(main())
