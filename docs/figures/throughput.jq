# Creates the SVG of `draw`. The input is the array of all lines of a results.jsonl.

# The cell of one connection with a delay of 50 ms in each direction. An error if the benchmark did not measure the cell.
def cell(path; protocol; profile):
  [.[] | select(.type == "cell" and .path == path and .protocol == protocol and .profile == profile
    and .one_way_delay_ms == 50 and .connections == 1 and .status == "ok")]
  | if length == 1 then .[0]
    else error("\(length) measured cells of \(path) \(protocol // "") \(profile), 50 ms, 1 connection; expected 1") end;

# Formats 4360 as 4,360.
def thousands: round | tostring | [while(length > 0; .[:-3]) | .[-3:]] | reverse | join(",");

def bar_left: 230;
def bar_width_max: 320;

def bar($row; $most):
  $row.cell.mbit_s as $rate
  | ($row.index * 44 + 74) as $top
  | ([$rate.median / $most * bar_width_max | round, 1] | max) as $width
  | "<text class=\"word\" x=\"\(bar_left - 12)\" y=\"\($top + 19)\" text-anchor=\"end\">\($row.word)</text>
<rect class=\"\($row.class)\" x=\"\(bar_left)\" y=\"\($top)\" width=\"\($width)\" height=\"28\" rx=\"3\"/>
<text class=\"figure\" x=\"\(bar_left + $width + 8)\" y=\"\($top + 19)\">\($rate.median | thousands)<tspan class=\"note\" dx=\"8\">\($rate.min | thousands)..\($rate.max | thousands)</tspan></text>";

[
  {word: "direct", class: "direct", cell: cell("direct"; null; "None")},
  {word: "tunnel, kernel's buffers", class: "tunnel", cell: cell("tunnel"; "native"; "None")},
  {word: "tunnel by default", class: "tunnel", cell: cell("tunnel"; "native"; "WAN")}
]
| to_entries | map(.value + {index: .key})
| (map(.cell.mbit_s.median) | max) as $most
| (.[0].cell) as $direct
| (map(.cell.congestion_control) | unique | if length == 1 and .[0] then .[0] | ascii_upcase
    else error("the cells have the congestion controls \(.); expected the same in all") end) as $control
| ($direct.sysctls["net.ipv4.tcp_wmem"] | split(" ") | last | tonumber / 1048576) as $send_mib
| "One TCP connection at 100 ms round trip, Mbit/s" as $title
| "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 264\" width=\"700\" height=\"264\" role=\"img\" aria-label=\"\($title): \(map("\(.word) \(.cell.mbit_s.median | thousands)") | join(", "))\">
<style>
text { font-family: system-ui, -apple-system, \"Segoe UI\", Helvetica, Arial, sans-serif; fill: #1f2328; }
.ground { fill: #ffffff; stroke: #d1d9e0; }
.title { font-size: 17px; font-weight: 600; }
.word { font-size: 14px; }
.figure { font-size: 14px; font-weight: 600; }
.note { font-size: 12px; font-weight: 400; fill: #59636e; }
.direct { fill: #818b98; }
.tunnel { fill: #0969da; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.ground { fill: #0d1117; stroke: #3d444d; }
.note { fill: #9198a1; }
.tunnel { fill: #4493f8; }
}
</style>
<rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"699\" height=\"263\" rx=\"6\"/>
<text class=\"title\" x=\"24\" y=\"40\">\($title)</text>
\(map(bar(.; $most)) | join("\n"))
<text class=\"note\" x=\"24\" y=\"226\">Received payload: median and range of \($direct.rounds) rounds of \($direct.duration_s) s, the first \($direct.warm_up_s) s left out.</text>
<text class=\"note\" x=\"24\" y=\"244\">Congestion control \($control) in all three. Send buffers of the applications: up to \($send_mib) MiB. Measured at commit \($commit).</text>
</svg>"
