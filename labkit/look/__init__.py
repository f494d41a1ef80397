"""`labkit look`: the executed breaks, regions, recompiles and collectives of a program that nobody changed for it.

Empty, because ranks import `program` from here and draw nothing.
"""
