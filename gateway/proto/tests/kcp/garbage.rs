//! Datagrams of unknown and hostile peers do not cause a panic or unbounded memory, and do not
//! affect other connections.

use std::time::{Duration, Instant};

use muxtunnel_proto::kcp::{
    self, CHALLENGE, Command, Connection, Failure, Header, Keepalive, Opening, Settings,
};

use super::world::{Path, Random, World};

const KEEPALIVE: Keepalive = Keepalive {
    dead_after: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    retries: 2,
};

const SECRET: u64 = 0x0123_4567_89ab_cdef;

fn connection(now: Instant) -> Connection {
    let settings = Settings {
        send_bytes: 1 << 20,
        receive_bytes: 1 << 20,
    };
    Connection::new((7, SECRET), settings, KEEPALIVE, now, 0)
}

/// Random segments of conversation 7. About half of their numbers are near the ends of the range.
fn hostile(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = |random: &mut Random| match random.below(4) {
        0 => random.below(300) as u32,
        1 => u32::MAX - random.below(300) as u32,
        2 => (1 << 31) - 150 + random.below(300) as u32,
        _ => random.next() as u32,
    };
    for _ in 0..=random.below(20) {
        let commands = [Command::Push, Command::Ack, Command::Ask, Command::Tell];
        let header = Header {
            conversation: 7,
            command: commands[random.below(4) as usize],
            window: random.next() as u16,
            time: number(random),
            serial: number(random),
            next: number(random),
        };
        let length = random.below(60) as usize;
        header.encode(length, &mut bytes);
        bytes.resize(bytes.len() + length, 0);
    }
    if random.chance(200) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.next() as u8;
    }
    bytes
}

#[test]
fn a_hostile_peer_harms_nobody() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut now = Instant::now();
        let mut connection = connection(now);
        for _ in 0..500 {
            now += Duration::from_micros(random.below(20_000));
            connection.handle(now, &hostile(&mut random));
            connection.handle_timeout(now);
            let bytes = [1; 3000];
            connection.write(&[std::io::IoSlice::new(&bytes)]);
            if random.chance(500) {
                connection.read(&mut [0; 5000]);
            }
            let mut out = Vec::new();
            let mut datagrams = 0;
            while connection.poll_transmit(now, &mut out) {
                datagrams += 1;
                assert!(datagrams < 10_000, "the connection sends without end");
            }
            if let Some(at) = connection.poll_timeout() {
                assert!(at + Duration::from_secs(60) > now);
            }
        }
    }
}

