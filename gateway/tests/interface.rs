//! `muxgate tun` creates the requested interface, changes only settings that differ, and deletes
//! everything that it created.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::Command;

use muxtunnel_testkit::namespace::Namespace;
use serde_json::Value;

const CREATE: &str = "tun create --owner 65532 --address 10.72.0.1/24 --address fd72::1/64 \
     --route 10.20.1.2/16 --route fd20::/16";

/// Runs muxgate on `host`.
fn muxgate(host: &Namespace, line: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
    let ran = host.run(command.args(line.split_whitespace()));
    ran.map_err(|error| format!("{error:#}"))
}

/// The JSON output of `ip`.
fn ip(host: &Namespace, line: &str) -> Vec<Value> {
    let said = host.run(Command::new("ip").arg("-j").args(line.split(' ')));
    match serde_json::from_str(&said.unwrap()).unwrap() {
        Value::Array(items) => items,
        other => panic!("{other}"),
    }
}

fn link(host: &Namespace) -> Value {
    ip(host, "-d link show dev mux0").remove(0)
}

/// Addresses of scope global, each with its prefix length.
fn addresses(host: &Namespace) -> Vec<String> {
    let shown = ip(host, "addr show dev mux0").remove(0);
    let infos = shown["addr_info"].as_array().unwrap().iter();
    let mut addresses: Vec<_> = infos
        .filter(|info| info["scope"] == "global")
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]))
        .collect();
    addresses.sort();
    addresses
}

/// Routes of protocol `static`.
fn routes(host: &Namespace) -> Vec<String> {
    let listed = ["route", "-6 route"].map(|line| ip(host, &format!("{line} show dev mux0")));
    let mut routes: Vec<_> = listed
        .iter()
        .flatten()
        .filter(|route| route["protocol"] == "static")
        .map(|route| route["dst"].as_str().unwrap().to_owned())
        .collect();
    routes.sort();
    routes
}

#[test]
fn an_interface_is_made_as_asked_for_and_kept_until_something_differs() {
    let host = Namespace::new().unwrap();
    muxgate(&host, &format!("{CREATE} --mtu 1400")).unwrap();
    let made = link(&host);
    assert_eq!(made["mtu"], 1400);
    assert_eq!(made["txqlen"], 10_000);
    assert!(
        made["flags"].as_array().unwrap().contains(&"UP".into()),
        "{made}"
    );
    let info = &made["linkinfo"]["info_data"];
    assert_eq!(
        (&info["type"], &info["persist"]),
        (&"tun".into(), &true.into()),
        "{info}"
    );
    assert_eq!(info["user"], 65532, "{info}");
    assert_eq!(addresses(&host), ["10.72.0.1/24", "fd72::1/64"]);
    assert_eq!(routes(&host), ["10.20.0.0/16", "fd20::/16"]);

    // A route of another protocol than `static`, which muxgate did not add. It must stay.
    host.ip("route add 10.99.0.0/16 dev mux0 proto boot")
        .unwrap();
    muxgate(&host, &format!("{CREATE} --mtu 1400")).unwrap();
    assert_eq!(link(&host), made);
    assert_eq!(ip(&host, "route show 10.99.0.0/16").len(), 1);

    muxgate(
        &host,
        "tun create --owner 65533 --address 10.72.0.9/24 --route 10.21.0.0/16 --route 10.20.0.0/16",
    )
    .unwrap();
    let changed = link(&host);
    assert_eq!(changed["ifindex"], made["ifindex"]);
    assert_eq!(
        (&changed["mtu"], &changed["linkinfo"]["info_data"]["user"]),
        (&1500.into(), &65533.into())
    );
    assert_eq!(addresses(&host), ["10.72.0.9/24"]);
    assert_eq!(routes(&host), ["10.20.0.0/16", "10.21.0.0/16"]);

    muxgate(&host, "tun delete").unwrap();
    assert_eq!(
        ip(&host, "link").len(),
        1,
        "an interface other than lo exists"
    );
    assert_eq!(ip(&host, "route"), Vec::<Value>::new());
    assert_eq!(
        muxgate(&host, "tun delete").unwrap(),
        "mux0 does not exist\n"
    );
}

