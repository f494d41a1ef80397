"""One forward of a record as lanes on a time axis, by rank: its data, its words, and its picture on a page."""
