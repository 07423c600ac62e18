"""An evaluation of agents' memory in twelve dimensions, and what it shares with benchmarks/: models and graders.

    from avmfs.evaluation import PRESETS, run_memory_benchmark

    class MyAgent:
        def respond(self, text: str) -> str: ...
        def reset_session(self) -> None: ...   # optional: a conversation ends, another begins
        def inject(self, text: str, reply: str) -> None: ...   # optional: a turn of the past, without a call

    result = run_memory_benchmark(MyAgent, PRESETS["standard"], subject="MyAgent")
    result.overall_score, result.grade, result.passed

The factory is called once a scenario: an agent knows nothing of other scenarios. Used by `avm bench memory`.
"""

from avmfs.evaluation.runner import PRESETS, Agent, Preset, Result, run_memory_benchmark

__all__ = ["PRESETS", "Agent", "Preset", "Result", "run_memory_benchmark"]
