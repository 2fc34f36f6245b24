//! The table at the end of the log: a line for each cell, those of one environment and number of
//! connections below each other, so that every route stands beside the direct one. Pure; at most 100
//! columns.

use muxtunnel_bench_api::result::{Cell, Status};

const HEAD: [&str; 3] = [
    "  delay              |        |         Mbit/s         |     of     RTT   CPU s",
    " one-way tuning conns| route  |  median       min..max | direct      ms  per GB carr.",
    "---------------------+--------+------------------------+-----------------------------",
];

/// Draws all cells.
#[must_use]
pub fn render(cells: &[Cell]) -> String {
    let mut table: Vec<String> = HEAD.iter().map(ToString::to_string).collect();
    let mut above = None;
    for cell in cells {
        let place = place(cell);
        let shown = if above.as_ref() == Some(&place) {
            ""
        } else {
            &place
        };
        table.push(format!("{shown:21}|{}", figures(cell)));
        above = Some(place);
    }
    table.push(
        "Mbit/s: 10^6 bit/s of payload at the receiver, median of the rounds; RTT: idle, median of 20."
            .into(),
    );
    table.join("\n")
}

/// 21 columns that the cells that are compared have in common.
fn place(cell: &Cell) -> String {
    let tuning: String = cell.tuning.chars().take(6).collect();
    let delay = format!("{} ms", cell.one_way_delay_ms);
    format!("{delay:>8} {tuning:6} {:>4} ", cell.connections)
}

fn figures(cell: &Cell) -> String {
    let route = cell.protocol.clone();
    let route: String = route.unwrap_or_else(|| cell.path.to_string());
    let route: String = route.chars().take(6).collect();
    // Direct is what the others are compared with.
    let ratio = cell.ratio_to_direct.filter(|_| cell.protocol.is_some());
    let two_digits = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    let carriers = cell.carriers.map_or("-".into(), |count| count.to_string());
    format!(
        " {route:6} |{}| {:>6} {:>7} {:>7} {carriers:>5}",
        rates(cell),
        two_digits(ratio),
        rtt(cell),
        two_digits(cell.cpu_s_per_gb),
    )
}

/// 24 columns: median and range, or why there is none.
fn rates(cell: &Cell) -> String {
    let code = || cell.code.clone().unwrap_or_default();
    let (text, range) = match (cell.status, cell.mbit_s) {
        (Status::Ok, Some(rate)) => (
            figure(rate.median),
            format!("{}..{}", figure(rate.min), figure(rate.max)),
        ),
        (Status::Refused, _) => ("refused".into(), code()),
        _ => ("failed".into(), code()),
    };
    format!("{text:>8} {range:>14} ")
}

fn rtt(cell: &Cell) -> String {
    match cell.rtt_ms {
        Some(rtt) if rtt >= 1000.0 => format!("{rtt:.0}"),
        Some(rtt) if rtt >= 10.0 => format!("{rtt:.1}"),
        Some(rtt) => format!("{rtt:.2}"),
        None => "-".into(),
    }
}

/// Three significant digits or all whole ones: `0.042`, `3.14`, `22.6`, `226`, `4213`.
#[must_use]
pub fn figure(mbit_s: f64) -> String {
    match mbit_s {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muxtunnel_bench_api::Route;
    use muxtunnel_bench_api::result::Spread;

    use super::*;

    fn cell(route: &Route, connections: u32, rate: Option<(f64, f64, f64)>) -> Cell {
        let is_tunnel = *route != Route::Direct;
        Cell {
            path: route.path(),
            protocol: route.protocol(),
            one_way_delay_ms: 50,
            rtt_ms: Some(100.44),
            tuning: "None".into(),
            connections,
            rounds: 3,
            duration_s: 5,
            warm_up_s: 2,
            mbit_s: rate.map(|(median, min, max)| Spread { median, min, max }),
            ratio_to_direct: Some(if is_tunnel { 0.984 } else { 1.0 }),
            cpu_s_per_gb: is_tunnel.then_some(1.33),
            status: if rate.is_some() {
                Status::Ok
            } else {
                Status::Refused
            },
            code: rate.is_none().then(|| "MT0506".into()),
            reason: None,
            iperf: None,
            kernel: None,
            congestion_control: None,
            carriers: is_tunnel.then_some(4),
            sysctls: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_compared_stands_below_each_other() {
        let [jmux, native] = ["Jmux", "Native"].map(|name| Route::Tunnel(name.into()));
        let cells = [
            cell(&Route::Direct, 1, Some((226.0, 207.4, 227.1))),
            cell(&jmux, 1, Some((222.4, 219.0, 223.0))),
            cell(&native, 1, Some((822.4, 819.0, 823.0))),
            cell(&Route::Direct, 10, Some((48_000.4, 47_000.0, 49_123.0))),
            cell(&jmux, 10, None),
        ];
        let table = render(&cells);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[3..8],
            [
                "   50 ms None      1 | direct |     226       207..227 |      -   100.4       -     -",
                "                     | jmux   |     222       219..223 |   0.98   100.4    1.33     4",
                "                     | native |     822       819..823 |   0.98   100.4    1.33     4",
                "   50 ms None     10 | direct |   48000   47000..49123 |      -   100.4       -     -",
                "                     | jmux   | refused         MT0506 |   0.98   100.4    1.33     4",
            ]
        );
        assert_eq!(lines.len(), 9);
        let bars = |line: &str| {
            let bars = line.char_indices().filter(|(_, c)| matches!(c, '|' | '+'));
            bars.map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert!(lines[..8].iter().all(|line| bars(line) == bars(lines[0])));
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let protocol = Route::Tunnel("a-name-of-thirty-two-characters".into());
        let mut wide = cell(&protocol, 256, Some((123_456.0, 123_456.0, 123_456.0)));
        wide.one_way_delay_ms = 10_000;
        wide.tuning = "a-name-of-thirty-two-characters".into();
        wide.rtt_ms = Some(20_000.0);
        wide.cpu_s_per_gb = Some(123.0);
        wide.carriers = Some(32 * 64 * 16);
        let widths = render(&[wide])
            .lines()
            .map(|line| line.chars().count())
            .max();
        assert!(widths <= Some(100), "{widths:?}");
    }

    #[test]
    fn figures_have_three_significant_digits() {
        let figures = [0.0421, 3.1389, 22.6, 99.96, 226.4, 4213.4].map(figure);
        assert_eq!(figures, ["0.042", "3.14", "22.6", "100", "226", "4213"]);
    }
}
