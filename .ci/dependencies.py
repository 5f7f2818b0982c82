#!/usr/bin/env python3
"""Checks licences, sources and duplicate versions of all dependencies by deny.toml, from what cargo knows without network."""
import collections, json, re, subprocess, sys, tomllib

rules = tomllib.load(open("deny.toml", "rb"))
targets = [word for target in rules["graph"]["targets"] for word in ("--filter-platform", target)]
metadata = json.loads(subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--offline", *targets],
                                     check=True, capture_output=True, text=True).stdout)
used = {node["id"] for node in metadata["resolve"]["nodes"]}
packages = [package for package in metadata["packages"] if package["id"] in used]
allowed = set(rules["licenses"]["allow"])
faults = []


def may_be_used(expression):
    """Whether an SPDX expression can be met with allowed licences: OR chooses, AND needs both; an old `/` means OR."""
    words = re.findall(r"\(|\)|[^\s()]+(?: WITH [^\s()]+)?", expression.replace("/", " OR "))
    words = ["(" if word == "(" else ")" if word == ")" else {"OR": "or", "AND": "and"}.get(word, repr(word in allowed)) for word in words]
    return eval(" ".join(words), {"__builtins__": {}})  # nothing but brackets, or, and, True, False


for package in packages:
    name = f"{package['name']} {package['version']}"
    if package["source"] is None:
        continue
    if package["source"] != "registry+https://github.com/rust-lang/crates.io-index":
        faults.append(f"{name} comes from {package['source']}, not from crates.io")
    if not package["license"] or not may_be_used(package["license"]):
        faults.append(f"{name} has the licence {package['license']}, of which deny.toml allows none")

versions = collections.defaultdict(set)
for package in packages:
    versions[package["name"]].add(package["version"])
skipped = collections.defaultdict(set)
for entry in rules["bans"]["skip"]:
    name, version = entry["crate"].split("@")
    skipped[name].add(version)
for name, found in sorted(versions.items()):
    left = found - skipped[name]
    if len(left) > 1:
        faults.append(f"{name} is built in the versions {', '.join(sorted(found))}; deny.toml skips {', '.join(sorted(skipped[name])) or 'none'}")
for name, skips in sorted(skipped.items()):
    for version in sorted(skips - versions[name]):
        faults.append(f"deny.toml skips {name}@{version}, which is no longer there: remove that line")

for fault in faults:
    print(f"error: {fault}", file=sys.stderr)
if faults:
    sys.exit(1)
print(f"{len(packages)} packages: licences, sources and duplicate versions are as deny.toml says")
