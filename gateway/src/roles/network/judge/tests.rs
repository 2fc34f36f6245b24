use std::net::Ipv4Addr;

use muxtunnel_gateway_config::Config;
use muxtunnel_packet::check_plain;

use super::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
/// The entry's address, and addresses of the exit's side.
const ENTRY: &str = "10.8.0.2";
const GATEWAY: &str = "10.1.0.1";
const SERVER: &str = "10.2.0.1";

/// A gateway of one side, with addresses of its own and an API server.
struct Gateway {
    judge: Judge,
    reloads: watch::Sender<Arc<Reloadable>>,
    now: Instant,
}

impl Gateway {
    fn of(side: Side, rest: &str, network: &str) -> Self {
        Self::with(side, &config(side, rest, network))
    }

    fn with(side: Side, config: &Config) -> Self {
        let is_local = |address| {
            let local: [IpAddr; 2] = [GATEWAY.parse().unwrap(), ENTRY.parse().unwrap()];
            local.contains(&address)
        };
        let protected = Arc::new(ProtectedAddresses::new("10.96.0.1", config, is_local));
        let (reloads, reloadable) = watch::channel(Arc::new(config.reloadable()));
        let network = config.network.as_ref().unwrap();
        Self {
            judge: Judge::of(network, side, &protected, reloadable, &Arc::default()),
            reloads,
            now: Instant::now(),
        }
    }

    fn exit(network: &str) -> Self {
        Self::of(Side::Accepts, "", network)
    }

    /// Whether a packet of a peer passes. `peer`: the peer's identity, empty for none.
    fn takes_from(&self, peer: &str, packet: &[u8]) -> bool {
        self.takes(peer, None, packet)
    }

    fn takes(&self, peer: &str, other: Option<&Owner>, packet: &[u8]) -> bool {
        let identity: Option<Arc<str>> = (!peer.is_empty()).then(|| Arc::from(peer));
        let owner = owner(peer);
        let from = Arrived {
            owner: &owner,
            identity: identity.as_ref(),
            other,
        };
        let packet = check_plain(packet).unwrap();
        // All flows have the same slot of the cache.
        self.judge.permits(&packet, 7, from, self.now)
    }

    fn sends(&self, to: &Owner, beginner: Option<&Owner>, packet: &[u8]) {
        let packet = check_plain(packet).unwrap();
        self.judge.sends(&packet, 7, to, beginner, self.now);
    }

    /// Whether a packet of TCP from the entry's address to `destination` passes.
    fn permits(&self, destination: &str, port: Option<u16>) -> bool {
        self.takes_from("", &to(destination, port))
    }
}

fn config(side: Side, rest: &str, network: &str) -> Config {
    secured(side, "{mode: None}", rest, network)
}

fn secured(side: Side, security: &str, rest: &str, network: &str) -> Config {
    let role = match side {
        Side::Accepts => "role: Exit\nlisten: 0.0.0.0:64000\n",
        Side::Dials => "role: Entry\nconnect:\n- name: far\n  address: exit.example.com:64000\n",
    };
    let text = format!(
        "{role}security: {security}\nadmin: 0.0.0.0:64001\n{rest}\n\
         protectedCIDRs: [10.2.9.0/24]\nnat64Prefixes: ['2001:db8:64::/96']\n\
         network: {{entryCIDRs: [10.8.0.0/24], exitCIDRs: [10.0.0.0/14, 10.96.0.0/12, 169.0.0.0/8, '2001:db8::/32'], {network}}}\n"
    );
    Config::from_yaml(&text).unwrap()
}

fn owner(peer: &str) -> Owner {
    match peer {
        "" => Owner::Side,
        peer => Owner::Peer(Arc::from(peer)),
    }
}

fn to(destination: &str, port: Option<u16>) -> Vec<u8> {
    let source = match destination.contains(':') {
        true => "fd00::2",
        false => ENTRY,
    };
    match port {
        Some(port) => packet(TCP, (source, 5000), (destination, port)),
        None => packet(ICMP, (source, 0), (destination, 0)),
    }
}

