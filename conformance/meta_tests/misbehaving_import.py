"""Cannot be imported, or ends the process that tries: ``MISBEHAVE`` says how."""

import os
import signal
import sys

if os.environ.get("MISBEHAVE") == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if os.environ.get("MISBEHAVE") == "exit":
    sys.exit(0)
raise RuntimeError("no driver on this machine")
