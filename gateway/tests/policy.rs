//! Tests of the targets that an exit dials, through a real tunnel. The tests count connections at
//! the listeners.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use crate::common::peer::{Carrier, hello, hello_ack, stream_ids};
use crate::common::{
    Gate, accept, assert_reset, connect, free_port, metric, read_all, spellings, target,
};
use muxtunnel_proto::native::codec::Frame;
use muxtunnel_proto::{Reason, ResetCode, StreamId};

/// A peer that requests targets from an exit, with one stream for each target.
struct Asking {
    carrier: Carrier,
    ids: std::vec::IntoIter<StreamId>,
}

impl Asking {
    fn of(port: u16) -> Self {
        let tcp = connect(([127, 0, 0, 1], port).into());
        tcp.set_nodelay(true).unwrap();
        let mut carrier = Carrier::new(tcp);
        carrier.send(&hello(0, [0; 16], [0; 32]));
        let answer = carrier.next();
        assert_eq!(
            std::mem::discriminant(&answer),
            std::mem::discriminant(&hello_ack())
        );
        let ids = stream_ids(1000).into_iter();
        Self { carrier, ids }
    }

    /// Whether the exit reaches the target. `Err`: the code of the refusal.
    fn asks_for(&mut self, host: &str, port: u16) -> Result<(), u16> {
        self.asks_for_target(&format!("tcp://{host}:{port}"))
    }

    fn asks_for_target(&mut self, target: &str) -> Result<(), u16> {
        let stream = self.ids.next().unwrap();
        self.carrier.send(&Frame::Open {
            stream,
            priority: 0,
            source: None,
            target: target.to_owned(),
        });
        loop {
            match self.carrier.next_of_note() {
                Frame::Opened { stream: s, .. } if s == stream => return Ok(()),
                Frame::ResetStream {
                    stream: s, code, ..
                } if s == stream => {
                    let cut = ResetCode::Cancelled.code();
                    self.carrier.send(&Frame::ResetStream {
                        stream,
                        code: cut,
                        final_size: 0,
                        reason: String::new(),
                    });
                    return Err(code);
                }
                _ => {}
            }
        }
    }
}

/// An exit that may dial everything except protected addresses.
fn exit_to_anywhere(carrier: u16) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{{host: '*'}}, {{cidr: 0.0.0.0/0}}, {{cidr: '::/0'}}, {{cidr: 127.0.0.77/32}}]\n\
         protectedCIDRs: [10.96.0.1, 10.97.0.0/16, 'fd77::/64']\n"
    ))
    .until_ready()
}

/// Spellings of protected addresses, and names that resolve to a protected address.
fn guarded() -> BTreeSet<String> {
    let hosts: BTreeSet<String> = [spellings::addresses(), spellings::numbers()]
        .concat()
        .into_iter()
        .chain(["localhost", "LOCALHOST.", "127.1", "[::1]"].map(str::to_owned))
        .collect();
    assert!(hosts.len() >= 400, "{}", hosts.len());
    hosts
}

/// Number of connections in the accept queue.
fn connections(listener: &TcpListener) -> usize {
    listener.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| listener.accept().ok()).count()
}

#[test]
fn no_spelling_of_a_guarded_address_is_dialled() {
    // The listener accepts connections on all addresses of this host, of both families.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let carrier = free_port();
    let exit = exit_to_anywhere(carrier);
    let mut peer = Asking::of(carrier);
    let hosts = guarded();
    let refused = Err(ResetCode::Refused(Reason::NotAllowed).code());
    for host in &hosts {
        assert_eq!(peer.asks_for(host, port), refused, "{host}");
    }
    assert_eq!(connections(&listener), 0);
    let counted = metric(&exit, "muxgate_opens_refused_total{code=\"MT0204\"}");
    assert_eq!(counted, hosts.len() as u64);
    let lines = exit.log().matches("Open refused").count();
    assert!(lines < hosts.len(), "all {lines} refusals are logged");
    assert_eq!(peer.asks_for("127.0.0.77", port), Ok(()));
    assert_eq!(
        connections(&listener),
        1,
        "the literally named target is dialled"
    );
}

/// Number of clients that request targets at the same time. Most of the time of a request is a wait.
const CLIENTS: usize = 8;

/// Returns the reply to a client that sends `said` to a port.
fn hears(port: u16, said: &[u8]) -> Vec<u8> {
    let tcp = connect(([127, 0, 0, 1], port).into());
    (&tcp).write_all(said).unwrap();
    read_all(&tcp)
}

