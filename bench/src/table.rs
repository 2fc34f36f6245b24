//! The table at the end of the log: a line for each environment and number of connections, Direct and
//! Tunnel side by side. Pure; at most 100 columns.

use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::result::{Cell, Status};

const HEAD: [&str; 3] = [
    "  delay              | direct, Mbit/s         | tunnel, Mbit/s         |tunnel/ RTT ms        CPU s",
    " one-way tuning conns|  median       min..max |  median       min..max | direct direct tunnel per GB",
    "---------------------+------------------------+------------------------+---------------------------",
];

/// Draws all cells.
#[must_use]
pub fn render(cells: &[Cell]) -> String {
    let mut table: Vec<String> = HEAD.iter().map(ToString::to_string).collect();
    let mut drawn = vec![false; cells.len()];
    for (index, cell) in cells.iter().enumerate() {
        if drawn[index] {
            continue;
        }
        // The partner of a cell is the next of the same row on the other path.
        let partner = cells
            .iter()
            .enumerate()
            .skip(index + 1)
            .find(|(other_index, other)| {
                !drawn[*other_index] && same_row(cell, other) && cell.path != other.path
            });
        let mut row = Row::default();
        row.put(cell);
        if let Some((other_index, other)) = partner {
            drawn[other_index] = true;
            row.put(other);
        }
        table.push(row.line());
    }
    table.push(
        "Mbit/s: 10^6 bit/s of payload at the receiver, median of the rounds; RTT: idle, median of 20."
            .into(),
    );
    table.join("\n")
}

fn same_row(a: &Cell, b: &Cell) -> bool {
    (a.one_way_delay_ms, &a.tuning, a.connections) == (b.one_way_delay_ms, &b.tuning, b.connections)
}

#[derive(Default)]
struct Row<'a> {
    direct: Option<&'a Cell>,
    tunnel: Option<&'a Cell>,
}

impl<'a> Row<'a> {
    fn put(&mut self, cell: &'a Cell) {
        match cell.path {
            Path::Direct => self.direct = Some(cell),
            Path::Tunnel => self.tunnel = Some(cell),
        }
    }

    fn line(&self) -> String {
        let Some(any) = self.tunnel.or(self.direct) else {
            return String::new();
        };
        let tuning: String = any.tuning.chars().take(6).collect();
        let ratio = self.tunnel.and_then(|cell| cell.ratio_to_direct);
        let cpu = self.tunnel.and_then(|cell| cell.cpu_s_per_gb);
        let two_digits =
            |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        format!(
            "{:>8} {tuning:6} {:>4} |{}|{}| {:>5} {:>6} {:>6} {:>6}",
            format!("{} ms", any.one_way_delay_ms),
            any.connections,
            rates(self.direct),
            rates(self.tunnel),
            two_digits(ratio),
            rtt(self.direct),
            rtt(self.tunnel),
            two_digits(cpu),
        )
    }
}

/// 24 columns: median and range, or why there is none.
fn rates(cell: Option<&Cell>) -> String {
    let (text, range) = match cell {
        None => ("-".into(), String::new()),
        Some(cell) => match (cell.status, cell.mbit_s) {
            (Status::Ok, Some(rate)) => (
                figure(rate.median),
                format!("{}..{}", figure(rate.min), figure(rate.max)),
            ),
            (Status::Refused, _) => ("refused".into(), cell.code.clone().unwrap_or_default()),
            _ => ("failed".into(), cell.code.clone().unwrap_or_default()),
        },
    };
    format!("{text:>8} {range:>14} ")
}

fn rtt(cell: Option<&Cell>) -> String {
    match cell.and_then(|cell| cell.rtt_ms) {
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

    use muxtunnel_bench_api::result::Spread;

    use super::*;

    fn cell(path: Path, connections: u32, rate: Option<(f64, f64, f64)>) -> Cell {
        Cell {
            path,
            protocol: None,
            one_way_delay_ms: 50,
            rtt_ms: Some(100.44),
            tuning: "None".into(),
            connections,
            rounds: 3,
            duration_s: 5,
            warm_up_s: 2,
            mbit_s: rate.map(|(median, min, max)| Spread { median, min, max }),
            ratio_to_direct: (path == Path::Tunnel).then_some(0.984),
            cpu_s_per_gb: (path == Path::Tunnel).then_some(1.33),
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
            carriers: None,
            sysctls: BTreeMap::new(),
        }
    }

    #[test]
    fn direct_and_tunnel_share_a_row() {
        let cells = [
            cell(Path::Direct, 1, Some((226.0, 207.4, 227.1))),
            cell(Path::Tunnel, 1, Some((222.4, 219.0, 223.0))),
            cell(Path::Direct, 10, Some((48_000.4, 47_000.0, 49_123.0))),
            cell(Path::Tunnel, 10, None),
        ];
        let table = render(&cells);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[3],
            "   50 ms None      1 |     226       207..227 |     222       219..223 |  0.98  100.4  100.4   1.33"
        );
        assert_eq!(
            lines[4],
            "   50 ms None     10 |   48000   47000..49123 | refused         MT0506 |  0.98  100.4  100.4   1.33"
        );
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let mut wide = cell(Path::Tunnel, 256, Some((123_456.0, 123_456.0, 123_456.0)));
        wide.one_way_delay_ms = 10_000;
        wide.tuning = "a-name-of-thirty-two-characters".into();
        wide.rtt_ms = Some(20_000.0);
        wide.cpu_s_per_gb = Some(123.0);
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
