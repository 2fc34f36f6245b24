//! The table at the end of the log, with one row for each cell. Below the table are a comparison of
//! the tunnel and the direct path (`table/comparison.rs`), and the figures of datagrams and
//! ping-pongs (`table/datagrams.rs`). Rows with the same delay, profile and connections form a
//! block, so that each route is next to the direct route. Pure. A line has at most 100 characters,
//! and each column has a fixed width.

mod comparison;
mod datagrams;

use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::result::{Cell, Spread, Status};

/// The mark after a range for which [`Spread::is_wide`] is true.
const WIDE_MARK: char = '~';

const HEAD: [&str; 3] = [
    "  delay              |        |         Mbit/s         | x untuned    x direct,|    RTT  CPU s",
    " one-way profile conn| route  |  median       min..max |    direct same profile|     ms per GB carr.",
    "---------------------+--------+------------------------+-----------------------+--------------------",
];
const FOOT: [&str; 4] = [
    "Mbit/s: 10^6 bit/s of payload that the server received, median of the rounds.",
    "x untuned direct: Mbit/s / direct Mbit/s with kernel defaults, at the same delay and connections.",
    "~: the rounds differ by more than a quarter of the median; another run can give another result.",
    "RTT: of the idle path. CPU s per GB: sum of all gateways. carr.: greatest number of carriers.",
];

/// Renders all cells, the comparison, and the datagrams. Cells without a delay come last.
#[must_use]
pub fn render(cells: &[Cell]) -> String {
    let mut lines: Vec<String> = HEAD.iter().map(ToString::to_string).collect();
    let mut above = None;
    let (undelayed, delayed): (Vec<_>, Vec<_>) =
        cells.iter().partition(|cell| cell.one_way_delay_ms == 0);
    for cell in delayed.into_iter().chain(undelayed) {
        let block = block(cell);
        let shown = if above.as_ref() == Some(&block) {
            ""
        } else {
            &block
        };
        lines.push(format!("{shown:21}|{}", figures(cell, cells)));
        above = Some(block);
    }
    lines.extend(FOOT.iter().map(ToString::to_string));
    lines.extend(comparison::render(cells));
    lines.extend(datagrams::render(cells));
    lines.join("\n")
}

/// The first 21 columns, which are the same for all cells of a block.
fn block(cell: &Cell) -> String {
    let delay = format!("{} ms", cell.one_way_delay_ms);
    let profile = cut(&cell.profile);
    format!("{delay:>8} {profile:6} {:>4} ", cell.connections)
}

fn figures(cell: &Cell, cells: &[Cell]) -> String {
    let route = route(cell);
    let over_untuned = cell.over_untuned_direct(cells);
    // The direct path is the baseline, so it has no ratio.
    let over_direct = cell.ratio_to_direct.filter(|_| cell.protocol.is_some());
    let carriers = cell.carriers.map_or("-".into(), |count| count.to_string());
    format!(
        " {route:7}|{}| {:>9} {:>12}| {:>6} {:>6} {carriers:>5}",
        rates(cell),
        or_dash(over_untuned),
        or_dash(over_direct),
        rtt(cell.rtt_ms),
        or_dash(cell.cpu_s_per_gb),
    )
}

/// `direct`, `network`, or the first six letters of the tunnel's protocol.
fn route(cell: &Cell) -> String {
    match (cell.path, &cell.protocol) {
        (Path::Tunnel, Some(protocol)) => cut(protocol),
        (path, _) => path.to_string(),
    }
}

/// A name, cut to a column of six characters.
fn cut(name: &str) -> String {
    name.chars().take(6).collect()
}

/// 24 columns: median, range and its mark, or the status of a cell without figures.
fn rates(cell: &Cell) -> String {
    match (cell.status, cell.mbit_s) {
        (Status::Ok, Some(rate)) => format!("{:>8} {:>15}", figure(rate.median), range(&rate)),
        (status, _) => {
            let code = cell.code.as_deref().unwrap_or_default();
            format!("{:>8} {code:>14} ", word(status))
        }
    }
}

/// `204..224 `, or `143..346~` where the spread is wide.
#[must_use]
pub fn range(rate: &Spread) -> String {
    let mark = if rate.is_wide() { WIDE_MARK } else { ' ' };
    format!("{}..{}{mark}", figure(rate.min), figure(rate.max))
}

fn word(status: Status) -> &'static str {
    if status == Status::Refused {
        "refused"
    } else {
        "failed"
    }
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), ratio_figure)
}

fn rtt(rtt_ms: Option<f64>) -> String {
    match rtt_ms {
        Some(rtt) if rtt >= 1000.0 => format!("{rtt:.0}"),
        Some(rtt) if rtt >= 10.0 => format!("{rtt:.1}"),
        Some(rtt) => format!("{rtt:.2}"),
        None => "-".into(),
    }
}

/// A ratio: `0.96`, `19.1`, `136`. Below ten, it has two decimals. From ten on, it has the form of
/// [`figure`].
#[must_use]
pub fn ratio_figure(ratio: f64) -> String {
    if ratio < 9.995 {
        format!("{ratio:.2}")
    } else {
        figure(ratio)
    }
}

/// A rate. From 1 on, it has three significant digits, and never fewer than all integer digits:
/// `3.14`, `22.6`, `226`, `4213`. Below 1, it has three decimals: `0.042`.
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
mod tests;
