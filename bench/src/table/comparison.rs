//! Compares the throughput of the tunnel with the throughput of the direct path, for clients and
//! servers with the kernel's default sysctls: the throughput of an application with and without the
//! tunnel.

use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::result::Cell;

use super::{WIDE_MARK, cut, figure, ratio_figure, word};

/// Greatest number of profiles in a row: the number of profiles of a MuxBenchmark.
const PROFILES_MAX: usize = 3;

/// The comparison at the longest delay. Empty without a delay, or if the tunnel or the untuned
/// direct path was not measured.
pub(super) fn render(cells: &[Cell]) -> Vec<String> {
    let longest = cells.iter().map(|cell| cell.one_way_delay_ms).max();
    let Some(delay) = longest.filter(|delay| *delay > 0) else {
        return Vec::new();
    };
    // The network is left out, because its client and server have the sysctls of the gateways.
    let delayed = || {
        let delayed = cells.iter().filter(|cell| cell.one_way_delay_ms == delay);
        delayed.filter(|cell| cell.path != Path::Network)
    };
    let protocols = distinct(delayed().filter_map(|cell| cell.protocol.as_deref()));
    let tunnels = delayed().filter(|cell| cell.protocol.is_some());
    let mut profiles = distinct(tunnels.map(|cell| cell.profile.as_str()));
    profiles.truncate(PROFILES_MAX);

    let mut rows = Vec::new();
    for direct in delayed().filter(|cell| cell.is_untuned_direct()) {
        for protocol in &protocols {
            let mut row = format!(
                " {:>5} |{} | {:6} ",
                direct.connections,
                median(direct),
                cut(protocol)
            );
            for profile in &profiles {
                let tunnel = delayed().find(|cell| {
                    cell.protocol.as_deref() == Some(protocol)
                        && cell.profile == *profile
                        && cell.connections == direct.connections
                });
                row += &tunnel.map_or_else(String::new, |tunnel| gain(tunnel, cells));
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return rows;
    }
    let head = heading(delay, &profiles).into_iter();
    head.chain(rows)
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn heading(delay: u32, profiles: &[&str]) -> Vec<String> {
    let names = profiles
        .iter()
        .map(|profile| format!("| gateways {profile:8.8} "));
    let columns = profiles.iter().map(|_| "|  Mbit/s  x direct ");
    let rules = profiles.iter().map(|_| "+-------------------");
    vec![
        String::new(),
        format!(
            "One-way delay {delay} ms: tunnel and direct path side by side. Client and server have kernel defaults."
        ),
        format!(" conns |  direct  | tunnel {}", names.collect::<String>()),
        format!("       |  Mbit/s  |        {}", columns.collect::<String>()),
        format!("-------+----------+--------{}", rules.collect::<String>()),
    ]
}

/// 20 columns: the figure, and its ratio to the untuned direct path.
fn gain(tunnel: &Cell, cells: &[Cell]) -> String {
    let ratio = tunnel.over_untuned_direct(cells);
    let ratio = ratio.map_or_else(String::new, ratio_figure);
    format!("|{}{ratio:>9} ", median(tunnel))
}

/// Nine columns: the figure and its mark, or the status of a cell without figures.
fn median(cell: &Cell) -> String {
    match cell.mbit_s {
        Some(rate) if rate.is_wide() => format!("{:>8}{WIDE_MARK}", figure(rate.median)),
        Some(rate) => format!("{:>8} ", figure(rate.median)),
        None => format!("{:>8} ", word(cell.status)),
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}
