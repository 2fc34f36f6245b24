//! Hosts behind the gateways, and the translation of their addresses.

use super::*;

#[test]
fn hosts_behind_both_gateways_reach_each_other_by_translated_addresses() {
    let hosts = Hosts::new();
    let behind = |host: &Host, outside: &str, inside: &str| {
        host.namespace
            .enter(|| Namespace::new(&[&format!("{outside}/24")], &[&format!("{inside}/24")]))
    };
    let client = behind(&hosts.entry, "10.30.0.1", "10.30.0.2");
    client.run(&["ip", "route", "add", "10.20.0.0/24", "via", "10.30.0.1"]);
    let server = behind(&hosts.exit, "10.20.0.1", "10.20.0.2");
    let into = ["--forward", "--masquerade", "in"];
    hosts.entry.make_interface(
        "/dev/net/tun",
        &[&["--route", "10.20.0.0/24"], &into[..]].concat(),
    );
    let out = ["--forward", "--masquerade", "out"];
    hosts.exit.make_interface("/dev/net/tun", &out);
    let flags = [&NETWORKS[..], &["--exit-cidr", "10.20.0.0/24"]].concat();
    let (_exit, _entry) = (hosts.exit(&flags), hosts.entry(&flags));
    // The server has no route to the client, and the exit accepts only the entry's address, so the
    // entry must translate the source.
    let seen = bulk(&client, &server, "10.20.0.2");
    assert_eq!(seen.to_string(), "10.20.0.1");
    // The entry does not translate the source of packets that it sends itself. Only the exit
    // translates this source.
    let seen = bulk(&hosts.entry.namespace, &server, "10.20.0.2");
    assert_eq!(seen.to_string(), "10.20.0.1");
    let seen = bulk(&hosts.entry.namespace, &hosts.exit.namespace, EXIT);
    assert_eq!(seen.to_string(), ENTRY);
    hosts.exit.make_interface("/dev/net/tun", &[]);
    let refused = client.enter(|| {
        TcpStream::connect_timeout(&"10.20.0.2:9".parse().unwrap(), Duration::from_millis(500))
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn a_neighbour_of_the_exit_does_not_use_the_tunnel_under_the_exits_address() {
    let hosts = Hosts::new();
    let neighbour = hosts
        .exit
        .namespace
        .enter(|| Namespace::new(&["10.20.0.1/24"], &["10.20.0.2/24"]));
    neighbour.run(&["ip", "route", "add", "10.72.0.0/24", "via", "10.20.0.1"]);
    hosts
        .exit
        .make_interface("/dev/net/tun", &["--forward", "--masquerade", "out"]);
    hosts
        .entry
        .make_interface("/dev/net/tun", &["--route", "10.20.0.0/24"]);
    let flags = [&NETWORKS[..], &["--exit-cidr", "10.20.0.0/24"]].concat();
    let (_exit, _entry) = (hosts.exit(&flags), hosts.entry(&flags));
    let seen = bulk(&hosts.entry.namespace, &neighbour, "10.20.0.2");
    assert_eq!(seen.to_string(), "10.20.0.1");
    let server = hosts
        .entry
        .namespace
        .enter(|| TcpListener::bind((ENTRY, 0)));
    let to = server.as_ref().unwrap().local_addr().unwrap();
    let refused = neighbour.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn each_end_forwards_as_it_says_and_other_interfaces_are_not_affected() {
    const IN: &str = "--forward --masquerade in";
    const OUT: &str = "--forward --masquerade out";
    let hosts = Hosts::new();
    let behind = |host: &Host, outside: &str, inside: &str| {
        let host = &host.namespace;
        let made = host.enter(|| Namespace::new(&[outside], &[&format!("{inside}/24")]));
        let gateway = outside.trim_end_matches("/24");
        made.run(&["ip", "route", "add", "default", "via", gateway]);
        made
    };
    let client = behind(&hosts.entry, "10.30.0.1/24", "10.30.0.2");
    let other = behind(&hosts.entry, "10.31.0.1/24", "10.31.0.2");
    let server = behind(&hosts.exit, "10.20.0.1/24", "10.20.0.2");
    // As in a pod, the hosts forward packets between all interfaces.
    for host in [&hosts.entry, &hosts.exit] {
        let set = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        host.namespace.enter(set).unwrap();
    }
    let behind = [
        "--entry-cidr",
        "10.30.0.0/24",
        "--exit-cidr",
        "10.20.0.0/24",
    ];
    let flags = [&NETWORKS[..], &behind].concat();
    let (_exit, _entry) = (hosts.exit(&flags), hosts.entry(&flags));
    let reaches = |from: &Namespace, to: &Namespace, address: &str, expected: bool| {
        let listener = to.enter(|| TcpListener::bind((address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let time = match expected {
            true => PATIENCE,
            false => Duration::from_millis(300),
        };
        let reached = from.enter(|| TcpStream::connect_timeout(&to, time));
        reached.is_ok()
    };
    for (entry, exit, there, back) in [
        ("", "", false, false),
        ("--forward", "", false, false),
        ("", "--forward", false, false),
        ("--forward", "--forward", true, true),
        (IN, OUT, true, false),
        ("--forward", OUT, true, false),
        (IN, "--forward", true, false),
    ] {
        for (host, route, flags) in [
            (&hosts.entry, "10.20.0.0/24", entry),
            (&hosts.exit, "10.30.0.0/24", exit),
        ] {
            let flags: Vec<_> = flags.split_whitespace().collect();
            host.make_interface("/dev/net/tun", &[&["--route", route][..], &flags].concat());
        }
        let what = format!("{entry:?} {exit:?}");
        assert_eq!(
            reaches(&client, &server, "10.20.0.2", there),
            there,
            "{what}"
        );
        assert_eq!(reaches(&server, &client, "10.30.0.2", back), back, "{what}");
        assert!(reaches(&client, &other, "10.31.0.2", true), "{what}");
    }
}
