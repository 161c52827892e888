"""Candidates that mean harm: pieces of hostile code, a seeded generator that composes them, and a range to run them in.

What a piece says of itself goes to standard error: `@did NAME` when it starts, `@found TEXT` for each marker that it
got to see, `@breach TEXT` when something worked that must not. The range trusts none of that alone: it also looks
after its canaries, processes, files and rows.
"""