#[test]
fn forwarding_is_set_for_the_interfaces_and_the_versions_that_are_carried() {
    let host = Namespace::new().unwrap();
    host.ip("link add eth0 type veth peer name eth1").unwrap();
    let keys = [
        "net/ipv4/conf/mux0/forwarding",
        "net/ipv4/conf/eth0/forwarding",
        "net/ipv4/conf/default/forwarding",
        "net/ipv6/conf/all/forwarding",
    ];
    let read = || keys.map(|key| host.sysctl(key).unwrap());
    host.set("net/ipv4/ip_forward", "0").unwrap();
    host.set("net/ipv6/conf/all/forwarding", "0").unwrap();
    muxgate(&host, CREATE).unwrap();
    assert_eq!(read(), ["0", "0", "0", "0"]);
    muxgate(&host, "tun create --address 10.72.0.1/24 --forward").unwrap();
    assert_eq!(read(), ["1", "1", "0", "0"]);
    muxgate(&host, &format!("{CREATE} --forward")).unwrap();
    assert_eq!(read(), ["1", "1", "0", "1"]);
}

#[test]
fn the_node_is_made_where_there_is_none() {
    let host = Namespace::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("tun");
    let line = format!("{CREATE} --device-node {}", node.display());
    for _ in 0..2 {
        muxgate(&host, &line).unwrap();
        let made = std::fs::metadata(&node).unwrap();
        assert!(made.file_type().is_char_device());
        assert_eq!((made.rdev(), made.mode() & 0o777), (10 << 8 | 200, 0o666));
    }
    std::fs::remove_file(&node).unwrap();
    std::fs::write(&node, "").unwrap();
    let refused = muxgate(&host, &line).unwrap_err();
    assert!(
        refused.contains("not the node of the TUN driver"),
        "{refused}"
    );
}

#[test]
fn what_cannot_be_had_is_refused_and_what_is_there_stays() {
    let host = Namespace::new().unwrap();
    host.ip("link add eth0 type veth peer name eth1").unwrap();
    host.ip("link set eth1 up").unwrap();
    host.ip("addr add 192.0.2.1/24 dev eth0").unwrap();
    host.ip("link set eth0 up").unwrap();
    for (line, reason) in [
        ("tun create --device eth0", "is not a TUN interface"),
        ("tun delete --device eth0", "is not a TUN interface"),
        (
            "tun create --route 192.0.2.0/24",
            "already has a route to 192.0.2.0/24",
        ),
        (
            "tun create --route 198.51.100.0/24 --peer 198.51.100.7",
            "--route 198.51.100.0/24 contains the carrier's peer 198.51.100.7",
        ),
        ("tun create --device mux%d", "letters, digits"),
        ("tun create --mtu 1279", "1279 is not in"),
    ] {
        let refused = muxgate(&host, line).unwrap_err();
        assert!(refused.contains(reason), "{line}: {refused}");
    }
    assert_eq!(ip(&host, "route show 192.0.2.0/24")[0]["dev"], "eth0");
}

#[test]
fn an_interface_for_several_queues_is_made_and_kept_as_such() {
    let host = Namespace::new().unwrap();
    for _ in 0..2 {
        muxgate(&host, &format!("{CREATE} --queues 2")).unwrap();
        let info = &link(&host)["linkinfo"]["info_data"];
        assert_eq!(info["multi_queue"], true, "{info}");
    }
    let refused = muxgate(&host, CREATE).unwrap_err();
    assert!(
        refused.contains("was created for several queues"),
        "{refused}"
    );
    muxgate(&host, "tun delete").unwrap();
    muxgate(&host, CREATE).unwrap();
    let refused = muxgate(&host, &format!("{CREATE} --queues 4")).unwrap_err();
    assert!(
        refused.contains("was created for one queue") && refused.contains("`--queues 4`"),
        "{refused}"
    );
    let refused = muxgate(&host, "tun create --queues 5").unwrap_err();
    assert!(refused.contains("5 is not in 1..=4"), "{refused}");
}

#[test]
fn without_the_right_it_says_which_one_it_needs() {
    let host = Namespace::new().unwrap();
    muxgate(&host, CREATE).unwrap();
    let powerless = |line: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65532",
            "--clear-groups",
            "--bounding-set",
            "-all",
        ]);
        command.args(["--inh-caps", "-all", "--no-new-privs"]);
        command.arg(env!("CARGO_BIN_EXE_muxgate"));
        let ran = host.run(command.args(line.split_whitespace()));
        format!("{:#}", ran.unwrap_err())
    };
    for line in [CREATE, "tun delete"] {
        let refused = powerless(line);
        assert!(refused.contains("CAP_NET_ADMIN"), "{line}: {refused}");
    }
    let node = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(node.path(), open).unwrap();
    let refused = powerless(&format!(
        "{CREATE} --device-node {}/tun",
        node.path().display()
    ));
    assert!(refused.contains("CAP_MKNOD"), "{refused}");
    assert_eq!(addresses(&host), ["10.72.0.1/24", "fd72::1/64"]);
}
