//! UDP and ping-pong: one row for each path of an environment.

use muxtunnel_bench_api::result::Cell;

use super::{cut, figure, route};

const HEAD: [&str; 5] = [
    "",
    "UDP and ping-pong on the idle path, once for each delay and profile.",
    "  delay         |        |    UDP, Mbit/s   | datagrams:    out of | ping-pong, microseconds",
    " one-way profile| route  |    sent received |    lost %      order |        p50         p99",
    "----------------+--------+------------------+----------------------+-------------------------",
];

/// The rows. Rows without a delay come last. Empty if no cell has figures of datagrams.
pub(super) fn render(cells: &[Cell]) -> Vec<String> {
    let measured = cells.iter();
    let measured = measured.filter(|cell| cell.udp.is_some() || cell.ping_pong.is_some());
    // The cells of a path differ only in their number of connections.
    let mut rows: Vec<&Cell> = Vec::new();
    for cell in measured {
        if !rows.iter().any(|row| same_path(row, cell)) {
            rows.push(cell);
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let (undelayed, delayed): (Vec<&Cell>, Vec<&Cell>) = rows
        .into_iter()
        .partition(|cell| cell.one_way_delay_ms == 0);
    let rows = delayed.into_iter().chain(undelayed).map(row);
    HEAD.iter().map(ToString::to_string).chain(rows).collect()
}

fn same_path(a: &Cell, b: &Cell) -> bool {
    let key = |cell: &Cell| (cell.one_way_delay_ms, cell.path);
    key(a) == key(b) && a.profile == b.profile && a.protocol == b.protocol
}

fn row(cell: &Cell) -> String {
    let delay = format!("{} ms", cell.one_way_delay_ms);
    let text = |figure: Option<String>| figure.unwrap_or_else(|| "-".into());
    let (udp, ping_pong) = (cell.udp, cell.ping_pong);
    format!(
        "{delay:>8} {:6} | {:7}|{:>8} {:>8} |{:>10} {:>10} | {:>10} {:>11}",
        cut(&cell.profile),
        route(cell),
        text(udp.map(|udp| figure(udp.sent_mbit_s))),
        text(udp.map(|udp| figure(udp.mbit_s))),
        text(udp.map(|udp| format!("{:.3}", udp.lost_percent))),
        text(udp.map(|udp| udp.out_of_order.to_string())),
        text(ping_pong.map(|times| format!("{:.0}", times.p50_us))),
        text(ping_pong.map(|times| format!("{:.0}", times.p99_us))),
    )
}
