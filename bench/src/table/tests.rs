use std::collections::BTreeMap;

use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::result::{PingPong, Record, Udp};

use super::*;

/// A measured row: route, one-way delay, profile, connections, (median, min, max), RTT, CPU,
/// carriers.
type Row = (
    &'static str,
    u32,
    &'static str,
    u32,
    (f64, f64, f64),
    f64,
    f64,
    u32,
);

/// In this test, the cells without a delay come first, because a spec may have this order.
#[rustfmt::skip]
const MEASURED: [Row; 15] = [
    ("direct", 0, "None", 1, (7100.0, 4781.0, 8573.0), 0.03, 0.0, 0),
    ("jmux", 0, "None", 1, (3005.0, 2559.0, 3186.0), 0.1, 1.51, 1),
    ("native", 0, "None", 1, (5407.0, 5405.0, 6543.0), 0.12, 0.89, 4),
    ("direct", 50, "None", 1, (228.0, 221.0, 232.0), 101.6, 0.0, 0),
    ("jmux", 50, "None", 1, (219.0, 204.0, 224.0), 103.4, 4.04, 1),
    ("native", 50, "None", 1, (262.0, 143.0, 346.0), 102.6, 4.95, 5),
    ("direct", 50, "None", 10, (2079.0, 1290.0, 2103.0), 101.6, 0.0, 0),
    ("jmux", 50, "None", 10, (212.0, 206.0, 218.0), 103.4, 4.57, 1),
    ("native", 50, "None", 10, (894.0, 804.0, 1022.0), 102.6, 3.66, 6),
    ("direct", 50, "WAN", 1, (4245.0, 860.0, 4314.0), 101.1, 0.0, 0),
    ("jmux", 50, "WAN", 1, (2775.0, 2198.0, 3667.0), 102.0, 1.42, 1),
    ("native", 50, "WAN", 1, (2577.0, 1775.0, 3085.0), 105.2, 1.34, 3),
    ("direct", 50, "WAN", 10, (13467.0, 13036.0, 14327.0), 101.1, 0.0, 0),
    ("jmux", 50, "WAN", 10, (2254.0, 2181.0, 2397.0), 102.0, 1.97, 1),
    ("native", 50, "WAN", 10, (3381.0, 2924.0, 4798.0), 105.2, 1.38, 3),
];

fn measured() -> Vec<Cell> {
    let mut cells: Vec<Cell> = MEASURED.iter().map(cell).collect();
    for index in 0..cells.len() {
        // The direct cell comes first in each block.
        let direct = cells[index - index % 3].mbit_s;
        let ratio = cells[index].mbit_s.zip(direct);
        cells[index].ratio_to_direct = ratio.map(|(rate, direct)| rate.median / direct.median);
    }
    cells
}

fn cell(row: &Row) -> Cell {
    let &(route, one_way_delay_ms, profile, connections, (median, min, max), rtt, cpu, carriers) =
        row;
    let is_tunnel = route != "direct";
    Cell {
        path: if is_tunnel {
            Path::Tunnel
        } else {
            Path::Direct
        },
        protocol: is_tunnel.then(|| route.into()),
        one_way_delay_ms,
        rtt_ms: Some(rtt),
        profile: profile.into(),
        connections,
        rounds: 3,
        duration_s: 5,
        warm_up_s: 3,
        mbit_s: Some(Spread { median, min, max }),
        ratio_to_direct: None,
        ratio_to_untuned_direct: None,
        udp: None,
        ping_pong: None,
        cpu_s_per_gb: is_tunnel.then_some(cpu),
        status: Status::Ok,
        code: None,
        reason: None,
        iperf: None,
        kernel: None,
        congestion_control: None,
        carriers: is_tunnel.then_some(carriers),
        sysctls: BTreeMap::new(),
    }
}

fn refuse(cell: &mut Cell) {
    cell.status = Status::Refused;
    cell.code = Some("MT0506".into());
    cell.mbit_s = None;
    cell.ratio_to_direct = None;
}

fn widest(table: &str) -> usize {
    let widths = table.lines().map(|line| line.chars().count());
    widths.max().unwrap()
}

#[test]
fn a_matrix_is_a_table() {
    let table = render(&measured());
    assert_eq!(table, include_str!("../../fixtures/table.txt").trim_end());
}

#[test]
fn the_committed_results_are_the_table_of_the_documentation() {
    let lines = include_str!("../../../docs/figures/results.jsonl").lines();
    let cells: Vec<_> = lines
        .filter_map(|line| match serde_json::from_str(line).unwrap() {
            Record::Cell(cell) => Some(cell),
            Record::Summary(_) => None,
        })
        .collect();
    let table = render(&cells);
    let documented: String = table
        .lines()
        .map(|line| format!("    {line}").trim_end().to_owned() + "\n")
        .collect();
    let page = include_str!("../../../docs/benchmarks.md");
    assert!(
        page.contains(&documented),
        "docs/benchmarks.md does not contain this table:\n{documented}"
    );
}

