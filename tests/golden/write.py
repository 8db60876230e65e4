"""Record the answers of today: ``python tests/golden/write.py ROOM ...``.

What is recorded is what later code is held against: do it only when a change is meant, and look at the
difference. Answers that differ by no more than the tests allow stay as they are.
"""

from __future__ import annotations

import argparse
import time

from answers import answer, differences, read, write
from rooms import ROOMS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+", choices=ROOMS, metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    for room in parser.parse_args().rooms:
        before, answers = read(room), {}
        for name, question in ROOMS[room].items():
            began = time.perf_counter()
            found = answer(question)
            kept = name in before and not list(differences(found, before[name], at=name))
            answers[name] = before[name] if kept else found
            if not kept or time.perf_counter() - began > 2:
                print(f"{name}: {time.perf_counter() - began:.1f} s{'' if kept else ', new'}")
        write(room, answers)
        print(f"{len(answers)} answers of {room}")


if __name__ == "__main__":
    main()
