//! A gateway adds and retires carriers, and its peer writes frames byte by byte. The gateway must
//! not treat a retired carrier as lost.

use std::net::{SocketAddr, TcpListener};

use crate::common::peer::{Carrier, hello, hello_ack};
use crate::common::*;
use muxtunnel_proto::native::codec::{Frame, HEADER_BYTES};

fn carriers(gate: &Gate) -> usize {
    gate.status()["carriers"].as_array().unwrap().len()
}

/// An exit whose frames the test itself writes.
struct Exit {
    listener: TcpListener,
    carriers: Vec<Carrier>,
}

impl Exit {
    fn accept(&mut self) {
        let mut carrier = Carrier::new(accept(&self.listener));
        assert!(matches!(carrier.next(), Frame::Hello(_)));
        carrier.send(&hello_ack());
        self.carriers.push(carrier);
    }

    fn ask_for(&mut self, count: u32, serial: u64) {
        self.carriers[0].send(&Frame::Carriers { count, serial });
    }

    /// Lets the entry retire its newest carrier. The exit agrees, and closes the carrier when
    /// requested.
    fn retire_newest(&mut self) {
        let number = self.carriers.len() as u32 - 1;
        let mut newest = self.carriers.pop().unwrap();
        assert_eq!(newest.next_of_note(), Frame::Retire);
        newest.send(&Frame::Retire);
        let told = self.carriers[0].next_of_note();
        let Frame::CarrierLost { carrier, received } = told else {
            panic!("{told:?}");
        };
        // Only RETIRE was sent on the carrier.
        assert_eq!((carrier, received), (number, HEADER_BYTES as u64));
        self.carriers[0].send(&Frame::CarrierLost {
            carrier,
            received: newest.received,
        });
        drop(newest);
    }
}

fn entry_to(address: SocketAddr, pool: &str) -> Gate {
    let (_, unused) = target();
    Gate::with_file(&format!(
        "role: Entry\nprotocol: Native\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: {address}\nadmin: ADMIN\n\
         workers: 1\npool: {pool}\nforwards:\n\
         - {{name: a, listen: '127.0.0.1:{}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        free_port(),
        unused.port()
    ))
}

#[test]
fn an_entry_dials_what_its_exit_asks_for_up_to_its_own_bound_and_retires_it_in_order() {
    let (listener, address) = target();
    let entry = entry_to(address, "{min: 1, max: 3}");
    let mut exit = Exit {
        listener,
        carriers: Vec::new(),
    };
    exit.accept();
    exit.ask_for(u32::MAX, 1);
    exit.accept();
    exit.accept();
    until("three carriers are up", || carriers(&entry) == 3);
    // An outdated request is ignored.
    exit.ask_for(1, 1);
    exit.ask_for(2, 2);
    exit.retire_newest();
    until("two carriers are up", || carriers(&entry) == 2);
    exit.ask_for(0, 3);
    exit.retire_newest();
    until("one carrier is up", || carriers(&entry) == 1);
    assert_eq!(metric(&entry, "muxgate_carriers_retired_total"), 2);
    assert_eq!(metric(&entry, "muxgate_carriers_lost_total"), 0);
    assert_eq!(entry.get("/readyz").0, 200);
    assert!(!entry.log().contains("WARN"), "{}", entry.log());
    // The entry never dialled more carriers than its maximum.
    exit.listener.set_nonblocking(true).unwrap();
    assert!(exit.listener.accept().is_err());
}

#[test]
fn a_carrier_that_is_cut_while_it_is_retired_is_lost_and_settled() {
    let (listener, address) = target();
    let entry = entry_to(address, "{min: 1, max: 2}");
    let mut exit = Exit {
        listener,
        carriers: Vec::new(),
    };
    exit.accept();
    exit.ask_for(2, 1);
    exit.accept();
    until("two carriers are up", || carriers(&entry) == 2);
    exit.ask_for(1, 2);
    let mut newest = exit.carriers.pop().unwrap();
    assert_eq!(newest.next_of_note(), Frame::Retire);
    drop(newest);
    let lost = Frame::CarrierLost {
        carrier: 1,
        received: 0,
    };
    assert_eq!(exit.carriers[0].next_of_note(), lost);
    exit.carriers[0].send(&Frame::CarrierLost {
        carrier: 1,
        received: HEADER_BYTES as u64,
    });
    until("one carrier is up", || carriers(&entry) == 1);
    assert_eq!(metric(&entry, "muxgate_carriers_retired_total"), 0);
    assert_eq!(metric(&entry, "muxgate_carriers_lost_total"), 1);
}

#[test]
fn an_exit_lets_a_carrier_go_that_its_entry_retires() {
    let port = free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{port}\n\
         admin: ADMIN\nworkers: 2\nallow: [{{cidr: 127.0.0.1/32, port: 1}}]\n"
    ))
    .until_ready();
    let connect = || Carrier::new(connect(([127, 0, 0, 1], port).into()));
    let mut first = connect();
    first.send(&hello(0, [0; 16], [0; 32]));
    let Frame::HelloAck(ack) = first.next() else {
        panic!("expected the answer to the hello");
    };
    let mut second = connect();
    second.send(&hello(1, ack.session_id, ack.token));
    assert!(matches!(second.next(), Frame::HelloAck(_)));
    until("two carriers are up", || carriers(&exit) == 2);
    second.send(&Frame::Retire);
    assert_eq!(second.next_of_note(), Frame::Retire);
    first.send(&Frame::CarrierLost {
        carrier: 1,
        received: second.received,
    });
    let answer = Frame::CarrierLost {
        carrier: 1,
        received: HEADER_BYTES as u64,
    };
    assert_eq!(first.next_of_note(), answer);
    assert_eq!(end_of(&second.tcp).unwrap(), 0);
    until("one carrier is up", || carriers(&exit) == 1);
    assert_eq!(metric(&exit, "muxgate_carriers_retired_total"), 1);
    assert_eq!(metric(&exit, "muxgate_carriers_lost_total"), 0);
    assert!(!exit.log().contains("WARN"), "{}", exit.log());
}
