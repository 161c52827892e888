"""Ways in which an optimizer of this kind can fail the person who runs it, each driven through the whole product.

Only what that person can see is looked at: the run folder, exit code, stdout and stderr, and what the model server got.
"""
