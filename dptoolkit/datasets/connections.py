"""The connections of the KDD Cup 1999: 41 columns, of which three hold names, and a label that is a name.

Names become their numbers in the lists below, which are those of the contest's description: public, whatever a file
holds. Other columns keep their units.
"""

from __future__ import annotations

from pathlib import Path

from dptoolkit.datasets import readers
from dptoolkit.types import Array

PROTOCOLS = ("icmp", "tcp", "udp")
SERVICES = (
    "IRC", "X11", "Z39_50", "aol", "auth", "bgp", "courier", "csnet_ns", "ctf", "daytime", "discard", "domain",
    "domain_u", "echo", "eco_i", "ecr_i", "efs", "exec", "finger", "ftp", "ftp_data", "gopher", "harvest", "hostnames",
    "http", "http_2784", "http_443", "http_8001", "imap4", "iso_tsap", "klogin", "kshell", "ldap", "link", "login",
    "mtp", "name", "netbios_dgm", "netbios_ns", "netbios_ssn", "netstat", "nnsp", "nntp", "ntp_u", "other", "pm_dump",
    "pop_2", "pop_3", "printer", "private", "red_i", "remote_job", "rje", "shell", "smtp", "sql_net", "ssh", "sunrpc",
    "supdup", "systat", "telnet", "tftp_u", "tim_i", "time", "urh_i", "urp_i", "uucp", "uucp_path", "vmnet", "whois",
)  # fmt: skip
FLAGS = ("OTH", "REJ", "RSTO", "RSTOS0", "RSTR", "S0", "S1", "S2", "S3", "SF", "SH")
LABELS = (
    "back", "buffer_overflow", "ftp_write", "guess_passwd", "imap", "ipsweep", "land", "loadmodule", "multihop",
    "neptune", "nmap", "normal", "perl", "phf", "pod", "portsweep", "rootkit", "satan", "smurf", "spy", "teardrop",
    "warezclient", "warezmaster",
)  # fmt: skip
COLUMNS = 41
_NAMES = {1: PROTOCOLS, 2: SERVICES, 3: FLAGS, COLUMNS: tuple(f"{label}." for label in LABELS)}


def read(path: str | Path) -> tuple[Array, Array]:
    """(rows, numbers of their labels).

    Privacy
    -------
    Reading releases nothing. Errors tell a line number and what was expected there, never what the line holds.
    """
    codes = {
        place: {name.encode(): str(code).encode() for code, name in enumerate(names)} for place, names in _NAMES.items()
    }
    lines = readers.read_text(path, readers.MAX_BYTES).splitlines()
    for i, line in enumerate(lines):
        cells = line.split(b",")
        try:
            for place, numbers in codes.items():
                cells[place] = numbers[cells[place]]
        except (IndexError, KeyError):
            expected = f"{COLUMNS} columns and a label, with known names of a protocol, a service, a flag and the label"
            raise readers.fault(path, i + 1, expected) from None
        lines[i] = b",".join(cells)
    table = readers.numbers_of(b"\n".join(lines), COLUMNS + 1, b",", path, above=0)
    return table[:, :-1].copy(), table[:, -1]
