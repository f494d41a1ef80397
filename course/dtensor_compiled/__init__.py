"""What only lesson 10b imports: its exercises, its figure, the raw log of recompiles, and three jobs' logs."""
