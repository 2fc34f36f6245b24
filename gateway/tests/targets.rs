//! Forwards with several targets: the next one is dialled if a dial fails.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use crate::common::*;

const PROTOCOLS: [&str; 6] = ["Native", "JMUX", "HTTP2", "QUIC", "HTTP3", "SSH"];

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn list(targets: &[SocketAddr]) -> String {
    let target = |target: &SocketAddr| format!("{{host: 127.0.0.1, port: {}}}", target.port());
    targets.iter().map(target).collect::<Vec<_>>().join(", ")
}

fn exit(protocol: &str, carrier: SocketAddr, allow: &[SocketAddr], more: &str) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {{mode: None}}\nlisten: '{carrier}'\nadmin: ADMIN\n\
         workers: 1\n{more}allow: [{}]\n",
        crate::common::rules::rules(allow)
    ))
}

fn entry(protocol: &str, carrier: SocketAddr, ports: &str) -> Gate {
    Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\nworkers: 1\n\
         connect:\n- name: far\n  address: '{carrier}'\n{ports}"
    ))
    .until_ready()
}

#[test]
fn the_next_target_is_dialled_with_all_that_the_client_has_sent() {
    for protocol in PROTOCOLS {
        let [carrier, forward, closed, other] = [(); 4].map(|()| loopback(free_port()));
        let (listener, target) = target();
        let _exit = exit(protocol, carrier, &[closed, other, target], "").until_ready();
        let targets = list(&[closed, other, target]);
        let entry = entry(
            protocol,
            carrier,
            &format!("forwards:\n- {{name: a, listen: '{forward}', targets: [{targets}]}}\n"),
        );
        for early in [&b""[..], &pattern(3, 50_000)] {
            let mut client = connect(forward);
            client.write_all(early).unwrap();
            let mut server = accept(&listener);
            client.write_all(b"and more").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(
                read_all(&server),
                [early, b"and more"].concat(),
                "{protocol}"
            );
            server.write_all(b"answer").unwrap();
            drop(server);
            assert_eq!(read_all(&client), b"answer", "{protocol}");
        }
        entry.line(&[
            "Target not reached; dialling the next target",
            "forward=\"a\"",
        ]);
        let status = entry.status();
        assert_eq!(
            status["streams"]["refused"],
            serde_json::json!({}),
            "{protocol}"
        );
        assert_eq!(status["forwards"][0]["dials"]["connected"], 2, "{protocol}");
    }
}

#[test]
fn a_target_that_the_exit_does_not_allow_is_the_end_and_so_is_the_last_one() {
    let [carrier, forward, last, denied, closed] = [(); 5].map(|()| loopback(free_port()));
    let (listener, target) = target();
    let _exit = exit("Native", carrier, &[closed, target], "").until_ready();
    let entry = entry(
        "Native",
        carrier,
        &format!(
            "forwards:\n- {{name: a, listen: '{forward}', targets: [{}]}}\n\
             - {{name: b, listen: '{last}', targets: [{}]}}\n",
            list(&[denied, target]),
            list(&[closed, closed])
        ),
    );
    assert_reset(&connect(forward));
    assert_reset(&connect(last));
    let refused = &entry.status()["streams"]["refused"];
    let refused = refused.as_object().unwrap();
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.values().all(|count| *count == 1), "{refused:?}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn the_targets_of_a_proxy_and_of_a_reverse_forward_have_an_order_too() {
    let [carrier, proxy, back, closed] = [(); 4].map(|()| loopback(free_port()));
    let (listener, target) = target();
    let allow_listen = format!("allowListen: ['{back}']\n");
    let _exit = exit("Native", carrier, &[closed, target], &allow_listen).until_ready();
    let targets = list(&[closed, target]);
    let _entry = entry(
        "Native",
        carrier,
        &format!(
            "proxies:\n- {{name: any, listen: '{proxy}', protocol: Auto, fallbackTargets: [{targets}]}}\n\
             reverseForwards:\n- {{name: back, listen: '{back}', targets: [{targets}]}}\n"
        ),
    );
    until("the exit listens", || {
        std::net::TcpStream::connect(back).is_ok()
    });
    drop(accept(&listener));
    for listen in [proxy, back] {
        let mut client = connect(listen);
        client
            .write_all(b"\x16 this is no request of a proxy")
            .unwrap();
        let mut server = accept(&listener);
        let mut first = [0];
        server.read_exact(&mut first).unwrap();
        assert_eq!(first, [0x16]);
        server.write_all(b"a").unwrap();
        client.read_exact(&mut first).unwrap();
        assert_eq!(first, *b"a");
    }
}
