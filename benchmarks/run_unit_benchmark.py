"""One call of each operation, measured without any model: ``bench_api`` by the name that the customer's documents use.

python benchmarks/run_unit_benchmark.py [OPTIONS OF bench_api]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.bench_api import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
