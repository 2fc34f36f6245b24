//! Several entries at one exit, which assigns addresses and resolvers to them.
//!
//! Each host is a network namespace. A separate link connects each entry with the exit. Each entry
//! creates its interface itself, with its assigned addresses.

mod peers;

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::authority::{Authority, Files};
use crate::common::namespace::Namespace;
use crate::common::*;
use muxtunnel_testkit::port::free_network;
use serde_json::Value;

const EXIT: &str = "10.72.0.1";
const EXIT6: &str = "fd72::1";
/// Addresses of the identity `laptop` in a pool of /24 and in a pool of /64, by its hash.
const LAPTOP: [&str; 2] = ["10.72.0.55", "fd72::8337"];
/// Addresses of the identity `phone` in the same pools.
const PHONE: [&str; 2] = ["10.72.0.244", "fd72::7bf4"];
/// The networks of both sides, as flags.
const NETWORKS: [&str; 8] = [
    "--entry-cidr",
    "10.72.0.0/24",
    "--entry-cidr",
    "fd72::/64",
    "--exit-cidr",
    EXIT,
    "--exit-cidr",
    EXIT6,
];
const POOLS: [&str; 8] = [
    "--address-pool",
    "10.72.0.0/24",
    "--address-pool",
    "fd72::/64",
    "--device-address",
    "10.72.0.1/24",
    "--device-address",
    "fd72::1/64",
];
const AUTO: [&str; 6] = [
    "--device-address",
    "auto",
    "--address-pool",
    "10.72.0.0/24",
    "--address-pool",
    "fd72::/64",
];

/// A host, and the address of its gateway's admin port.
struct Host {
    namespace: Namespace,
    admin: &'static str,
}

impl Host {
    fn new() -> Self {
        // Concurrent tests share the outer namespace, so each link has its own network.
        let network = free_network();
        let admin = format!("{network}.2").leak();
        let outside = format!("{network}.1/24");
        Self {
            namespace: Namespace::new(&[&outside], &[&format!("{admin}/24")]),
            admin,
        }
    }

