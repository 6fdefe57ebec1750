"""Every benchmark, one after the other: python -m benchmarks [names ...]

Each is a module of its own with its own options: python -m benchmarks.memory --help
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NOT_BENCHMARKS = ("__init__", "__main__", "page", "timing")


def main() -> int:
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in NOT_BENCHMARKS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*names, []], help=f"some of: {', '.join(names)}; all by default")
    failed = []
    for name in parser.parse_args().names or names:
        print(f"\n# benchmarks.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
