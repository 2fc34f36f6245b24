//! The limits of a peer, which its exit enforces.

use std::io::{Read, Write};

use super::*;

/// An exit whose peer `site` has limits, its other peer, and an entry of each.
struct Site {
    exit: Gate,
    site: (Gate, SocketAddr),
    other: (Gate, SocketAddr),
    listener: std::net::TcpListener,
    text: Box<dyn Fn(&str) -> String>,
    _dir: tempfile::TempDir,
}

impl Site {
    /// `more`: fields of the entries.
    fn new(protocol: &'static str, more: &str, limits: &str) -> Self {
        let (dir, [exit_key, site_key, other_key]) = keys();
        let (listener, target) = target();
        let carrier = carrier_address();
        let (own, site, other) = (
            exit_key.file.clone(),
            site_key.entry.clone(),
            other_key.entry.clone(),
        );
        let text = move |limits: &str| {
            let site = format!("{{name: site, publicKeys: [{site}], limits: {{{limits}}}}}");
            let other = format!("{{name: other, publicKeys: [{other}]}}");
            let security = public_keys(&own, &[&site, &other]);
            exit_file((protocol, ""), &security, carrier, target)
        };
        let exit = Gate::with_file(&text(limits)).until_ready();
        let [site, other] = [&site_key, &other_key].map(|key| {
            let security = format!("{}\n{more}", key.accepts(&[&exit_key.exit]));
            let (gate, forward) = entry(security.trim_end(), protocol, carrier, target);
            (gate.until_ready(), forward)
        });
        Self {
            exit,
            site,
            other,
            listener,
            text: Box::new(text),
            _dir: dir,
        }
    }

    fn carriers(&self) -> u64 {
        self.exit.status()["peers"][0]["carriers"].as_u64().unwrap()
    }

    /// The samples of the peer `site` in the metric.
    fn counted(&self, metric: &str) -> f64 {
        let page = self.exit.get("/metrics").1;
        let begin = format!("{metric}{{peer=\"site\"");
        let lines = page.lines().filter(|line| line.starts_with(&begin));
        let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
        values.sum()
    }
}

/// Whether bytes pass from the client to the target and back.
fn passes((client, server): &(TcpStream, TcpStream)) -> bool {
    for (mut from, mut to) in [(client, server), (server, client)] {
        from.write_all(b"bytes").unwrap();
        let mut arrived = [0; 5];
        to.read_exact(&mut arrived).unwrap();
        assert_eq!(&arrived, b"bytes");
    }
    true
}

#[test]
fn streams_beyond_the_limit_of_a_peer_are_refused_and_those_of_others_are_not() {
    for protocol in ["Native", "HTTP2", "QUIC"] {
        let tunnel = Site::new(protocol, "", "streams: 2");
        let held = [(); 2].map(|()| open(tunnel.site.1, &tunnel.listener));
        assert!(held.iter().all(passes));
        assert_reset(&connect(tunnel.site.1));
        tunnel.exit.line(&["Open refused", "MT0223"]);
        assert_eq!(tunnel.counted("muxgate_peer_refused_total"), 1.0);
        let others = [(); 3].map(|()| open(tunnel.other.1, &tunnel.listener));
        assert!(others.iter().all(passes));
        // A change applies at once, and ends neither carriers nor streams.
        reload(&tunnel.exit, &(tunnel.text)("streams: 3"));
        let third = open(tunnel.site.1, &tunnel.listener);
        assert!(passes(&third) && held.iter().all(passes));
        assert_eq!(tunnel.counted("muxgate_peer_streams_open"), 3.0);
        reload(&tunnel.exit, &(tunnel.text)("streams: 1"));
        assert!(passes(&third) && held.iter().all(passes), "{protocol}");
        assert!(tunnel.carriers() > 0, "{protocol}");
        drop((held, third));
        until("the peer has no stream", || {
            tunnel.counted("muxgate_peer_streams_open") == 0.0
        });
        assert!(passes(&open(tunnel.site.1, &tunnel.listener)));
    }
}

#[test]
fn opens_that_a_peer_makes_too_fast_are_refused() {
    let tunnel = Site::new("Native", "", "opensPerSecond: 1");
    let clients = [(); 20].map(|()| connect(tunnel.site.1));
    tunnel.exit.line(&["Open refused", "MT0224"]);
    drop(clients);
    let refused = tunnel.counted("muxgate_peer_refused_total");
    assert!((1.0..20.0).contains(&refused), "{refused}");
}

