"""``bench_value``, what others know, by the name that the customer's documents use.

python benchmarks/run_knowledge_retrieval.py [OPTIONS OF bench_value]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.bench_value import main

if __name__ == "__main__":
    sys.exit(main(["--categories", "knowledge_retrieval", *sys.argv[1:]]))
