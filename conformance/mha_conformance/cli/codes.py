"""The exit codes of every command (MHA-CONF-6)."""

from enum import IntEnum


class Code(IntEnum):
    """0 every claim holds, 1 one does not, 2 could not run, 3 a defect of the suite itself."""

    HOLDS = 0
    FAILS = 1
    NOT_RUN = 2
    DEFECT = 3
