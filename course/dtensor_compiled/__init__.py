"""What only lesson 10b imports: its exercises, its figure, and three jobs' logs."""
