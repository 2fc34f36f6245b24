//! Clients and targets in network namespaces whose link vanishes. They send no end of their
//! connection, so only the gateway can end their streams.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::*;

const OFF: &str = "timeouts: {keepaliveSeconds: 0}\n";
/// The first probe after 1 s; a peer has vanished after 5 s.
const ON: &str = "timeouts: {keepaliveSeconds: 1}\n";

/// A pair of gateways whose configurations can change.
struct Tunnel {
    gates: [Gate; 2],
    /// The configurations, without their time-outs.
    texts: [String; 2],
    forward: SocketAddr,
    proxy: SocketAddr,
}

/// Clients connect to the address `host`. `target` is the target of the forward.
fn tunnel(protocol: &str, host: &str, target: SocketAddr) -> Tunnel {
    let [carrier, forward, proxy] = [(); 3].map(|()| free_port());
    // With little memory, a stream whose reader waits is soon full.
    let both = format!(
        "protocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\nmemory: {{receive: 4Mi, stallSeconds: 0}}\n"
    );
    let exit = format!(
        "role: Exit\n{both}listen: 127.0.0.1:{carrier}\nallow: [{target_rule}, {{cidr: 127.0.0.1/32}}]\n",
        target_rule = crate::common::rule(target)
    );
    let (ip, port) = (target.ip(), target.port());
    let entry = format!(
        "role: Entry\n{both}connect:\n- name: far\n  address: 127.0.0.1:{carrier}\nforwards:\n\
         - {{name: a, listen: '{host}:{forward}', targets: [{{host: {ip}, port: {port}}}]}}\n\
         proxies:\n- {{name: b, listen: '{host}:{proxy}', protocol: Auto}}\n"
    );
    let texts = [entry, exit];
    let exit = Gate::with_file(&format!("{}{OFF}", texts[1])).until_ready();
    let entry = Gate::with_file(&format!("{}{OFF}", texts[0])).until_ready();
    let at = |port: u16| SocketAddr::new(host.parse().unwrap(), port);
    Tunnel {
        gates: [entry, exit],
        texts,
        forward: at(forward),
        proxy: at(proxy),
    }
}

impl Tunnel {
    /// Enables the keepalive. Open streams must follow.
    fn enable(&self) {
        for (gate, text) in self.gates.iter().zip(&self.texts) {
            let hash = gate.status()["configHash"].clone();
            gate.rewrite(&format!("{text}{ON}"));
            until("the time-outs are in force", || {
                gate.status()["configHash"] != hash
            });
        }
    }

    fn open(&self) -> u64 {
        self.gates[0].status()["streams"]["open"].as_u64().unwrap()
    }
}

/// Sends until the connection is full for a while. Returns how many bytes it took.
fn fill(mut tcp: &TcpStream) -> usize {
    tcp.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let (bytes, mut total) = (vec![7; 1 << 20], 0);
    loop {
        match tcp.write(&bytes) {
            Ok(length) => total += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads half of what [`fill`] sent on the connection `to`, and fills the connection again. The
/// kernel probes a full connection at intervals that double. Afterwards, they are short again.
fn fill_again(filled: usize, mut from: &TcpStream, to: &TcpStream) {
    from.read_exact(&mut vec![0; filled / 2]).unwrap();
    fill(to);
}

/// A host at `10.<number>.0.2`. The gateways are at `10.<number>.0.1`.
fn linked(number: u8) -> Namespace {
    let end = |last: u8| format!("10.{number}.0.{last}/24");
    let namespace = Namespace::new(&[&end(1)], &[&end(2)]);
    namespace.run(&["ip", "link", "set", "lo", "up"]);
    namespace
}

fn cut(namespace: &Namespace) {
    namespace.run(&["ip", "link", "set", "eth0", "down"]);
}

fn a_client_that_vanishes_is_ended_and_one_that_pauses_is_not(protocol: &str, number: u8) {
    let namespace = linked(number);
    let (listener, address) = target();
    let tunnel = tunnel(protocol, &format!("10.{number}.0.1"), address);
    let stream = |connect: &dyn Fn() -> TcpStream| {
        let mut client = connect();
        client.write_all(b"x").unwrap();
        let mut target = accept(&listener);
        target.read_exact(&mut [0]).unwrap();
        (client, target)
    };
    let here = || connect(tunnel.forward);
    let there = || namespace.enter(here);
    let (_silent, to_silent) = stream(&there);
    let (busy, to_busy) = stream(&there);
    let filled = fill(&to_busy);
    tunnel.enable();
    let (mut paused, to_paused) = stream(&here);
    let sent = fill(&to_paused);
    // The keepalive of a request applies from its start.
    let mut request = namespace.enter(|| connect(tunnel.proxy));
    let ask = format!("GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n");
    request.write_all(ask.as_bytes()).unwrap();
    let to_request = accept(&listener);
    until("all streams are open", || tunnel.open() == 4);
    fill_again(filled, &busy, &to_busy);
    cut(&namespace);
    for target in [to_silent, to_busy, to_request] {
        // A reset. For an HTTP request, an end of file.
        let _ = end_of(&target);
    }
    until("the streams of the vanished clients have ended", || {
        tunnel.open() == 1
    });
    tunnel.gates[0].line(&[
        "Stream closed",
        "client-reset",
        &format!("client=10.{number}.0.2"),
    ]);
    drop(to_paused);
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while received < sent {
        match paused.read(&mut buffer) {
            Ok(length @ 1..) => received += length,
            other => panic!("the paused client was ended after {received} bytes: {other:?}"),
        }
    }
}

mod a_client_that_vanishes_is_ended_and_one_that_pauses_is_not {
    #[test]
    fn native() {
        super::a_client_that_vanishes_is_ended_and_one_that_pauses_is_not("Native", 90);
    }

    #[test]
    fn http2() {
        super::a_client_that_vanishes_is_ended_and_one_that_pauses_is_not("HTTP2", 91);
    }
}

#[test]
fn a_target_that_vanishes_is_ended() {
    let namespace = linked(92);
    let listener = namespace.enter(|| TcpListener::bind("10.92.0.2:0").unwrap());
    let tunnel = tunnel("Native", "127.0.0.1", listener.local_addr().unwrap());
    let stream = || {
        let mut client = connect(tunnel.forward);
        client.write_all(b"x").unwrap();
        let mut target = accept(&listener);
        target.read_exact(&mut [0]).unwrap();
        (client, target)
    };
    let (silent, _target) = stream();
    let (busy, full) = stream();
    let filled = fill(&busy);
    tunnel.enable();
    fill_again(filled, &full, &busy);
    cut(&namespace);
    assert_reset(&silent);
    assert_reset(&busy);
    tunnel.gates[1].line(&["Stream closed", "target-reset"]);
}
