use super::*;

fn seeds() -> Matrix {
    Matrix {
        connections: vec![1, 2, 10],
        one_way_delays_ms: vec![50, 0],
        profiles: vec!["None".into(), "WAN".into()],
        paths: vec![Path::Direct, Path::Tunnel],
        protocols: vec!["Native".into()],
        duration_s: 5,
        warm_up_s: 2,
        rounds: 3,
        udp_bits_per_second: 100_000_000,
    }
}

#[test]
fn the_seeds_matrix_has_four_environments_and_24_cells() {
    let matrix = seeds();
    assert_eq!(matrix.check(), Ok(()));
    let environments: Vec<_> = matrix
        .environments()
        .into_iter()
        .map(|key| (key.index, key.one_way_delay_ms, key.profile))
        .collect();
    assert_eq!(
        environments,
        [
            (0, 50, "None".into()),
            (1, 50, "WAN".into()),
            (2, 0, "None".into()),
            (3, 0, "WAN".into())
        ]
    );
    let cells = matrix.cells();
    assert_eq!(cells.len(), 24);
    assert!(
        cells
            .iter()
            .enumerate()
            .all(|(index, cell)| cell.index == index)
    );
    let native = Route::Tunnel("Native".into());
    let place = |cell: &CellKey| (cell.environment, cell.route.clone(), cell.connections);
    assert_eq!(place(&cells[5]), (0, native, 10));
    assert_eq!(place(&cells[6]), (1, Route::Direct, 1));
}

#[test]
fn protocols_are_compared_in_one_environment() {
    let matrix = Matrix {
        protocols: vec!["JMUX".into(), "Native".into()],
        ..seeds()
    };
    assert_eq!(matrix.environments().len(), 4);
    assert_eq!(matrix.cells().len(), 36);
    let names = matrix
        .routes()
        .iter()
        .map(Route::to_string)
        .collect::<Vec<_>>();
    assert_eq!(names, ["direct", "jmux", "native"]);
    let direct = Matrix {
        paths: vec![Path::Direct],
        ..matrix
    };
    assert_eq!(direct.routes(), [Route::Direct]);
}

#[test]
fn ip_packets_have_one_route_by_the_protocol_that_carries_them() {
    let matrix = Matrix {
        paths: vec![Path::Direct, Path::Tunnel, Path::Network],
        protocols: vec!["JMUX".into(), "QUIC".into()],
        ..seeds()
    };
    assert_eq!(matrix.check(), Ok(()));
    let routes = matrix.routes();
    let names = routes.iter().map(Route::to_string).collect::<Vec<_>>();
    assert_eq!(names, ["direct", "jmux", "quic", "network"]);
    assert_eq!(routes[3].protocol().as_deref(), Some("quic"));
    assert_eq!(routes[3].path().to_string().parse(), Ok(Path::Network));
}

#[test]
fn datagrams_are_of_the_network_and_of_the_direct_path_next_to_it() {
    let measured = |matrix: &Matrix| -> Vec<String> {
        let routes = matrix.routes().into_iter();
        let measured = routes.filter(|route| matrix.measures_datagrams(route));
        measured.map(|route| route.to_string()).collect()
    };
    assert_eq!(measured(&seeds()), [""; 0]);
    let native = Matrix {
        paths: vec![Path::Direct, Path::Tunnel, Path::Network],
        ..seeds()
    };
    assert_eq!(measured(&native), ["direct", "network"]);
    assert_eq!(native.datagram_bytes(), 1400);
    let quic = Matrix {
        protocols: vec!["QUIC".into()],
        ..native
    };
    assert_eq!(quic.datagram_bytes(), 1372);
}

#[test]
fn what_cannot_be_run_is_refused_with_the_value() {
    let check = |change: fn(&mut Matrix), message: &str| {
        let mut matrix = seeds();
        change(&mut matrix);
        assert_eq!(matrix.check().unwrap_err().to_string(), message);
    };
    check(
        |m| m.connections.clear(),
        "connections has 0 values: use 1 to 8",
    );
    check(
        |m| m.connections = (1..10).collect(),
        "connections has 9 values: use 1 to 8",
    );
    check(
        |m| m.connections = vec![2, 2],
        "connections has 2 twice: remove one of them",
    );
    check(
        |m| m.connections = vec![129],
        "connections 129 is out of range: use 1 to 128",
    );
    check(
        |m| m.duration_s = 0,
        "durationSeconds 0 is out of range: use 1 to 3600",
    );
    check(|m| m.rounds = 10, "rounds 10 is out of range: use 1 to 9");
    check(
        |m| m.udp_bits_per_second = 99_999,
        "udp.bitsPerSecond 99999 is out of range: use 100000 to 10000000000",
    );
    check(
        |m| m.warm_up_s = 5,
        "warmUpSeconds 5 must be less than durationSeconds 5, which includes the warm-up",
    );
    check(
        |m| {
            m.paths = vec![Path::Network];
            m.protocols = vec!["JMUX".into()];
        },
        "paths has Network, which needs exactly one of the protocols Native and QUIC; protocols has 0 of them",
    );
    check(
        |m| {
            m.paths = vec![Path::Network];
            m.protocols = vec!["Native".into(), "QUIC".into()];
        },
        "paths has Network, which needs exactly one of the protocols Native and QUIC; protocols has 2 of them",
    );
    check(
        |m| m.profiles = vec!["a b".into()],
        "profiles has \"a b\": use names of 1 to 32 letters, digits and dashes",
    );
    check(
        |m| {
            m.connections = (1..=8).collect();
            m.one_way_delays_ms = (1..=8).collect();
            m.profiles = (1..=5).map(|n| format!("t{n}")).collect();
        },
        "the matrix has 640 cells: reduce them to at most 512",
    );
}
