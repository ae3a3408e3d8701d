"""Reads a snapshot with the client that openapi-python-client generates."""

import sys

from freshet import AuthenticatedClient
from freshet.api.snapshots import read_snapshot
from freshet.models import Freshness, Problem, ProblemCode, Read, ReadSnapshotFacet, ReadSnapshotSource
from freshet.types import Unset

with AuthenticatedClient(base_url=sys.argv[1], token="none", timeout=None) as client:
    read = read_snapshot.sync(ReadSnapshotSource.NEXON, ReadSnapshotFacet.CHARACTER, "somebody", client=client, wait="20s")
    if not isinstance(read, Read) or read.freshness != Freshness.FRESH or isinstance(read.snapshot, Unset):
        sys.exit(f"python: got {read}, want a fresh snapshot")
    if not isinstance(read.snapshot["item-equipment"], dict):
        sys.exit("python: got a snapshot without the document item-equipment")
    invalid = read_snapshot.sync(ReadSnapshotSource.NEXON, ReadSnapshotFacet.CHARACTER_BY_OCID, "a b", client=client)
    if not isinstance(invalid, Problem) or invalid.code != ProblemCode.BAD_KEY:
        sys.exit(f"python: got {invalid}, want the problem {ProblemCode.BAD_KEY}")
    print(f"python: read a snapshot that is {read.freshness}")
