#!/usr/bin/env python3
"""Draws a terminal session (text on stdin) as an SVG on stdout: scripts/terminal-svg.py < session.txt > docs/terminal.svg

Lines that start with "$ " are commands and stand out; everything else is output.
"""

import html
import sys

CHAR, LINE, PAD = 7.25, 17, 16


def main() -> None:
    lines = [line.rstrip("\n") for line in sys.stdin]
    width = max(len(line) for line in lines) * CHAR + 2 * PAD
    height = len(lines) * LINE + 2 * PAD + 24
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="12">')
    print(f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#10151c"/>')
    for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{PAD + 6 + index * 18}" cy="16" r="5" fill="{colour}"/>')
    for index, line in enumerate(lines):
        y = 24 + PAD + (index + 0.7) * LINE
        colour = "#7ee0c3" if line.startswith("$ ") else "#d5dde6"
        print(f'<text x="{PAD}" y="{y:.1f}" fill="{colour}" xml:space="preserve">{html.escape(line)}</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
