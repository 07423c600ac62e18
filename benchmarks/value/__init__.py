"""What a shared memory is worth to agents: 48 scenarios, each answered from the conversation alone and with avmfs.

``scenario`` reads the files below scenarios/, ``suite`` plays them. What answers and what grades is avmfs.evaluation's.
"""
