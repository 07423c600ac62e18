"""The Python interface behind `from avmfs import AVM`.

Owns which door a program gets (a daemon's, or the store itself), the agent's memory as an object, and what agents do
with each other. Runs in the user's program.
"""