#[test]
fn columns_keep_their_places_whatever_is_in_them() {
    let mut cells = measured();
    refuse(&mut cells[8]);
    cells[11].carriers = Some(32);
    cells[12].mbit_s = Some(Spread {
        median: 123_456.0,
        min: 0.012,
        max: 123_456.0,
    });
    let table = render(&cells);
    let bars = |line: &str| {
        let bars = line.char_indices().filter(|(_, c)| matches!(c, '|' | '+'));
        bars.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let rows: Vec<_> = table.lines().take(3 + cells.len()).collect();
    for row in &rows {
        assert_eq!(bars(row), bars(rows[0]), "{row}");
    }
    assert_eq!(
        rows[8],
        "                     | native | refused         MT0506 |         -            -|  102.6   3.66     6"
    );
}

#[test]
fn the_network_has_a_row_and_no_place_in_the_comparison() {
    let mut cells = measured();
    let network = Cell {
        path: Path::Network,
        ..cells[8].clone()
    };
    cells.insert(9, network);
    let table = render(&cells);
    assert_eq!(
        table.lines().nth(9).unwrap(),
        "                     | network|     894      804..1022 |      0.43         0.43|  102.6   3.66     6"
    );
    let compared = |table: &str| table.split_once("One-way delay").unwrap().1.to_owned();
    assert_eq!(compared(&table), compared(&render(&measured())));
}

#[test]
fn a_figure_that_is_missing_is_missing_in_the_comparison_only_where_it_belongs() {
    let mut cells = measured();
    refuse(&mut cells[8]);
    refuse(&mut cells[3]);
    let table = render(&cells);
    let rows: Vec<_> = table.lines().rev().take(4).collect();
    assert_eq!(
        rows,
        [
            "    10 |    2079~ | native | refused           |    3381~     1.63",
            "    10 |    2079~ | jmux   |     212      0.10 |    2254      1.08",
            "     1 | refused  | native |     262~          |    2577~",
            "     1 | refused  | jmux   |     219           |    2775~",
        ]
    );
}

#[test]
fn without_both_paths_or_without_a_delay_there_is_no_comparison() {
    let ends_with_its_foot = |cells: Vec<Cell>| render(&cells).ends_with(FOOT[3]);
    let only = |keep: fn(&Cell) -> bool| measured().into_iter().filter(keep).collect::<Vec<_>>();
    assert!(ends_with_its_foot(only(|cell| cell.one_way_delay_ms == 0)));
    assert!(ends_with_its_foot(only(|cell| cell.path == Path::Tunnel)));
    assert!(ends_with_its_foot(only(|cell| cell.path == Path::Direct)));
    assert!(ends_with_its_foot(only(|cell| cell.profile == "WAN")));
    assert!(!ends_with_its_foot(only(|cell| cell.connections == 10)));
}

#[test]
fn no_line_is_wider_than_100_columns() {
    let longest = "a-name-of-thirty-two-characters-";
    let mut cells = Vec::new();
    for (index, row) in MEASURED.iter().enumerate() {
        let mut wide = cell(row);
        wide.connections = 128;
        wide.one_way_delay_ms = 10_000;
        if wide.protocol.is_some() {
            wide.protocol = Some(longest.into());
            wide.profile = format!("{index}-{longest}");
        }
        wide.rtt_ms = Some(20_000.0);
        wide.cpu_s_per_gb = Some(123.0);
        wide.carriers = Some(32 * 64 * 16);
        cells.push(wide);
    }
    let table = render(&cells);
    assert!(table.contains("10000 ms"), "{table}");
    assert!(table.contains("side by side"), "{table}");
    assert!(widest(&table) <= 100, "{table}");
}

#[test]
fn figures_have_three_significant_digits() {
    let figures = [0.0421, 3.1389, 22.6, 99.96, 226.4, 4213.4].map(figure);
    assert_eq!(figures, ["0.042", "3.14", "22.6", "100", "226", "4213"]);
    let ratios = [0.096, 1.0, 9.996, 19.12, 136.4].map(ratio_figure);
    assert_eq!(ratios, ["0.10", "1.00", "10.0", "19.1", "136"]);
}

#[test]
fn datagrams_and_ping_pongs_have_one_row_for_each_path() {
    let udp = |lost_percent, mbit_s| Udp {
        sent_mbit_s: 100.0,
        datagram_bytes: 1400,
        mbit_s,
        datagrams: 53_572,
        lost_percent,
        out_of_order: 3,
    };
    let ping_pong = |p50_us, p99_us| PingPong {
        exchanges: 1000,
        p50_us,
        p99_us,
    };
    let row = |connections, delay| {
        cell(&(
            "direct",
            delay,
            "WAN",
            connections,
            (1.0, 1.0, 1.0),
            0.1,
            0.0,
            0,
        ))
    };
    let network = |connections, delay| Cell {
        path: Path::Network,
        protocol: Some("native".into()),
        ..row(connections, delay)
    };
    let mut cells = vec![
        network(1, 0),
        row(1, 50),
        network(1, 50),
        row(10, 50),
        network(10, 50),
    ];
    assert!(!render(&cells).contains("ping-pong"), "no figures, no rows");
    for cell in &mut cells {
        cell.udp = (cell.one_way_delay_ms > 0).then(|| udp(0.0421, 99.96));
        cell.ping_pong = Some(ping_pong(101_412.6, 120_000.0));
    }
    let table = render(&cells);
    let rows: Vec<&str> = table.lines().rev().take(3).collect();
    assert_eq!(
        rows,
        [
            "    0 ms WAN    | network|       -        - |         -          - |     101413      120000",
            "   50 ms WAN    | network|     100      100 |     0.042          3 |     101413      120000",
            "   50 ms WAN    | direct |     100      100 |     0.042          3 |     101413      120000",
        ]
    );
    assert!(widest(&table) <= 100, "{table}");
}
