#!/usr/bin/env python3
"""Generate crates/schema/src/table.tsv, the one schema table.

    scripts/generate-schema.py [--check]

Inputs, in crates/schema/data/:
  kubernetes-fields-1.36.tsv.gz  every field of every API type: JSON type, reference, protobuf tag, list type, merge key
  go-structs-1.36.tsv.gz         Go type and tag options of each struct field (scripts/go-struct-facts.py wrote it)
  overrides.tsv                  facts that take the place of those in the second file, and structs that applies own as one value

The output is read by src/table.rs. A line `=NAME` (with `atomic` when server-side apply owns it as one value) opens a type; the lines after it are its fields
in Go's order, tab-separated:
  name, type, presence, Go type, protobuf path, flags, list type or map type, list map keys, merge key, merge strategy
list map keys may give a default: key=default
type      [] list, {} map, then @NAME or a letter (see LETTERS)
presence  o  omitempty: dropped when zero          p  pointer with omitempty: dropped when absent
          v  a value that is always written        n  always written, null when nil or empty
          e  always written, null when nil, empty stays empty (pointers; lists of kinds that upstream stores as JSON)
protobuf path: tags from the outer message inwards; more than one where Go embeds a struct inline
flags     r  required in OpenAPI
"""

import collections
import csv
import gzip
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "crates/schema"
DATA = ROOT / "data"
TABLE = ROOT / "src/table.tsv"

META = "apimachinery.pkg.apis.meta.v1"
LETTERS = {
    "apimachinery.pkg.api.resource.Quantity": "Q",
    "apimachinery.pkg.util.intstr.IntOrString": "I",
    f"{META}.Time": "t",
    f"{META}.MicroTime": "m",
    f"{META}.FieldsV1": "f",
    "apimachinery.pkg.runtime.RawExtension": "r",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON": "j",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool": "x",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray": "y",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray": "z",
}
SCALARS = {("string", ""): "s", ("string", "byte"): "B", ("boolean", ""): "b", ("integer", "int32"): "i",
           ("integer", "int64"): "l", ("number", "double"): "d", ("integer", ""): "i"}
# Keys of lists that have a default: items may leave them out.
# (Keys that Go always writes have Go's zero as default; src/schema/table.rs adds those.)
KEY_DEFAULTS = {"api.core.v1.ContainerPort": ("protocol", "TCP"), "api.core.v1.ServicePort": ("protocol", "TCP"),
                "api.core.v1.LocalObjectReference": ("name", "")}
# A version that 1.36 no longer has and we still serve: same fields, its own package name.
ALIASES = {"api.node.v1": "api.node.v1beta1"}

Fact = collections.namedtuple("Fact", "go under options path")


def read_gz(name):
    return gzip.open(DATA / name, "rt", encoding="utf-8")


def go_structs():
    """{package.struct: {json name: Fact}}, inline structs flattened with the tags that lead to them."""
    raw = collections.defaultdict(list)
    for line in read_gz("go-structs-1.36.tsv.gz"):
        package, struct, name, go, under, options, tag = line.rstrip("\n").split("\t")
        key = f"{package.removeprefix('k8s.io/').replace('/', '.')}.{struct}"
        numbers = [part for part in tag.split(",") if part.isdigit()]
        raw[key].append((name, go, under, options, numbers[0] if numbers else ""))

    def flatten(key):
        fields = {}
        for name, go, under, options, number in raw[key]:
            if "inline" in options.split(","):
                inner = under.removeprefix("*").removeprefix("k8s.io/").replace("/", ".")
                for field, fact in flatten(inner).items():
                    path = f"{number}.{fact.path}" if number and fact.path else fact.path
                    fields.setdefault(field, fact._replace(path=path))
            else:
                fields[name] = Fact(go, under, options, number)
        return fields

    return {key: flatten(key) for key in list(raw)}


