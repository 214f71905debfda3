"""Code of the sandbox's processes: the standard library only, nothing of the package.

The processes know this package as ``jail``; importing a module of it has no effect. What they
import counts, as it is paid for at every judgement.
"""
