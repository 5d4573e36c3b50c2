#!/usr/bin/env python3
"""Makes the table of the fields of eksctl's ClusterConfig (crates/api/src/eksctl/fields.txt) from eksctl's Go sources.

  git clone --depth 1 --branch v0.231.0 https://github.com/eksctl-io/eksctl
  scripts/eksctl-fields.py eksctl/pkg/apis/eksctl.io/v1alpha5 crates/api/src/eksctl/fields.txt

The head of the file (lines that begin with #) stays. Types of other packages count as `any`, apart from those in FOREIGN.
"""

import pathlib
import re
import sys

ROOT = "ClusterConfig"
PLAIN = {
    "string": "string", "bool": "bool", "float64": "number", "float32": "number",
    "int": "int", "int32": "int", "int64": "int", "uint64": "int",
}
# Types of other packages that are a text, a number or true or false in a file.
FOREIGN = {
    "arn.ARN": "string", "corev1.TaintEffect": "string", "ekstypes.AuthenticationMode": "string",
    "ekstypes.AccessScopeType": "string", "ekstypes.ResolveConflicts": "string", "ipnet.IPNet": "string",
}
TYPE_META = {"apiVersion": "string", "kind": "string"}
# Taints have a decoder of their own.
TAINTS = ["taintsWrapper", "[]NodeGroupTaint"]
# A field by which its struct decodes another struct's fields as its own.
INNER = {"IdentityProviderInterface": "OIDCIdentityProvider"}

STRUCT = re.compile(r"^\s*(?:type )?(\w+) +struct \{\n(.*?)^\s*\}", re.M | re.S)
ALIAS = re.compile(r"^type (\w+) =? ?((?:map\[string\])?[\w.\[\]*]+)$|^\t(\w+) (string|int|bool)$", re.M)
FIELD = re.compile(r"^\s*(?:([\w, ]+?)\s+)?([*\[\]\w.{}]+)(?:\s+`([^`]*)`)?\s*(?://.*)?$")


def read(folder):
    """Returns the bodies of the structs, and the types that other names stand for."""
    structs, aliases = {}, {}
    for path in sorted(pathlib.Path(folder).glob("*.go")):
        if path.name.endswith("_test.go"):
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
        structs.update((m[1], m[2]) for m in STRUCT.finditer(text))
        aliases.update((m[1] or m[3], m[2] or m[4]) for m in ALIAS.finditer(text))
    return structs, aliases


def fields(name, structs, aliases):
    """Returns the fields of a struct by their JSON names, with the Go types."""
    found = {}
    for line in structs[name].splitlines():
        match = FIELD.match(line)
        if not match or line.strip().startswith("//"):
            continue
        names, kind, tags = match[1], match[2], match[3] or ""
        tag = re.search(r'json:"([^"]*)"', tags)
        json = tag[1].split(",")[0] if tag else ""
        if json == "-":
            continue
        if kind in INNER:
            found.update(fields(INNER[kind], structs, aliases))
            continue
        embedded = names is None and not json
        if embedded or (tag and not json and "inline" in tag[1]):
            inner = kind.lstrip("*")
            if inner == "metav1.TypeMeta":
                found.update(TYPE_META)
            elif inner in structs:
                # A field of the outer struct hides one of the inner struct.
                found = {**fields(inner, structs, aliases), **found}
            continue
        for own in (names or "").split(","):
            own = own.strip()
            if own[:1].isupper() or json:
                found[json or own] = kind
    return found


def shown(kind, structs, aliases):
    """Returns a Go type in the words of the table, and the structs in it."""
    kind = kind.lstrip("*")
    if kind in TAINTS:
        return "taints", ["NodeGroupTaint"]
    if kind.startswith("[]"):
        inner, used = shown(kind[2:], structs, aliases)
        return ("string" if kind == "[]byte" else "[]" + inner), used
    if match := re.match(r"map\[\w+\](.*)", kind):
        inner, used = shown(match[1], structs, aliases)
        return ("any" if inner == "any" else "{}" + inner), used
    if kind in PLAIN or kind in FOREIGN:
        return PLAIN.get(kind) or FOREIGN[kind], []
    if kind in structs:
        return (kind, [kind])
    if kind in aliases:
        return shown(aliases[kind], structs, aliases)
    return "any", []


def main(folder, table):
    structs, aliases = read(folder)
    written, waiting, rows = set(), [ROOT], {}
    while waiting:
        name = waiting.pop()
        if name in written:
            continue
        written.add(name)
        rows[name] = {}
        for field, kind in fields(name, structs, aliases).items():
            rows[name][field], used = shown(kind, structs, aliases)
            waiting.extend(used)
    empty = {name for name, own in rows.items() if not own}
    head = [line for line in pathlib.Path(table).read_text().splitlines() if line.startswith("#")]
    lines = head
    for name in sorted(rows, key=lambda name: (name != ROOT, name)):
        if name not in empty:
            lines.append(name)
            lines += [f"  {field} {kind if kind not in empty else 'any'}" for field, kind in sorted(rows[name].items())]
    pathlib.Path(table).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