def overrides():
    facts = {}
    for line in (DATA / "overrides.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, field, go, options, path = (line.split("\t") + ["", ""])[:5]
            facts[kind, field] = Fact(go, go, options, path)
    return facts


def expression(row):
    def one(ref, json_type, fmt):
        if ref:
            return LETTERS.get(ref, f"@{ref}")
        return SCALARS.get((json_type, fmt), "j")

    kind = row["json_type"]
    if kind == "array":
        if row["item_type"] == "integer":
            item = "l" if "int64" in row["protobuf_type"] or row["type"].startswith("api.resource") else "i"
        else:
            item = one(row["ref"], row["item_type"] or "string", "")
        return f"[]{item}"
    if kind == "map":
        return "{}" + one(row["ref"], "string", "byte" if row["format"] == "byte" else "")
    if kind == "object" and not row["ref"]:
        return "j"
    return one(row["ref"], kind, row["format"])


def refine(expr, fact):
    """What the published table leaves open and Go settles: bytes in maps, lists in maps, the width of list items."""
    if fact.under == "map[string][]uint8":
        return "{}B"
    if fact.under == "map[string][]string":
        return "{}[]s"
    if fact.under in ("[]int64", "[]int32"):
        return "[]l" if fact.under == "[]int64" else "[]i"
    return expr


def presence(kind, fact, expr):
    nil = "e" if kind.startswith("apiextensions") else "n"
    nilable = fact.go.startswith(("*", "[]", "map[")) or expr.startswith(("[]", "{}")) or expr == "B"
    omit = "omitempty" in fact.options
    if "omitzero" in fact.options:
        return "p"
    if fact.go.startswith("*"):
        return "p" if omit else "e"
    if nilable:
        return "o" if omit else nil
    if expr[0] in "@QItmrj":
        return "v"
    return "o" if omit else "v"


def main():
    structs, manual = go_structs(), overrides()
    rows = list(csv.DictReader(read_gz("kubernetes-fields-1.36.tsv.gz"), delimiter="\t"))
    for row in list(rows):
        package, _, name = row["type"].rpartition(".")
        if package in ALIASES:
            copy = dict(row, type=f"{ALIASES[package]}.{name}")
            owner = copy["ref"].rpartition(".")
            if owner[0] == package:
                copy["ref"] = f"{ALIASES[package]}.{owner[2]}"
            rows.append(copy)
    types = collections.OrderedDict()
    for row in rows:
        types.setdefault(row["type"], []).append(row)
    known = set(types) | set(LETTERS)
    for row in rows:
        if row["ref"] and row["ref"] not in known:
            types.setdefault(row["ref"], [])
    lines = []
    for kind in sorted(types):
        lines.append(f"={kind}\tatomic" if (kind, "") in manual else f"={kind}")
        order = list(structs.get(kind) or {})
        fields = {row["field"] for row in types[kind]}

        def place(row):
            """Go's order; fields that the struct facts do not know come last, by protobuf tag, as they were added last."""
            if row["field"] in order:
                return order.index(row["field"]), 0, row["field"]
            newest = ["kind", "apiVersion", "metadata"] if "apiVersion" in fields else []
            known = newest.index(row["field"]) - len(newest) if row["field"] in newest else len(order)
            return known, int(row["protobuf_tag"] or 0), row["field"]

        for row in sorted(types[kind], key=place):
            expr = expression(row)
            fact = manual.get((kind, row["field"])) or structs.get(kind, {}).get(row["field"])
            if fact is None:
                sys.exit(f"no struct facts of {kind}.{row['field']}: add them to overrides.tsv")
            expr = refine(expr, fact)
            path = "" if row["field"] in ("apiVersion", "kind") and row["protobuf_tag"] == "" else fact.path or row["protobuf_tag"]
            if kind.endswith("List") and row["field"] == "items" and not path:
                path = "2"
            if row["field"] == "metadata" and not path:
                path = "1"
            listing = row["list_type"] or row["map_type"]
            keys = row["list_map_keys"]
            key, default = KEY_DEFAULTS.get(row["ref"], ("", ""))
            if key and key in keys.split(","):
                keys = ",".join(f"{own}={default}" if own == key else own for own in keys.split(","))
            # An empty list of owners is not the same as none: it makes the server forget them.
            here = "p" if row["field"] == "managedFields" else presence(kind, fact, expr)
            cells = [row["field"], expr, here, fact.go, path, "r" if row["required"] else "", listing,
                     keys, row["patch_merge_key"], row["patch_strategy"]]
            lines.append("\t".join(cells).rstrip("\t"))
    text = "\n".join(lines) + "\n"
    if "--check" in sys.argv:
        sys.exit(0 if TABLE.read_text() == text else "table.tsv is not what the script generates")
    TABLE.write_text(text)


main()
