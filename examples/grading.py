"""Grades programs of strangers: each runs in a copy of one sandbox, with files and time of its own.

    python examples/grading.py [docker]

Needs no model, and Docker only if you ask for it.
"""

import subprocess
import sys

from codeact_team import SyncSandbox, open_sandbox

SUBMISSIONS = {
    "ada": "print(sum(int(line) for line in open('numbers.txt')))",
    "bob": "print(max(int(line) for line in open('numbers.txt')))",
    "cy": "print(sum(open('numbers.txt')))",
    "eve": "open('numbers.txt', 'w').close()\nwhile True: pass",
}


def mark(sandbox: SyncSandbox, program: str) -> str:
    sandbox.put("program.py", program)
    try:
        ran = sandbox.run(["python3", "program.py"], timeout=2)
    except subprocess.TimeoutExpired:
        return "takes too long"
    if ran.returncode:
        return f"fails: {ran.stderr.decode(errors='replace').strip().splitlines()[-1]}"
    return "is right" if ran.stdout == b"60\n" else f"is wrong: {ran.stdout.decode(errors='replace').strip()}"


def main() -> None:
    with open_sandbox("docker" if "docker" in sys.argv else "confined") as sandbox:
        sandbox.put("numbers.txt", "10\n20\n30\n")
        forks = sandbox.fork(len(SUBMISSIONS))
        for (name, program), fork in zip(SUBMISSIONS.items(), forks, strict=True):
            print(name, mark(fork, program))
        print(f"numbers.txt has {sandbox.list()['numbers.txt']} bytes, as before")


if __name__ == "__main__":
    main()
