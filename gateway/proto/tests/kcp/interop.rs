//! Interoperation with the crate `kcp`, which is a port of `ikcp.c`.

use std::cell::RefCell;
use std::io::{IoSlice, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_proto::kcp::{Connection, Keepalive, Opening, Settings, challenge, opening};

use super::world::Random;

#[derive(Clone, Default)]
struct Out(Rc<RefCell<Vec<Vec<u8>>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Exchanges 300,000 bytes in each direction over a path that loses `loss` thousandths of the
/// datagrams.
fn exchange(loss: u64) {
    const BYTES: usize = 300_000;
    let mut random = Random::new(loss);
    let mut now = Instant::now();
    let settings = Settings {
        send_bytes: 1 << 20,
        receive_bytes: 1 << 20,
    };
    let keepalive = Keepalive {
        dead_after: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        retries: 2,
    };
    let mut ours = Connection::new((9, 3), settings, keepalive, now, 0);
    let out = Out::default();
    let mut theirs = kcp::Kcp::new_stream(9, out.clone());
    theirs.set_nodelay(true, 10, 2, true);
    theirs.set_wndsize(512, 512);
    let sent: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    let (mut written, mut sent_back, mut has_ended) = (0, 0, false);
    let (mut came, mut came_back) = (Vec::new(), Vec::new());
    let mut bytes = vec![0; 1 << 16];
    for milli in 0..20_000_u32 {
        now += Duration::from_millis(1);
        written += ours.write(&[IoSlice::new(&sent[written..])]);
        while sent_back < BYTES && theirs.wait_snd() < 512 {
            let end = BYTES.min(sent_back + 5000);
            sent_back += theirs.send(&sent[sent_back..end]).unwrap();
        }
        ours.handle_timeout(now);
        let mut datagram = Vec::new();
        while ours.poll_transmit(now, &mut datagram) {
            if !random.chance(loss) {
                theirs.input(&datagram).unwrap();
            }
            datagram.clear();
        }
        theirs.update(milli).unwrap();
        for datagram in out.0.borrow_mut().drain(..) {
            if !random.chance(loss) {
                ours.handle(now, &datagram);
            }
        }
        while let Some(length @ 1..) = ours.read(&mut bytes) {
            came_back.extend_from_slice(&bytes[..length]);
        }
        while let Ok(length) = theirs.recv(&mut bytes) {
            came.extend_from_slice(&bytes[..length]);
            has_ended |= length == 0;
        }
        if came.len() == BYTES && came_back.len() == BYTES && !ours.is_finished() {
            ours.finish();
        }
        if ours.is_finished() && ours.is_settled() {
            break;
        }
    }
    assert!(came == sent, "{} of {BYTES} bytes arrived", came.len());
    assert!(
        came_back == sent,
        "{} bytes arrived in return",
        came_back.len()
    );
    assert!(ours.is_settled(), "the end was not acknowledged");
    assert!(has_ended, "the end was not read");
}

#[test]
fn bytes_pass_both_ways_and_the_end_is_read() {
    for loss in [0, 50, 200] {
        exchange(loss);
    }
}

#[test]
fn it_answers_a_challenge_by_itself() {
    let out = Out::default();
    let mut theirs = kcp::Kcp::new_stream(9, out.clone());
    theirs.set_nodelay(true, 10, 2, true);
    theirs.send(b"hello").unwrap();
    theirs.update(0).unwrap();
    let first = out.0.borrow_mut().remove(0);
    assert_eq!(opening(&first), Some(Opening::Begins { conversation: 9 }));
    theirs.input(&challenge(9, 0x1234)).unwrap();
    theirs.update(10).unwrap();
    let answer = out.0.borrow_mut().remove(0);
    let answers = Opening::Answers {
        conversation: 9,
        answer: 0x1234,
    };
    assert_eq!(opening(&answer), Some(answers));
}
