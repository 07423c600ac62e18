"""What a shared memory is worth to agents: 48 scenarios, each answered from the conversation alone and with avmfs.

``scenario`` reads the files below scenarios/, ``suite`` plays them, ``grade`` judges the answers. The models that
answer are those of benchmarks/chat_models.py.
"""