/// Whether the HTTP proxy at `port` forbids a request. A request that it does not understand is also
/// refused.
fn is_forbidden(port: u16, said: &str) -> bool {
    let answer = String::from_utf8(hears(port, said.as_bytes())).unwrap();
    let status = answer.split(' ').nth(1).unwrap_or_default();
    assert!(["400", "403"].contains(&status), "{said}: {answer}");
    status == "403"
}

/// Requests `host` at the port `to` from the proxy at `port` by SOCKS5, SOCKS4a, CONNECT and an
/// absolute URL. Returns how many of the requests the exit refused.
fn refused(port: u16, host: &str, to: u16) -> u64 {
    let name = [&[3, host.len() as u8], host.as_bytes(), &to.to_be_bytes()].concat();
    let answer = hears(port, &[b"\x05\x01\0\x05\x01\0", &name[..]].concat());
    assert!([1, 2].contains(&answer[3]), "{host}: {answer:?}");
    let by_socks5 = answer[3] == 2;
    let name = [
        &to.to_be_bytes()[..],
        b"\0\0\0\x01me\0",
        host.as_bytes(),
        b"\0",
    ]
    .concat();
    let answer = hears(port, &[b"\x04\x01", &name[..]].concat());
    assert_eq!(answer[1], 91, "{host}");
    let host = match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let by_http = [
        format!("CONNECT {host}:{to} HTTP/1.1\r\nHost: web\r\n\r\n"),
        format!("GET http://{host}:{to}/ HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"),
    ];
    let by_http = by_http.map(|said| u64::from(is_forbidden(port, &said)));
    u64::from(by_socks5) + by_http.iter().sum::<u64>()
}

#[test]
fn no_spelling_is_dialled_for_a_client_of_any_proxy() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let to = listener.local_addr().unwrap().port();
    let (carrier, port) = (free_port(), free_port());
    let exit = exit_to_anywhere(carrier);
    let _entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         proxies:\n- {{name: a, listen: '127.0.0.1:{port}', protocol: Auto}}\n"
    ))
    .until_ready();
    let hosts: Vec<String> = guarded().into_iter().collect();
    let asked: u64 = std::thread::scope(|scope| {
        let clients: Vec<_> = hosts
            .chunks(hosts.len().div_ceil(CLIENTS))
            .map(|hosts| {
                scope.spawn(move || {
                    hosts
                        .iter()
                        .map(|host| refused(port, host, to))
                        .sum::<u64>()
                })
            })
            .collect();
        let asked = clients.into_iter().map(|client| client.join().unwrap());
        asked.sum()
    });
    // Programs disagree about the host in these notations, so a check and a dial could use
    // different hosts.
    for host in [
        format!("web.example.com@127.0.0.1:{to}"),
        format!("127.0.0.1:{to}#@web.example.com:{to}"),
        format!("127.0.0.1:{to}?@web.example.com"),
        format!("127.0.0.1:{to}\\@web.example.com:{to}"),
        format!("127%2e0.0.1:{to}"),
        format!("[::ffff:127.0.0.1%25lo]:{to}"),
        format!("%31%32%37.0.0.1:{to}"),
    ] {
        is_forbidden(
            port,
            &format!("GET http://{host}/ HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"),
        );
        is_forbidden(port, &format!("CONNECT {host} HTTP/1.1\r\n\r\n"));
    }
    assert!(asked > 1000, "{asked}");
    assert_eq!(connections(&listener), 0);
    let counted = metric(&exit, "muxgate_opens_refused_total{code=\"MT0204\"}");
    assert!(
        counted >= asked,
        "{counted} of {asked} refusals are counted"
    );
}

#[test]
fn an_entry_dials_for_an_exit_none_of_its_own_ports() {
    let (carrier, port) = (free_port(), free_port());
    let _exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allowListen: ['127.0.0.1:{port}']\n"
    ))
    .until_ready();
    let text = |host: &str, to: u16| {
        format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nreverseForwards:\n\
             - {{name: a, listen: '127.0.0.1:{port}', targets: [{{host: '{host}', port: {to}}}]}}\n"
        )
    };
    let (listener, reached) = target();
    let entry = Gate::with_file(&text("localhost", reached.port())).until_ready();
    crate::common::until("the exit listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    accept(&listener);
    entry.rewrite(&text("localhost", entry.admin));
    entry.line(&["Configuration reloaded"]);
    crate::common::until("the forward has its new target", || {
        let tcp = connect(([127, 0, 0, 1], port).into());
        let _ = (&tcp).write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
        crate::common::end_of(&tcp).is_err()
    });
    entry.line(&["MT0204"]);
}

