//! Two muxgate processes on loopback: features that only the native protocol has.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::common::*;

#[test]
fn what_a_client_sends_before_its_target_answers_goes_along_with_the_open() {
    let (listener, waiting) = full_target();
    let pair = Pair::to("Native", listener.local_addr().unwrap());
    let mut client = pair.connect();
    client.write_all(b"early").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    until("the exit has the early data", || {
        pair.exit.status()["carriers"][0]["receiveBudgetUsed"] == b"early".len()
    });
    assert_eq!(pair.exit.status()["streams"]["opened"], 0);
    drop(waiting);
    listener.set_nonblocking(false).unwrap();
    let mut answered = loop {
        let target = accept(&listener);
        if read_all(&target) == b"early" {
            break target;
        }
    };
    answered.write_all(b"answer").unwrap();
    drop(answered);
    assert_eq!(read_all(&client), b"answer");
}

/// A load balancer, such as a Service, in front of an exit that is replaced.
struct Balancer {
    address: SocketAddr,
    exit: Arc<Mutex<SocketAddr>>,
}

impl Balancer {
    fn to(exit: SocketAddr) -> Self {
        let (listener, address) = target();
        let exit = Arc::new(Mutex::new(exit));
        let to = Arc::clone(&exit);
        std::thread::spawn(move || {
            for carrier in listener.incoming().flatten() {
                let exit = *to.lock().unwrap();
                if let Ok(exit) = TcpStream::connect(exit) {
                    copy_in_background(&carrier, &exit);
                    copy_in_background(&exit, &carrier);
                }
            }
        });
        Self { address, exit }
    }
}

fn copy_in_background(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

fn exit_for(listener: &TcpListener) -> (Gate, SocketAddr) {
    let carrier = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\n\
         allow: [{}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 50}}\n",
        crate::common::rule(listener.local_addr().unwrap())
    ));
    (exit, carrier)
}

#[test]
fn an_exit_that_goes_away_keeps_its_streams_and_new_ones_go_to_another() {
    let (listener, target) = target();
    let ((old, old_address), (new, new_address)) = (exit_for(&listener), exit_for(&listener));
    let balancer = Balancer::to(old_address);
    let forward = free_port();
    let entry = Gate::entry("Native", balancer.address.port(), &[(forward, target)]).until_ready();
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, forward));
    let (mut client, mut server) = (connect(forward), accept(&listener));
    server.write_all(b"old").unwrap();
    client.read_exact(&mut [0; 3]).unwrap();

    *balancer.exit.lock().unwrap() = new_address;
    old.signal("TERM");
    until("the entry has a carrier to either exit", || {
        entry.status()["carriers"].as_array().unwrap().len() == 2
    });
    let (mut other, mut other_server) = (connect(forward), accept(&listener));
    other_server.write_all(b"new").unwrap();
    other.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(new.status()["streams"]["open"], 1);

    client.write_all(b"still here").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"still here");
    server.write_all(b"until the end").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"until the end");
    assert!(old.wait().success());
    until("the old carrier is gone", || {
        entry.status()["carriers"].as_array().unwrap().len() == 1
    });
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
    other.write_all(b"goes on").unwrap();
    drop(other);
    assert_eq!(read_all(&other_server), b"goes on");
}
