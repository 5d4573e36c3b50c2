#!/usr/bin/env python3
"""Derive Go facts about Kubernetes API structs from a kube-apiserver binary.

The published field table says what a field is in JSON; it does not say whether the Go field is a pointer or carries
`omitempty`, and both decide how an object is written back. The binary holds that in its reflection data.

    scripts/go-struct-facts.py /path/to/kube-apiserver | gzip -9n > crates/schema/data/go-structs-1.36.tsv.gz

Each line: package, struct, JSON name, Go type, underlying type, tag options (`omitempty`, `omitzero`, `inline`), protobuf tag.
The lines of a struct are in the order of its fields, which is the order in which Go writes them.
Works on statically linked, non-PIE ELF binaries (the released ones). See scripts/generate-schema.py for the use.
"""

import re
import struct
import sys

KINDS = {1: "bool", 2: "int", 3: "int8", 4: "int16", 5: "int32", 6: "int64", 7: "uint", 8: "uint8", 9: "uint16",
         10: "uint32", 11: "uint64", 12: "uintptr", 13: "float32", 14: "float64", 24: "string"}
INTERFACE, MAP, POINTER, SLICE, STRUCT = 20, 21, 22, 23, 25
TYPE_HEADER = 48
PACKAGES = ("k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/apiextensions-apiserver/", "k8s.io/kube-aggregator/")


class Binary:
    def __init__(self, path):
        self.data = open(path, "rb").read()
        section_headers, = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names_index = struct.unpack_from("<HHH", self.data, 0x3A)
        sections = [struct.unpack_from("<IIQQQQ", self.data, section_headers + i * size) for i in range(count)]
        names = sections[names_index][4]
        for name, _, _, address, offset, length in sections:
            end = self.data.index(b"\0", names + name)
            if self.data[names + name:end] == b".rodata":
                self.address, self.offset, self.length = address, offset, length

    def at(self, address):
        return address - self.address + self.offset

    def holds(self, address):
        return self.address <= address < self.address + self.length

    def name(self, address):
        """A reflect name: its text and its tag."""
        at = self.at(address)
        flags = self.data[at]
        text, at = self.counted(at + 1)
        tag = self.counted(at)[0] if flags & 2 else ""
        return text, tag

    def counted(self, at):
        length = shift = 0
        while True:
            byte = self.data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return self.data[at:at + length].decode("utf-8", "replace"), at + length

    def header(self, address):
        _, _, _, tflag, _, _, kind, _, _, string, _ = struct.unpack_from("<QQIBBBBQQii", self.data, self.at(address))
        return kind & 31, tflag, string

    def type_name(self, address):
        """The type's own text, as reflection prints it: `*v1.PodSpec`."""
        _, tflag, string = self.header(address)
        text = self.name(self.address + string)[0]
        return text[1:] if tflag & 2 else text

    def package(self, address):
        kind, tflag, _ = self.header(address)
        if not tflag & 1:
            return ""
        extra = {STRUCT: 32, POINTER: 8, SLICE: 8, INTERFACE: 32}.get(kind, 0)
        if kind == MAP:
            extra = 64
        offset, = struct.unpack_from("<i", self.data, self.at(address) + TYPE_HEADER + extra)
        return self.name(self.address + offset)[0] if offset else ""

    def underlying(self, address):
        """The shape below named types: `[]string` for a named slice of a named string."""
        kind = self.header(address)[0]
        element, = struct.unpack_from("<Q", self.data, self.at(address) + TYPE_HEADER)
        if kind == POINTER:
            return "*" + self.underlying(element)
        if kind == SLICE:
            return "[]" + self.underlying(element)
        if kind == MAP:
            value, = struct.unpack_from("<Q", self.data, self.at(address) + TYPE_HEADER + 8)
            return f"map[{self.underlying(element)}]{self.underlying(value)}"
        if kind == INTERFACE:
            return "interface"
        if kind == STRUCT:
            package = self.package(address)
            return f"{package}.{self.type_name(address).split('.')[-1]}"
        return KINDS.get(kind, f"kind{kind}")

    def structs(self):
        """Every named struct of the packages asked for: (address, package, name)."""
        for at in range(self.offset, self.offset + self.length - TYPE_HEADER, 8):
            if self.data[at + 23] & 31 != STRUCT or not self.data[at + 20] & 1:
                continue
            address = at - self.offset + self.address
            try:
                name, package = self.type_name(address), self.package(address)
            except (IndexError, struct.error, ValueError):
                continue
            if package.startswith(PACKAGES) and re.fullmatch(r"\w+\.\w+", name):
                yield address, package, name.split(".")[1]

    def fields(self, address):
        first, count, _ = struct.unpack_from("<QQQ", self.data, self.at(address) + TYPE_HEADER + 8)
        for i in range(count):
            name, kind, _ = struct.unpack_from("<QQQ", self.data, self.at(first) + 24 * i)
            text, tag = self.name(name)
            embedded = self.data[self.at(name)] & 8
            yield text, tag, kind, embedded


def main():
    binary = Binary(sys.argv[1])
    structs = {}
    for address, package, name in binary.structs():
        rows = structs.setdefault((package, name), {})
        for field, tag, kind, _ in binary.fields(address):
            json_tag = re.search(r'json:"([^"]*)"', tag)
            if not json_tag:
                continue
            json_name, *options = json_tag[1].split(",")
            proto = re.search(r'protobuf:"([^"]*)"', tag)
            row = (package, name, json_name, binary.type_name(kind), binary.underlying(kind), ",".join(options), proto[1] if proto else "")
            rows[row] = None
    for _, rows in sorted(structs.items()):
        for row in rows:
            print("\t".join(row))


main()
