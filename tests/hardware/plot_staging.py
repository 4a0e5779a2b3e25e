"""Draws the times of a staging.json as SVG, on standard output. Python's own library only."""

import json
import math
import sys

with open(sys.argv[1]) as file:
    data = json.load(file)
rows = data["rows"]
ways = (("ours_ms", "#d62728", "flagos_comm"), ("halves_ms", "#888", "whole buffer, in halves"), ("whole_ms", "#444", "whole buffer, one thread a rank"))
width, height, left, right, top, bottom = 760, 440, 90, 20, 40, 80
times = [row[key] for row in rows for key, _, _ in ways]
y0, y1 = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))


def y(milliseconds):
    return height - bottom - (math.log10(milliseconds) - y0) / max(y1 - y0, 1) * (height - top - bottom)


def name(size):
    for unit, step in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << step:
            return f"{size >> step} {unit}"
    return f"{size} B"


out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
       f'<rect width="{width}" height="{height}" fill="white"/>']
what = " (stand-in, not hardware)" if data["standin"] else ""
out.append(f'<text x="{width / 2}" y="22" text-anchor="middle" font-size="15">{data["operation"]} of device buffers on the host tier, {data["ranks"]} ranks: time{what}</text>')
for power in range(y0, y1 + 1):
    at = y(10.0 ** power)
    out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
    out.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** power:g} ms</text>')
step = (width - left - right) / len(rows)
bar = step / (len(ways) + 1)
for i, row in enumerate(rows):
    for j, (key, colour, _) in enumerate(ways):
        x = left + i * step + (j + 0.5) * bar
        at = y(row[key])
        out.append(f'<rect x="{x:.1f}" y="{at:.1f}" width="{bar * 0.9:.1f}" height="{height - bottom - at:.1f}" fill="{colour}"/>')
        if j > 0:
            ratio = row[key.replace("_ms", "_ratio")]["median"]
            out.append(f'<text x="{x + bar * 0.45:.1f}" y="{at - 4:.1f}" text-anchor="middle" font-size="10">{ratio:.1f}×</text>')
    out.append(f'<text x="{left + (i + 0.5) * step:.1f}" y="{height - bottom + 18}" text-anchor="middle">{name(row["bytes"])} {row["datatype"]}</text>')
for j, (_, colour, words) in enumerate(ways):
    x = left + j * 230
    out.append(f'<rect x="{x}" y="{height - 34}" width="14" height="14" fill="{colour}"/>')
    out.append(f'<text x="{x + 20}" y="{height - 22}">{words}</text>')
out.append("</svg>")
print("\n".join(out))