#[test]
fn datagrams_of_others_change_nothing() {
    let run = |strange: bool| {
        let mut world = World::new(5, Path::FAR.losing(20), [500_000, 500_000]);
        let mut random = Random::new(1);
        while !world.is_done() {
            world.step();
            if strange {
                let now = world.now;
                let mut datagram = hostile(&mut random);
                datagram[..4].copy_from_slice(&8_u32.to_le_bytes());
                world.ends[1].connection.handle(now, &datagram);
                world.ends[0].connection.handle(now, &datagram[..10]);
            }
        }
        (world.elapsed(), world.datagrams)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn who_begins_is_challenged_and_answers() {
    let now = Instant::now();
    let mut near = connection(now);
    near.ask();
    let mut ask = Vec::new();
    assert!(near.poll_transmit(now, &mut ask));
    assert_eq!(
        kcp::opening(&ask),
        Some(Opening::Begins { conversation: 7 })
    );
    let challenge = kcp::challenge(7, 0xfeed);
    assert!(
        challenge.len() <= ask.len(),
        "the challenge is longer than the datagram that caused it"
    );
    assert!(!near.is_met());
    near.handle(now, &challenge);
    assert!(near.is_met() && near.failure().is_none());
    near.write(&[std::io::IoSlice::new(b"hello")]);
    let mut answer = Vec::new();
    assert!(near.poll_transmit(now, &mut answer));
    let answers = Opening::Answers {
        conversation: 7,
        answer: 0xfeed,
    };
    assert_eq!(kcp::opening(&answer), Some(answers));
    // The first answer is lost, so the peer also answers the next challenge, and sends its first
    // segment with this answer.
    near.handle(now, &challenge);
    let mut again = Vec::new();
    assert!(near.poll_transmit(now, &mut again));
    assert_eq!(kcp::opening(&again), Some(answers));
    let mut far = connection(now);
    far.handle(now, &again);
    let mut read = [0; 8];
    assert_eq!(far.read(&mut read), Some(5));
    assert_eq!(&read[..5], b"hello");
    // A challenge arrives after a long delay.
    let mut reply = Vec::new();
    far.write(&[std::io::IoSlice::new(b"hello to you")]);
    assert!(far.poll_transmit(now, &mut reply));
    near.handle(now, &reply);
    near.handle(now, &challenge);
    assert_eq!(near.failure(), None);
    assert_eq!(near.read(&mut [0; 100]), Some(12));
    near.write(&[std::io::IoSlice::new(b"more")]);
    let goes_on = |secret| {
        Some(Opening::GoesOn {
            conversation: 7,
            secret,
        })
    };
    assert_eq!(opening_of_next(&mut near, now), goes_on(None));
    near.ask();
    assert_eq!(opening_of_next(&mut near, now), goes_on(Some(SECRET)));
    near.handle(now, &kcp::reset(7, SECRET));
    assert_eq!(near.failure(), Some(Failure::Reset));
    assert!(!near.poll_transmit(now, &mut Vec::new()));
}

/// The classification of the next datagram of `connection`.
fn opening_of_next(connection: &mut Connection, now: Instant) -> Option<Opening> {
    let mut datagram = Vec::new();
    assert!(connection.poll_transmit(now, &mut datagram));
    kcp::opening(&datagram)
}

/// A connection that has received data.
fn begun(now: Instant) -> Connection {
    let (mut near, mut far) = (connection(now), connection(now));
    far.write(&[std::io::IoSlice::new(b"hello")]);
    let mut datagram = Vec::new();
    assert!(far.poll_transmit(now, &mut datagram));
    near.handle(now, &datagram);
    near
}

#[test]
fn a_reset_needs_the_secret_that_only_the_path_has_seen() {
    let now = Instant::now();
    let mut near = begun(now);
    let mut random = Random::new(1);
    let guesses = (0..100_000).map(|_| random.next());
    for wrong in guesses.chain([0, 7, SECRET >> 32, SECRET << 32, SECRET + 1]) {
        near.handle(now, &kcp::reset(7, wrong));
    }
    assert_eq!(near.failure(), None);
    near.handle(now, &kcp::reset(7, SECRET));
    assert_eq!(near.failure(), Some(Failure::Reset));
}

/// The peer has restarted, so it answers neither payload nor acknowledgements. A connection that
/// gets no acknowledgements soon asks for the window, which the peer answers with a reset.
#[test]
fn a_connection_whose_peer_is_gone_asks_for_the_window_before_its_next_keepalive() {
    let start = Instant::now();
    let mut near = begun(start);
    near.write(&[std::io::IoSlice::new(b"payload")]);
    let mut now = start;
    let secret = loop {
        let mut datagram = Vec::new();
        while near.poll_transmit(now, &mut datagram) {}
        match kcp::opening(&datagram) {
            Some(Opening::GoesOn {
                secret: Some(secret),
                ..
            }) => break secret,
            _ => now = near.poll_timeout().unwrap(),
        }
        near.handle_timeout(now);
    };
    assert_eq!(secret, SECRET);
    assert!(now - start < KEEPALIVE.interval, "{:?}", now - start);
}

/// A forged source address leads an answer to another acceptor. That acceptor must stay silent, or
/// both would answer each other without end.
#[test]
fn what_answers_a_stranger_is_never_answered() {
    let mut random = Random::new(2);
    for _ in 0..10_000 {
        let (conversation, secret) = (random.next() as u32, random.next());
        let answers = [
            kcp::challenge(conversation, secret as u32),
            kcp::reset(conversation, secret),
        ];
        for answer in answers {
            assert_eq!(kcp::opening(&answer), None);
        }
    }
    // Another KCP acknowledges a reset like any segment.
    for next in [0, 5] {
        let mut bytes = Vec::new();
        let header = Header {
            conversation: 7,
            command: Command::Ack,
            window: 128,
            time: 1,
            serial: kcp::RESET,
            next,
        };
        header.encode(0, &mut bytes);
        let unanswered = Opening::GoesOn {
            conversation: 7,
            secret: None,
        };
        assert_eq!(kcp::opening(&bytes), Some(unanswered));
    }
}

#[test]
fn a_reset_of_what_has_not_begun_is_nothing() {
    let now = Instant::now();
    let mut near = connection(now);
    near.handle(now, &kcp::reset(7, SECRET));
    near.handle(now, &kcp::reset(8, SECRET));
    assert_eq!(near.failure(), None);
    assert_eq!(kcp::opening(b"anything that is no segment of KCP's"), None);
    assert_eq!(kcp::opening(&[]), None);
    assert_eq!(CHALLENGE, u32::MAX);
}
