"""Draws the bandwidths of a cost.json as SVG, on standard output. Python's own library only."""

import json
import math
import sys

with open(sys.argv[1]) as file:
    data = json.load(file)
rows = data["bandwidth"]
width, height, left, right, top, bottom = 760, 440, 100, 20, 40, 60
x0, x1 = (math.log2(rows[i]["bytes"]) for i in (0, -1))
peak = max(max(row["ours_busbw_gbs"], row["direct_busbw_gbs"]) for row in rows)
floor = min(min(row["ours_busbw_gbs"], row["direct_busbw_gbs"]) for row in rows)
y0, y1 = math.floor(math.log10(floor)), math.ceil(math.log10(peak))


def x(size):
    return left + (math.log2(size) - x0) / max(x1 - x0, 1) * (width - left - right)


def y(bandwidth):
    return height - bottom - (math.log10(bandwidth) - y0) / max(y1 - y0, 1) * (height - top - bottom)


def name(size):
    for unit, step in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << step:
            return f"{size >> step} {unit}"
    return f"{size} B"


out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
       f'<rect width="{width}" height="{height}" fill="white"/>']
what = "stand-in, not hardware" if data["standin"] else f"NCCL {data['nccl_version']}"
out.append(f'<text x="{width / 2}" y="22" text-anchor="middle" font-size="15">{data["operation"]}, {data["ranks"]} ranks, bus bandwidth ({what})</text>')
for power in range(y0, y1 + 1):
    at = y(10.0 ** power)
    out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
    out.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** power:g} GB/s</text>')
for i, row in enumerate(rows):
    if i % 2 == 0:
        out.append(f'<text x="{x(row["bytes"]):.1f}" y="{height - bottom + 20}" text-anchor="middle">{name(row["bytes"])}</text>')
for key, colour, dash, words in (("direct_busbw_gbs", "#888", "", "direct NCCL"), ("ours_busbw_gbs", "#d62728", "6 4", "flagos_comm")):
    points = " ".join(f'{x(row["bytes"]):.1f},{y(row[key]):.1f}' for row in rows)
    out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>')
    at = height - 14
    start = left + (0 if dash else 160)
    out.append(f'<line x1="{start}" x2="{start + 30}" y1="{at - 4}" y2="{at - 4}" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>')
    out.append(f'<text x="{start + 36}" y="{at}">{words}</text>')
out.append("</svg>")
print("\n".join(out))
