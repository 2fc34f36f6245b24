//! Gateways that listen on `[::]`: in a network without IPv4, on a kernel without IPv6, and for
//! clients of both families. IPv4 addresses appear as IPv4 in all output and rules.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;

use crate::common::namespace::Namespace;
use crate::common::*;

const OUTSIDE: &str = "fd64:1::1";
const INSIDE: &str = "fd64:1::2";

/// Runs `muxgate ARGS...` with IPv6 sockets disabled, as on a kernel with `ipv6.disable=1`.
const WITHOUT_IPV6: &str = r#"
import ctypes, os, platform, struct, sys
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7fff0000, 0x00050000
AF_INET6, EAFNOSUPPORT = 10, 97
SOCKET = {"x86_64": 41, "aarch64": 198}[platform.machine()]
rules = [(LOAD, 0, 0, 0), (EQUALS, 0, 3, SOCKET), (LOAD, 0, 0, 16), (EQUALS, 0, 1, AF_INET6),
         (RETURN, 0, 0, ERRNO | EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), 0))
buffer = ctypes.create_string_buffer(code)
struct.pack_into("HxxxxxxP", program, 0, len(rules), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Sends four bytes in both directions.
fn assert_echoes(listener: &TcpListener, forward: SocketAddr) {
    let mut client = connect(forward);
    let mut accepted = accept(listener);
    for (from, to) in [(true, b"ping"), (false, b"pong")] {
        let (from, to, bytes) = match from {
            true => (&mut client, &mut accepted, to),
            false => (&mut accepted, &mut client, to),
        };
        let mut read = [0; 4];
        from.write_all(bytes).unwrap();
        to.read_exact(&mut read).unwrap();
        assert_eq!(&read, bytes);
    }
}

#[test]
fn a_tunnel_comes_up_where_there_is_no_ipv4() {
    let namespace = Namespace::new(&[&format!("{OUTSIDE}/64")], &[&format!("{INSIDE}/64")]);
    namespace.run(&["ip", "-4", "address", "flush", "dev", "lo"]);
    let addresses = namespace.run(&["ip", "-4", "address"]);
    assert_eq!(addresses.trim(), "");
    let listener = TcpListener::bind((OUTSIDE, 0)).unwrap();
    let target = listener.local_addr().unwrap();
    let (carrier, forward) = (free_port(), free_port());
    let _exit = Gate::within(
        &namespace,
        INSIDE,
        &[
            "exit",
            "--security",
            "none",
            "--listen",
            &format!("[::]:{carrier}"),
            "--allow",
            &target.to_string(),
        ],
    )
    .until_ready();
    let _entry = Gate::within(
        &namespace,
        INSIDE,
        &[
            "entry",
            "--security",
            "none",
            "--connect",
            &at(INSIDE, carrier),
            "--forward",
            &format!("[::]:{forward}:{target}"),
        ],
    )
    .until_ready();
    assert_echoes(&listener, SocketAddr::new(INSIDE.parse().unwrap(), forward));
}

#[test]
fn a_kernel_without_ipv6_gives_all_addresses_of_ipv4() {
    let (listener, target) = target();
    let (carrier, admin) = (free_port(), free_port());
    let mut exit = Command::new("python3")
        .args(["-c", WITHOUT_IPV6, env!("CARGO_BIN_EXE_muxgate")])
        .args(["exit", "--security", "none", "--workers", "1"])
        .args(["--listen", &format!("[::]:{carrier}")])
        .args(["--admin", &format!("[::]:{admin}")])
        .args(["--allow", &target.to_string()])
        .spawn()
        .expect("python3 is needed: apt-get install python3");
    let forward = free_port();
    let entry = Gate::entry("Native", carrier, &[(forward, target)]);
    until("the entry has a carrier", || {
        let status = exit.try_wait().unwrap();
        assert!(status.is_none(), "the exit ended: {status:?}");
        entry.get("/readyz").0 == 200
    });
    assert_echoes(&listener, ([127, 0, 0, 1], forward).into());
    exit.kill().unwrap();
    exit.wait().unwrap();
}

#[test]
fn addresses_of_ipv4_stay_what_they_are_on_sockets_of_both_families() {
    let (listener, target) = target();
    let (carrier, forward, reverse) = (free_port(), free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: '[::]:{carrier}'\nadmin: ADMIN\nallow: [{target_rule}]\n\
         allowListen: ['127.0.0.1:{reverse}']\n", target_rule = crate::common::rule(target)
    ))
    .until_ready();
    // The decision about an address is independent of its notation.
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         forwards:\n\
         - {{name: web, listen: '[::]:{forward}', targets: [{{host: 127.0.0.1, port: {port}}}], proxyProtocol: {{send: V2}}}}\n\
         reverseForwards:\n\
         - {{name: back, listen: '[::ffff:127.0.0.1]:{reverse}', targets: [{{host: 127.0.0.1, port: {port}}}]}}\n",
        port = target.port()
    ))
    .until_ready();
    let peer = exit.status()["carriers"][0]["peer"].clone();
    assert!(peer.as_str().unwrap().starts_with("127.0.0.1:"), "{peer}");
    // The PROXY header has IPv4 addresses.
    let client = connect(([127, 0, 0, 1], forward).into());
    let mut header = [0; 28];
    accept(&listener).read_exact(&mut header).unwrap();
    assert_eq!((header[13], &header[16..20]), (0x11, &[127, 0, 0, 1][..]));
    drop(client);
    let line = entry.line(&["Stream closed", "127.0.0.1:"]);
    assert!(!line.contains("::ffff:"), "{line}");
    // IPv6 clients reach the same socket.
    let client = connect((Ipv6Addr::LOCALHOST, forward).into());
    accept(&listener).read_exact(&mut header).unwrap();
    assert_eq!(header[13], 0x21);
    drop(client);
    assert_echoes(&listener, ([127, 0, 0, 1], reverse).into());
}