/// At the minimum rate, the transfer of a megabyte takes 80 s.
#[test]
fn a_rate_paces_both_directions_of_a_peer_and_drops_nothing() {
    for protocol in ["Native", "QUIC"] {
        let tunnel = Site::new(protocol, "", "bitsPerSecond: 100k");
        let (client, server) = open(tunnel.site.1, &tunnel.listener);
        send_in_background(&client, pattern(1, MIB), true);
        send_in_background(&server, pattern(2, MIB), true);
        until("payload has passed in both directions", || {
            let page = tunnel.exit.get("/metrics").1;
            let moved = |direction: &str| {
                let begin = format!(
                    "muxgate_peer_payload_bytes_total{{peer=\"site\",direction=\"{direction}\"}} "
                );
                let mut lines = page.lines();
                let value = lines.find_map(|line| line.strip_prefix(&*begin)).unwrap();
                value.parse::<f64>().unwrap() > 0.0
            };
            moved("sent") && moved("received")
        });
        let (free, at) = open(tunnel.other.1, &tunnel.listener);
        send_in_background(&free, pattern(3, 8 * MIB), true);
        assert!(read_all(&at) == pattern(3, 8 * MIB));
        let moved = tunnel.counted("muxgate_peer_payload_bytes_total");
        assert!(moved < MIB as f64, "{protocol}: {moved}");
        // The open stream follows the new limit, and no byte is missing.
        reload(&tunnel.exit, &(tunnel.text)("bitsPerSecond: 1G"));
        assert!(read_all(&server) == pattern(1, MIB), "{protocol}");
        assert!(read_all(&client) == pattern(2, MIB), "{protocol}");
    }
}

#[test]
fn carriers_beyond_the_limit_of_a_peer_are_refused_and_its_session_goes_on() {
    let pool = "workers: 1\npool: {min: 3, max: 3}";
    let tunnel = Site::new("Native", pool, "carriers: 1");
    tunnel.exit.line(&["Carrier refused", "MT0225", "site"]);
    assert_eq!(tunnel.carriers(), 1);
    let stream = open(tunnel.site.1, &tunnel.listener);
    assert!(passes(&stream));
    assert!(tunnel.counted("muxgate_peer_refused_total") >= 1.0);
    until("the other peer has its carriers", || {
        tunnel.exit.status()["peers"][1]["carriers"] == 3
    });
    reload(&tunnel.exit, &(tunnel.text)("carriers: 3"));
    until("the peer has its carriers", || tunnel.carriers() == 3);
    // A lower limit ends no carrier.
    reload(&tunnel.exit, &(tunnel.text)("carriers: 2"));
    assert_eq!(tunnel.carriers(), 3);
    assert!(passes(&stream));
}

/// The exit opens these streams, because its clients connect there.
#[test]
fn streams_of_reverse_forwards_count_against_the_limits_of_their_peer() {
    let (_dir, [exit_key, site_key, _]) = keys();
    let (listener, target) = target();
    let carrier = carrier_address();
    let far = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let site = format!(
        "{{name: site, publicKeys: [{}], limits: {{streams: 1}}}}",
        site_key.entry
    );
    let security = exit_key.accepts(&[&site]);
    let exit = exit_file(("Native", ""), &security, carrier, target);
    let exit = format!("{exit}allowListen: ['{far},peer=site']\n");
    let exit = Gate::with_file(&exit).until_ready();
    let _entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {}\nconnect:\n- name: far\n  address: '{carrier}'\nadmin: ADMIN\nworkers: 1\n\
         reverseForwards:\n- {{name: a, listen: '{far}', targets: [{{host: {}, port: {}}}]}}\n",
        site_key.accepts(&[&exit_key.exit]),
        target.ip(),
        target.port()
    ))
    .until_ready();
    until("the exit listens", || {
        exit.status()["forwards"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let held = open(far, &listener);
    assert!(passes(&held));
    assert_reset(&connect(far));
    exit.line(&["Connection refused", "MT0223"]);
    drop(held);
    until("the place is free", || {
        exit.get("/metrics")
            .1
            .lines()
            .any(|line| line == "muxgate_peer_streams_open{peer=\"site\"} 0.0")
    });
    assert!(passes(&open(far, &listener)));
}
