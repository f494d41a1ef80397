"""`oddrank look`: the executed breaks, regions, recompiles and collectives of an unchanged program.

Nothing is imported here, because ranks import `program` from this package and draw nothing.
"""