#[test]
fn an_entry_dials_for_an_exit_no_spelling_that_only_a_resolver_reads_as_an_address() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let to = listener.local_addr().unwrap().port();
    let carrier = free_port();
    // The test uses only 60 of the numbers, because a session may request at most 64 listeners.
    let hosts = spellings::numbers().into_iter().take(60);
    let hosts: Vec<(String, u16)> = hosts.map(|host| (host, free_port())).collect();
    let ports = hosts.iter().map(|(_, port)| port);
    let ports: Vec<String> = ports.map(|port| format!("'127.0.0.1:{port}'")).collect();
    let _exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\nallowListen: [{}]\n",
        ports.join(", ")
    ))
    .until_ready();
    let forwards: String = hosts
        .iter()
        .map(|(host, port)| {
            format!(
                "- {{name: f{port}, listen: '127.0.0.1:{port}', \
                 targets: [{{host: '{host}', port: {to}}}]}}\n"
            )
        })
        .collect();
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nreverseForwards:\n{forwards}"
    ))
    .until_ready();
    for (_, port) in &hosts {
        crate::common::until("the exit listens", || {
            std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok()
        });
        assert_reset(&connect(([127, 0, 0, 1], *port).into()));
    }
    assert_eq!(connections(&listener), 0);
    let refused = metric(&entry, "muxgate_opens_refused_total{code=\"MT0204\"}");
    assert!(refused >= hosts.len() as u64, "{refused}");
}

#[test]
fn a_unix_socket_is_dialled_by_the_one_path_that_a_rule_has() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let path = format!("{dir}/socket");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::os::unix::fs::symlink(&path, format!("{dir}/link")).unwrap();
    let connections = || std::iter::from_fn(|| listener.accept().ok()).count();
    let refused = Err(ResetCode::Refused(Reason::NotAllowed).code());
    // Rules for all names and networks do not permit these targets.
    let carrier = free_port();
    let anywhere = exit_to_anywhere(carrier);
    let mut peer = Asking::of(carrier);
    assert_eq!(peer.asks_for_target(&format!("unix:{path}")), refused);
    drop(anywhere);
    let carrier = free_port();
    let _exit = Gate::exit("native", carrier, &[&format!("unix:{path}"), "*"]).until_ready();
    let mut peer = Asking::of(carrier);
    for target in [
        format!("unix:{dir}/link"),
        format!("unix:{dir}//socket"),
        format!("unix:{dir}/./socket"),
        format!("unix:{dir}/../{}/socket", dir.rsplit('/').next().unwrap()),
        format!("unix:/{path}"),
        format!("unix:{path}/"),
        format!("unix:{path}\0"),
        format!("unix:\0{path}"),
        format!("unix:{}", &path[1..]),
        "unix:".to_owned(),
    ] {
        assert_eq!(peer.asks_for_target(&target), refused, "{target}");
    }
    for target in [
        format!("UNIX:{path}"),
        format!("unix//{path}"),
        format!("tcp://unix:{path}"),
        format!("tcp://{path}:80"),
    ] {
        assert!(peer.asks_for_target(&target).is_err(), "{target}");
    }
    assert_eq!(connections(), 0);
    assert_eq!(peer.asks_for_target(&format!("unix:{path}")), Ok(()));
    assert_eq!(connections(), 1);
}

#[test]
fn the_exits_own_ports_are_not_dialled() {
    let carrier = free_port();
    let exit = Gate::exit("native", carrier, &["127.0.0.1", "localhost", "*"]).until_ready();
    let mut peer = Asking::of(carrier);
    let refused = Err(ResetCode::Refused(Reason::NotAllowed).code());
    for port in [carrier, exit.admin] {
        for host in ["127.0.0.1", "localhost", "::ffff:127.0.0.1"] {
            assert_eq!(peer.asks_for(host, port), refused, "{host}:{port}");
        }
    }
    let (_listener, other) = target();
    assert_eq!(peer.asks_for("127.0.0.1", other.port()), Ok(()));
}

#[test]
fn a_rule_that_denies_is_taken_over_and_wins() {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let allowing = format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{{cidr: 127.0.0.0/8}}]\n"
    );
    let exit = Gate::with_file(&allowing).until_ready();
    let entry = Gate::entry("native", carrier, &[(forward, address)]).until_ready();
    let client = SocketAddr::from(([127, 0, 0, 1], forward));
    let (first, _target) = (connect(client), accept(&listener));
    exit.rewrite(&format!(
        "{allowing}deny: [{address_rule}]\n",
        address_rule = crate::common::rule(address)
    ));
    exit.line(&["Configuration reloaded"]);
    assert_reset(&connect(client));
    entry.line(&["MT0204"]);
    assert_eq!(connections(&listener), 0);
    drop(first);
}
