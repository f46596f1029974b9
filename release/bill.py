"""The bill of materials of a wheel: CycloneDX 1.6, from its metadata and constraints.txt.

Components are the packages that the wheel requires, and those of its extras (optional), with the
versions that the tests ran with.
"""

from __future__ import annotations

import io
import re
import uuid
import zipfile
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from hashlib import sha256
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"


def bill_of(wheel: bytes, date: str) -> bytes:
    """The document; `date`: seconds since 1970, so that it is the same for the same wheel."""
    metadata = _metadata(wheel)
    digest = sha256(wheel).hexdigest()
    bom = Bom(serial_number=uuid.UUID(digest[:32]))
    bom.metadata.timestamp = datetime.fromtimestamp(int(date), UTC)
    own = _component(metadata["Name"], metadata["Version"], ComponentType.APPLICATION)
    own.licenses.add(DisjunctiveLicense(id=metadata["License-Expression"]))
    own.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    bom.metadata.component = own
    parts = _required(metadata)
    bom.components.update(parts)
    bom.register_dependency(own, parts)
    document: str = JsonV1Dot6(bom).output_as_string(indent=1)
    return document.encode()


def _metadata(wheel: bytes) -> Message:
    with zipfile.ZipFile(io.BytesIO(wheel)) as files:
        name = next(n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(files.read(name).decode())


def _required(metadata: Message) -> list[Component]:
    """A component of each package, required or optional, in the order of names."""
    optional: dict[str, bool] = {}
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        name = str(canonicalize_name(requirement.name))
        is_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if "dev" not in re.findall(r'extra == "(\w+)"', str(requirement.marker)):
            optional[name] = is_extra and optional.get(name, True)
    found = []
    versions = _versions()
    for name in sorted(optional):
        part = _component(name, versions.get(name), ComponentType.LIBRARY)
        part.scope = ComponentScope.OPTIONAL if optional[name] else ComponentScope.REQUIRED
        found.append(part)
    return found


def _versions() -> dict[str, str]:
    pairs = re.findall(r"^([\w.\-]+)==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in pairs}


def _component(name: str, version: str | None, kind: ComponentType) -> Component:
    url = PackageURL("pypi", None, name, version)
    return Component(name=name, version=version, type=kind, purl=url, bom_ref=str(url))
