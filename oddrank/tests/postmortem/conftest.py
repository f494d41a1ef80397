"""Lets tests here import `flight_records` by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