    /// A socket at `address` of this host.
    fn udp(&self, address: &str) -> UdpSocket {
        let socket = self
            .namespace
            .enter(|| UdpSocket::bind((address, 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn addresses(&self) -> Vec<String> {
        let shown = ["-j", "addr", "show", "dev", "mux0"];
        let shown = self.namespace.run(&[&["ip"][..], &shown].concat());
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let infos = shown[0]["addr_info"].as_array().unwrap().iter();
        let mut addresses: Vec<_> = infos
            .filter(|info| info["scope"] == "global")
            .map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]))
            .collect();
        addresses.sort();
        addresses
    }
}

/// An exit and two entries.
struct Hosts {
    exit: Host,
    entries: [Host; 2],
    protocol: &'static str,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Hosts {
    fn with(protocol: &'static str) -> Self {
        let hosts = Self {
            exit: Host::new(),
            entries: [Host::new(), Host::new()],
            protocol,
            authority: Authority::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        for (number, entry) in hosts.entries.iter().enumerate() {
            let ends = [1, 2].map(|end| format!("10.233.{number}.{end}/24"));
            let ends = [ends[0].as_str(), ends[1].as_str()];
            let name = format!("path{number}");
            entry.namespace.join(&hosts.exit.namespace, &name, ends);
        }
        hosts
    }

    fn files(&self, name: &str) -> Files {
        self.authority.issue(self.folder.path(), name, 2100)
    }

    fn gate(&self, host: &Host, role: &str, security: &[&str], flags: &[&str]) -> Gate {
        let protocol = self.protocol.to_lowercase();
        let args = [
            &[role, "--protocol", &protocol, "--security"][..],
            security,
            flags,
        ];
        Gate::within(&host.namespace, host.admin, &args.concat()).until_ready()
    }

    fn exit(&self, flags: &[&str]) -> Gate {
        let files = self.files("exit");
        let security = mtls(&files, &["laptop", "phone"]);
        let security: Vec<_> = security.iter().map(String::as_str).collect();
        let flags = [&["--listen", "0.0.0.0:64000"][..], &NETWORKS, flags].concat();
        self.gate(&self.exit, "exit", &security, &flags)
    }

    /// Starts the entry `number` with a certificate for `name`.
    fn entry(&self, number: usize, name: &str, flags: &[&str]) -> Gate {
        let files = self.files(name);
        let security = mtls(&files, &["exit"]);
        let security: Vec<_> = security.iter().map(String::as_str).collect();
        let connect = format!("10.233.{number}.2:64000");
        let flags = [&["--connect", connect.as_str()][..], flags].concat();
        self.gate(&self.entries[number], "entry", &security, &flags)
    }

    /// Starts an entry as [`Self::entry`] does, with assigned addresses on its interface. Waits for
    /// the assignment.
    fn auto(&self, number: usize, name: &str) -> Gate {
        let entry = self.entry(number, name, &[&NETWORKS[..], &AUTO].concat());
        until("the entry has addresses", || {
            assigned(&entry)["addresses"].is_array()
        });
        entry
    }
}

fn mtls(files: &Files, peers: &[&str]) -> Vec<String> {
    let at = |path: &Path| path.display().to_string();
    let mut flags = vec!["certificates".to_owned()];
    for (flag, value) in [
        ("--tls-certificate", at(&files.certificate)),
        ("--tls-key", at(&files.key)),
        ("--tls-ca", at(&files.ca)),
    ] {
        flags.extend([flag.to_owned(), value]);
    }
    for peer in peers {
        flags.extend(["--peer".to_owned(), (*peer).to_owned()]);
    }
    flags
}

fn assigned(entry: &Gate) -> Value {
    entry.status()["packets"]["assigned"].clone()
}

fn drops(gate: &Gate, reason: &str) -> u64 {
    gate.status()["packets"]["drops"][reason]
        .as_u64()
        .unwrap_or(0)
}

/// Whether a datagram and its answer arrive.
fn exchanged(from: &UdpSocket, to: &UdpSocket) -> bool {
    let (here, there) = (from.local_addr().unwrap(), to.local_addr().unwrap());
    let mut buffer = [0; 9];
    from.send_to(b"there", there).unwrap();
    let heard = |result: std::io::Result<(usize, std::net::SocketAddr)>, sender| {
        result.is_ok_and(|(_, from)| from == sender)
    };
    if !heard(to.recv_from(&mut buffer), here) {
        return false;
    }
    to.send_to(b"back", here).unwrap();
    heard(from.recv_from(&mut buffer), there)
}

#[test]
fn each_identity_has_its_own_addresses_also_behind_a_restart() {
    for protocol in ["Native", "QUIC"] {
        let hosts = Hosts::with(protocol);
        let exit = hosts.exit(&POOLS);
        let laptop = hosts.auto(0, "laptop");
        let _phone = hosts.auto(1, "phone");
        assert_eq!(assigned(&laptop)["addresses"], serde_json::json!(LAPTOP));
        let expected = [format!("{}/32", LAPTOP[0]), format!("{}/128", LAPTOP[1])];
        assert_eq!(hosts.entries[0].addresses(), expected);
        let far = [EXIT, EXIT6].map(|address| hosts.exit.udp(address));
        for (host, addresses) in hosts.entries.iter().zip([LAPTOP, PHONE]) {
            for (address, far) in addresses.iter().zip(&far) {
                let near = host.udp(address);
                assert!(exchanged(&near, far) && exchanged(far, &near), "{address}");
            }
        }
        drop(laptop);
        let laptop = hosts.auto(0, "laptop");
        assert_eq!(assigned(&laptop)["addresses"], serde_json::json!(LAPTOP));
        drop(exit);
        let _exit = hosts.exit(&POOLS);
        let near = hosts.entries[0].udp(LAPTOP[0]);
        let far = hosts.exit.udp(EXIT);
        for socket in [&near, &far] {
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
        }
        until("the laptop is back", || exchanged(&near, &far));
    }
}

/// A killed entry over QUIC does not close its connection, so the exit keeps its session until the
/// idle timeout. Meanwhile the exit sends as many packets as the congestion window permits.
#[test]
fn a_restarted_entry_gets_packets_before_the_end_of_its_former_session() {
    let hosts = Hosts::with("QUIC");
    let exit = hosts.exit(&POOLS);
    let killed = hosts.auto(0, "laptop");
    let (far, flood) = (hosts.exit.udp(EXIT), hosts.exit.udp(EXIT));
    assert!(exchanged(&hosts.entries[0].udp(LAPTOP[0]), &far));
    let (is_over, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let (until_over, count) = (Arc::clone(&is_over), Arc::clone(&sent));
    let flooding = std::thread::spawn(move || {
        while !until_over.load(Relaxed) {
            for _ in 0..20 {
                // An error means that the queue is full, or is an ICMP error of the closed port.
                let is_sent = flood.send_to(&[7; 1300], (LAPTOP[0], 9)).is_ok();
                count.fetch_add(u64::from(is_sent), Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    killed.signal("KILL");
    drop(killed);
    let before = sent.load(Relaxed);
    until(
        "more packets were sent than a congestion window has",
        || sent.load(Relaxed) > before + 1000,
    );
    let _laptop = hosts.auto(0, "laptop");
    let near = hosts.entries[0].udp(LAPTOP[0]);
    for socket in [&near, &far] {
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
    }
    until("the exit answers", || exchanged(&near, &far));
    let sessions = &exit.status()["packets"]["sessions"];
    assert_eq!(sessions, 2, "the former session must not have ended");
    is_over.store(true, Relaxed);
    flooding.join().unwrap();
}

#[test]
fn an_entry_does_not_send_from_the_address_of_another() {
    let hosts = Hosts::with("Native");
    let exit = hosts.exit(&POOLS);
    let _laptop = hosts.auto(0, "laptop");
    // This entry's configuration places the laptop's address on the other side.
    let all = ["--exit-cidr", "10.72.0.0/24"];
    let phone = hosts.entry(1, "phone", &[&NETWORKS[..], &all, &AUTO].concat());
    until("the phone has addresses", || {
        assigned(&phone)["addresses"].is_array()
    });
    for address in [PHONE[0], "10.72.0.99"] {
        let line = format!("ip addr add {address}/32 dev mux0");
        let line: Vec<_> = line.split(' ').collect();
        hosts.entries[0].namespace.run(&line);
    }
    let far = hosts.exit.udp(EXIT);
    let to = far.local_addr().unwrap();
    for (count, address) in (1..).zip([PHONE[0], "10.72.0.99"]) {
        hosts.entries[0].udp(address).send_to(b"x", to).unwrap();
        until("the exit drops the packet", || {
            drops(&exit, "source_of_other_peer") == count
        });
    }
    // A packet from the laptop's own address passes.
    assert!(exchanged(&hosts.entries[0].udp(LAPTOP[0]), &far));
    // Entries do not reach each other by default.
    let laptop = hosts.entries[0].udp(LAPTOP[0]).local_addr().unwrap();
    let phone = hosts.entries[1].udp(PHONE[0]);
    phone.send_to(b"x", laptop).unwrap();
    until("the exit drops the packet", || {
        drops(&exit, "destination_not_local") == 1
    });
    assert!(exchanged(&phone, &far));
}

#[test]
fn entries_without_an_identity_have_addresses_of_their_sessions() {
    let hosts = Hosts::with("Native");
    let flags = [&["--listen", "0.0.0.0:64000"][..], &NETWORKS, &POOLS];
    let _exit = hosts.gate(&hosts.exit, "exit", &["none"], &flags.concat());
    let start = |number: usize| {
        let connect = format!("10.233.{number}.2:64000");
        let flags = [&["--connect", connect.as_str()][..], &NETWORKS, &AUTO];
        let entry = hosts.gate(&hosts.entries[number], "entry", &["none"], &flags.concat());
        until("the entry has addresses", || {
            assigned(&entry)["addresses"].is_array()
        });
        let address = assigned(&entry)["addresses"][0]
            .as_str()
            .unwrap()
            .to_owned();
        (entry, address)
    };
    let far = hosts.exit.udp(EXIT);
    let (first, address) = start(0);
    let (_second, other) = start(1);
    assert_ne!(address, other);
    assert!(exchanged(&hosts.entries[0].udp(&address), &far));
    assert!(exchanged(&hosts.entries[1].udp(&other), &far));
    drop(first);
    let (_third, address) = start(0);
    assert_ne!(address, other);
    assert!(exchanged(&hosts.entries[0].udp(&address), &far));
}

#[test]
fn an_entry_uses_the_resolvers_that_it_reaches() {
    for protocol in ["Native", "QUIC"] {
        let hosts = Hosts::with(protocol);
        let dns = ["--dns-server", EXIT, "--dns-domain", "svc.cluster.local"];
        let _exit = hosts.exit(&[&POOLS[..], &dns].concat());
        let file = hosts.folder.path().join("resolv.conf");
        let write = ["--dns-file", file.to_str().unwrap()];
        let laptop = hosts.entry(0, "laptop", &[&NETWORKS[..], &AUTO, &write].concat());
        until("the file is written", || file.exists());
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            format!(
                "# Resolvers of the other side of a tunnel, written by muxgate.\nsearch svc.cluster.local\nnameserver {EXIT}\n"
            )
        );
        until("the status has the resolver", || {
            assigned(&laptop)["dnsServers"] == serde_json::json!([EXIT])
        });
        laptop.signal("TERM");
        until("the file is removed", || !file.exists());
        drop(laptop);
        // The entry ignores a DNS server that it does not reach through the tunnel.
        let some = ["--entry-cidr", "fd72::/64", "--exit-cidr", EXIT6];
        let auto = ["--device-address", "auto", "--address-pool", "fd72::/64"];
        let laptop = hosts.entry(0, "laptop", &[&some[..], &auto, &write].concat());
        laptop.line(&["MT0234", "Ignored assigned addresses"]);
        until("the status has the address alone", || {
            assigned(&laptop) == serde_json::json!({"addresses": [LAPTOP[1]]})
        });
        assert!(!file.exists());
    }
}

#[test]
fn an_entry_takes_addresses_of_the_pools_that_it_names_alone() {
    let hosts = Hosts::with("Native");
    let _exit = hosts.exit(&POOLS);
    let named = ["10.72.0.128/25", "fd72::/96"];
    let auto = ["--device-address", "auto", "--address-pool", named[0]];
    let auto = [&auto[..], &["--address-pool", named[1]]].concat();
    // The address of the laptop is within `entryCIDRs`, but not within the pool of IPv4.
    for (number, name, expected) in [(0, "laptop", &LAPTOP[1..]), (1, "phone", &PHONE[..])] {
        let entry = hosts.entry(number, name, &[&NETWORKS[..], &auto].concat());
        until("the entry has addresses", || {
            assigned(&entry)["addresses"].is_array()
        });
        assert_eq!(assigned(&entry)["addresses"], serde_json::json!(expected));
    }
}

#[test]
fn an_entry_takes_no_address_that_its_host_has_or_routes_through() {
    let hosts = Hosts::with("Native");
    let _exit = hosts.exit(&POOLS);
    let has = format!("addr add {}/32 dev eth0", LAPTOP[0]);
    let through = format!("route add 198.51.100.0/24 via {} dev eth0 onlink", PHONE[0]);
    for (number, name, line, v6) in [
        (0, "laptop", has, LAPTOP[1]),
        (1, "phone", through, PHONE[1]),
    ] {
        let host = &hosts.entries[number];
        let line: Vec<_> = line.split(' ').collect();
        host.namespace.run(&[&["ip"][..], &line].concat());
        let entry = hosts.entry(number, name, &[&NETWORKS[..], &AUTO].concat());
        until("the entry has an address", || {
            assigned(&entry)["addresses"].is_array()
        });
        assert_eq!(assigned(&entry)["addresses"], serde_json::json!([v6]));
        assert_eq!(host.addresses(), [format!("{v6}/128")]);
        entry.line(&["MT0234", "Ignored assigned addresses"]);
    }
}