/// A packet of `protocol` with complete headers. The ports of ICMP are not used.
fn packet(protocol: u8, from: (&str, u16), to: (&str, u16)) -> Vec<u8> {
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let (protocol, transport) = match (protocol, to.0.contains(':')) {
        (TCP, _) => (
            TCP,
            [&ports[..], &[0; 8], &[0x50, 2, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        (UDP, _) => (UDP, [&ports[..], &[0, 8, 0, 0]].concat()),
        (_, false) => (ICMP, [8, 0, 0, 0, 0, 1, 0, 1].to_vec()),
        (_, true) => (58, [128, 0, 0, 0, 0, 1, 0, 1].to_vec()),
    };
    ip(protocol, (from.0, to.0), 0, &transport)
}

/// An IP packet. `fragment`: the flags and the offset of IPv4.
fn ip(protocol: u8, (from, to): (&str, &str), fragment: u16, payload: &[u8]) -> Vec<u8> {
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = 20 + payload.len() as u16;
            let mut header = [0x45, 0, 0, 0, 0, 9, 0, 0, 64, protocol, 0, 0].to_vec();
            header[2..4].copy_from_slice(&length.to_be_bytes());
            header[6..8].copy_from_slice(&fragment.to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            let words = header
                .chunks(2)
                .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
            let sum: u32 = words.sum();
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [&header[..], payload].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = (payload.len() as u16).to_be_bytes();
            let header = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
            [&header[..], &from.octets(), &to.octets(), payload].concat()
        }
        _ => panic!("two versions"),
    }
}

/// A first fragment of TCP or UDP, and a later fragment.
fn fragments(protocol: u8, from: (&str, u16), to: (&str, u16)) -> [Vec<u8>; 2] {
    let whole = packet(protocol, from, to);
    let first = [&whole[20..], &[0; 4][..]].concat();
    let first = &first[..first.len() / 8 * 8];
    let first = [first, &[0; 16]].concat();
    let between = (from.0, to.0);
    [
        ip(protocol, between, 0x2000, &first),
        ip(protocol, between, first.len() as u16 / 8, b"the rest"),
    ]
}

#[test]
fn without_rules_all_is_permitted_but_what_a_rule_has_to_name() {
    let exit = Gateway::exit("mtu: 1500");
    for port in [Some(80), None] {
        assert!(exit.permits(SERVER, port));
        for (protected, what) in [
            ("169.254.169.254", "a metadata service"),
            ("100.100.100.200", "a metadata service"),
            ("10.96.0.1", "the API server's Service"),
            ("10.2.9.1", "an endpoint of the API server"),
        ] {
            // The check of a packet refuses link-local addresses.
            if !protected.starts_with("169") {
                assert!(!exit.permits(protected, port), "{what}");
            }
            let v4: Ipv4Addr = protected.parse().unwrap();
            for prefix in ["2001:db8:64", "64:ff9b:"] {
                let translated = format!("{prefix}::{v4}").replace(":::", "::");
                assert!(!exit.permits(&translated, port), "{translated}: {what}");
            }
        }
        assert!(exit.permits("2001:db8:64::10.2.0.1", port));
    }
    assert!(exit.permits(GATEWAY, Some(80)));
    for port in [64000, 64001] {
        assert!(!exit.permits(GATEWAY, Some(port)), "the gateway's own port");
    }
}

#[test]
fn networks_of_the_exits_side_are_no_rules_for_protected_addresses() {
    for network in ["exitCIDRs: [10.96.0.1]", "exitCIDRs: [10.2.9.1/32]"] {
        let text = format!(
            "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: None}}\n\
             protectedCIDRs: [10.2.9.0/24]\nnetwork: {{entryCIDRs: [10.8.0.0/24], {network}}}\n"
        );
        let config = Config::from_yaml(&text).unwrap();
        let protected = Arc::new(ProtectedAddresses::new("10.96.0.1", &config, |_| false));
        let network = config.network.as_ref().unwrap();
        let rules = Rules::of(network, Side::Accepts, &config.reloadable(), &protected);
        let to = Destination {
            address: network.exit_cidrs[0].address,
            port: Some(443),
            is_fragment: false,
        };
        assert_eq!(rules.decide(to, None), Decision::Denied);
    }
    let exit = Gateway::exit("allow: [{cidr: 10.2.9.1/32, port: 443}]");
    assert!(exit.permits("10.2.9.1", Some(443)));
}

#[test]
fn an_entry_denies_its_own_listeners_and_the_protected_addresses_and_nothing_more() {
    let forwards = "proxies: [{name: a, listen: '0.0.0.0:1080', protocol: SOCKS5}, {name: b, listen: '10.8.0.2:3128', protocol: HTTP}]\n\
         forwards: [{name: c, listen: 127.0.0.1:5432, targets: [{host: db, port: 5432}]}]\n\
         reverseForwards: [{name: d, listen: '0.0.0.0:2222', targets: [{host: 127.0.0.1, port: 22}]}]";
    let entry = Gateway::of(Side::Dials, forwards, "mtu: 1500");
    let takes =
        |destination, port| entry.takes_from("", &packet(TCP, (SERVER, 5000), (destination, port)));
    for port in [1080, 3128, 64001] {
        assert!(!takes(ENTRY, port), "{port}");
        let [first, _] = fragments(TCP, (SERVER, 5000), (ENTRY, port));
        assert!(!entry.takes_from("", &first), "{port} in a fragment");
        assert!(takes("10.8.0.3", port), "port {port} of another host");
    }
    for port in [22, 80, 2222, 5432, 64000] {
        assert!(takes(ENTRY, port), "{port}");
    }
    assert!(entry.takes_from("", &packet(ICMP, (SERVER, 0), (ENTRY, 0))));
    for fragment in fragments(UDP, (SERVER, 5000), (ENTRY, 53)) {
        assert!(entry.takes_from("", &fragment));
    }
    assert!(!takes("10.96.0.1", 443), "the API server");
    assert!(!takes("10.2.9.1", 443), "protectedCIDRs");
    // An own listener is never the source of a flow, so no reply reaches it.
    entry.sends(
        &Owner::Side,
        None,
        &packet(TCP, (ENTRY, 1080), (SERVER, 5000)),
    );
    assert!(!takes(ENTRY, 1080));
}

#[test]
fn a_listener_that_is_reloaded_is_denied_at_once() {
    let entry = Gateway::of(Side::Dials, "", "mtu: 1500");
    let connect = packet(TCP, (SERVER, 5000), (ENTRY, 1080));
    assert!(entry.takes_from("", &connect));
    let forwards = "proxies: [{name: a, listen: '[::]:1080', protocol: SOCKS5}]";
    let changed = config(Side::Dials, forwards, "mtu: 1500").reloadable();
    entry.reloads.send_replace(Arc::new(changed));
    assert!(!entry.takes_from("", &connect));
}

#[test]
fn a_verdict_does_not_outlive_the_addresses_of_the_host() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    static IS_LOCAL: AtomicBool = AtomicBool::new(false);
    let mut entry = Gateway::of(Side::Dials, "", "mtu: 1500");
    let config = config(Side::Dials, "", "mtu: 1500");
    let protected = ProtectedAddresses::new("", &config, |_| IS_LOCAL.load(Relaxed));
    entry.judge.state.borrow_mut().rules.protected = protected;
    let connect = packet(TCP, (SERVER, 5000), ("10.8.0.9", 64001));
    assert!(entry.takes_from("", &connect));
    // The exit assigns the address.
    IS_LOCAL.store(true, Relaxed);
    entry.now += VERDICT_LIFETIME;
    assert!(!entry.takes_from("", &connect));
}

#[test]
fn a_rule_for_ports_is_none_for_packets_without_and_denies_them() {
    let exit = Gateway::exit(
        "allow: [{cidr: 10.2.0.0/16, port: 80}, {cidr: 10.3.0.0/16}], deny: [{cidr: 10.3.0.7/32, port: 22}]",
    );
    assert!(exit.permits(SERVER, Some(80)));
    assert!(!exit.permits(SERVER, Some(81)));
    assert!(!exit.permits(SERVER, None));
    assert!(exit.permits("10.3.0.1", None));
    assert!(exit.permits("10.3.0.7", Some(80)));
    assert!(!exit.permits("10.3.0.7", Some(22)));
    assert!(
        !exit.permits("10.3.0.7", None),
        "a fragment may be of port 22"
    );
    for fragment in fragments(TCP, (ENTRY, 5000), ("10.3.0.7", 80)) {
        assert!(!exit.takes_from("", &fragment));
    }
}

#[test]
fn own_ports_of_an_exit_are_denied_in_fragments_too() {
    let exit = Gateway::exit("mtu: 1500");
    for port in [64000, 64001] {
        let [first, later] = fragments(TCP, (ENTRY, 5000), (GATEWAY, port));
        assert!(!exit.takes_from("", &first), "{port}");
        assert!(
            exit.takes_from("", &later),
            "it is nothing without the first"
        );
    }
    let [first, _] = fragments(TCP, (ENTRY, 5000), (GATEWAY, 80));
    assert!(exit.takes_from("", &first));
}

#[test]
fn a_rule_of_one_peer_is_for_its_packets_alone() {
    let exit = Gateway::exit(
        "allow: [{cidr: 10.2.0.0/16, peer: a}, {cidr: 10.3.0.0/16}], deny: [{cidr: 10.3.0.7/32, peer: b}]",
    );
    let server = to(SERVER, Some(80));
    let other = to("10.3.0.7", Some(80));
    // The packets of all peers have the same slot of the cache, one after another.
    for (packet, expected) in [
        (&server, [("a", true), ("b", false), ("", false)]),
        (&other, [("a", true), ("b", false), ("", true)]),
    ] {
        for (peer, permits) in expected.into_iter().chain(expected) {
            assert_eq!(exit.takes_from(peer, packet), permits, "{peer}");
        }
    }
}

#[test]
fn the_rules_of_a_peer_narrow_those_of_the_network_for_its_packets() {
    use muxtunnel_gateway_config::{Role, key_text};
    let [a, b, c] = [7, 8, 9].map(|byte| key_text(Role::Entry, &[byte; 32]));
    let peers = |rules: &str| {
        let security = format!(
            "{{mode: PublicKeys, privateKeyFiles: [/k], peers: [{{name: a, publicKeys: [{a}], {rules}}}, \
             {{name: b, publicKeys: [{b}], allow: [{{host: web.internal}}]}}, {{name: c, publicKeys: [{c}]}}]}}"
        );
        let network = "allow: [{cidr: 10.2.0.0/16}, {cidr: 10.3.0.0/16, port: 80}]";
        secured(Side::Accepts, &security, "", network)
    };
    let first = peers(
        "allow: [{cidr: 10.2.0.0/24, port: 80, endPort: 90}, {cidr: 10.2.1.0/24}, {cidr: 10.3.0.0/16}], deny: [{cidr: 10.2.0.0/24, port: 81}, {cidr: 10.2.1.7/32}]",
    );
    let exit = Gateway::with(Side::Accepts, &first);
    for (destination, port, of_a) in [
        ("10.2.0.1", Some(80), true),
        ("10.2.0.1", Some(81), false),
        ("10.2.0.1", Some(91), false),
        // Packets without a port need rules for all ports.
        ("10.2.0.1", None, false),
        ("10.2.1.1", None, true),
        ("10.2.1.7", Some(80), false),
        ("10.2.1.7", None, false),
        ("10.2.2.1", Some(80), false),
        ("10.2.9.1", Some(80), false),
        ("10.3.0.1", Some(80), true),
        ("10.3.0.1", Some(81), false),
    ] {
        let packet = to(destination, port);
        let of_c = !destination.starts_with("10.2.9.")
            && (destination.starts_with("10.2.") || port == Some(80));
        // A name never matches a packet. The list has no peer d.
        for (peer, expected) in [("a", of_a), ("b", false), ("c", of_c), ("d", false)] {
            let got = exit.takes_from(peer, &packet);
            assert_eq!(got, expected, "{peer} {destination} {port:?}");
        }
    }
    // Replies to flows of this side pass without a rule of the peer.
    let from_server = packet(TCP, ("10.2.2.1", 80), (ENTRY, 5000));
    exit.sends(&owner("a"), None, &from_server);
    let reply = packet(TCP, (ENTRY, 5000), ("10.2.2.1", 80));
    assert!(exit.takes_from("a", &reply));
    exit.reloads
        .send_replace(Arc::new(peers("suspend: false").reloadable()));
    assert!(exit.takes_from("a", &to("10.2.2.1", Some(81))));
}

#[test]
fn a_reply_passes_without_a_rule_and_a_request_does_not() {
    for protocol in [TCP, UDP] {
        let exit = Gateway::exit(
            "allow: [{cidr: 10.2.0.0/16, port: 80}], deny: [{cidr: 10.2.0.1/32, port: 4000, endPort: 6000}]",
        );
        let request = packet(protocol, (SERVER, 5000), (ENTRY, 53));
        let reply = packet(protocol, (ENTRY, 53), (SERVER, 5000));
        let [first, later] = fragments(protocol, (ENTRY, 53), (SERVER, 5000));
        for packet in [&reply, &first, &later] {
            assert!(!exit.takes_from("", packet));
        }
        exit.sends(&Owner::Side, None, &request);
        assert!(!exit.takes_from("", &later), "no fragment before the first");
        for packet in [&reply, &first, &later] {
            assert!(exit.takes_from("", packet));
        }
        for (from, to) in [
            ((ENTRY, 54), (SERVER, 5000)),
            ((ENTRY, 53), (SERVER, 5001)),
            (("10.8.0.3", 53), (SERVER, 5000)),
            ((ENTRY, 53), ("10.2.0.2", 5000)),
        ] {
            assert!(
                !exit.takes_from("", &packet(protocol, from, to)),
                "{from:?} {to:?}"
            );
            let [first, _] = fragments(protocol, from, to);
            assert!(!exit.takes_from("", &first), "{from:?} {to:?}");
        }
        assert!(
            !exit.takes_from("a", &reply),
            "the address belongs to another entry"
        );
        let other = packet(
            if protocol == TCP { UDP } else { TCP },
            (ENTRY, 53),
            (SERVER, 5000),
        );
        assert!(!exit.takes_from("", &other));
    }
    let exit = Gateway::exit("allow: [{cidr: 10.2.0.0/16, port: 80}]");
    let ping = packet(ICMP, (ENTRY, 0), (SERVER, 0));
    assert!(!exit.takes_from("", &ping));
    exit.sends(&Owner::Side, None, &packet(ICMP, (SERVER, 0), (ENTRY, 0)));
    assert!(exit.takes_from("", &ping));
}

#[test]
fn replies_to_protected_addresses_pass_at_both_ends() {
    for side in [Side::Dials, Side::Accepts] {
        let mut gateway = Gateway::of(side, "", "mtu: 1500");
        let reply = packet(TCP, ("10.3.0.1", 443), ("10.2.9.1", 5000));
        assert!(!gateway.takes_from("", &reply));
        gateway.sends(
            &Owner::Side,
            None,
            &packet(TCP, ("10.2.9.1", 5000), ("10.3.0.1", 443)),
        );
        assert!(gateway.takes_from("", &reply));
        gateway.now += Duration::from_secs(7_500);
        assert!(!gateway.takes_from("", &reply), "the flow has been idle");
    }
}

#[test]
fn a_reply_from_one_entry_to_another_passes() {
    let exit = Gateway::exit("peersReachEachOther: true, allow: [{cidr: 10.8.0.0/24, port: 80}]");
    let [a, b] = ["a", "b"].map(owner);
    let request = packet(TCP, ("10.8.0.2", 5000), ("10.8.0.3", 80));
    let reply = packet(TCP, ("10.8.0.3", 80), ("10.8.0.2", 5000));
    assert!(!exit.takes("b", Some(&a), &reply));
    assert!(exit.takes("a", Some(&b), &request));
    exit.sends(&b, Some(&a), &request);
    assert!(exit.takes("b", Some(&a), &reply));
    assert!(
        !exit.takes("b", None, &reply),
        "a host of the exit's side did not begin it"
    );
}

#[test]
fn flows_whose_replies_a_rule_permits_are_not_remembered() {
    let exit = Gateway::exit("allow: [{cidr: 10.2.0.0/16, port: 80}]");
    exit.sends(
        &Owner::Side,
        None,
        &packet(TCP, (SERVER, 80), (ENTRY, 5000)),
    );
    exit.sends(&owner("a"), None, &packet(TCP, (SERVER, 80), (ENTRY, 5000)));
    assert_eq!(exit.judge.flows.count(), 0);
    exit.sends(&owner("a"), None, &packet(TCP, (SERVER, 81), (ENTRY, 5000)));
    assert_eq!(exit.judge.flows.count(), 1);
}
