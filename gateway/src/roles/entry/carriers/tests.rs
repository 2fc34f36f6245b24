//! Tests a session's dials with a virtual clock.

use std::io::{Error, ErrorKind};
use std::net::TcpListener;
use std::rc::Rc;

use super::super::levels::Exits;
use super::super::ways::Ways;
use super::*;
use crate::roles::worker::Worker;
use crate::session::mux::memory::{Memory, silent};

const TCP: CarrierTransport = CarrierTransport::Tcp;
const WEB_SOCKET: CarrierTransport = CarrierTransport::WebSocket;

fn dial_context(ways: Ways) -> DialContext {
    let yaml = "role: Entry\nprotocol: Native\nsecurity: {mode: None}\nconnect:\n- name: far\n  address: far:1\n";
    let config = config::Config::from_yaml(yaml).unwrap();
    let session = config.session();
    let worker = Worker::of(yaml);
    let web_socket = config::WebSocket {
        path: "/carrier".to_owned(),
        origins: Vec::new(),
    };
    DialContext {
        credentials: worker.credentials,
        protocol: config::Protocol::Native,
        web_socket: Some(web_socket),
        ways: Rc::new(ways),
        exits: Rc::new(Exits::new(config.connect)),
        quic: crate::io::quic::Settings::new(&session),
        ssh: crate::io::ssh::Settings::new(&session),
        egress: worker.egress,
        network: None,
    }
}

/// The bounds of a session that has exactly `count` carriers.
fn exactly(count: u8) -> config::Pool {
    config::Pool {
        min: count,
        max: Some(count),
    }
}

/// Maintains the carriers of a session for `seconds`. The existing carriers use `by`. Returns the
/// number of consecutive failed dials.
async fn keeps(
    memory: &Rc<Memory>,
    (at, by): (&Address, CarrierTransport),
    bounds: config::Pool,
    dial_context: &DialContext,
    seconds: u64,
) -> u32 {
    let mux = memory.shared();
    let route = Route {
        exit: at.clone(),
        at: at.clone(),
        by,
    };
    let failed = watch::Sender::new(0);
    let carriers = mux.carriers().unwrap();
    let dialling = keep_dialling(&*mux, carriers, route, bounds, dial_context, &failed);
    let _ = tokio::time::timeout(Duration::from_secs(seconds), dialling).await;
    *failed.borrow()
}

/// Number of failed dials within 20 s, if the session requires one carrier more than `up`.
async fn dials(up: u8) -> u32 {
    let memory = silent(None);
    memory.carried_by(up.into());
    let nobody = Address::unresolved("unix:/nobody/listens/here");
    let dial_context = dial_context(Ways::of(config::Transport::Tcp, false, true));
    keeps(&memory, (&nobody, TCP), exactly(up + 1), &dial_context, 20).await
}

/// An address at which the kernel accepts connections but no process answers, and the number of
/// connections.
fn listener() -> (Address, impl Fn() -> usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let ip = listener.local_addr().unwrap();
    let count = move || std::iter::from_fn(|| listener.accept().ok()).count();
    (Address::resolved("far:1", ip), count)
}

/// The transports TCP and WebSocket. Only WebSocket has connected.
async fn ways_without_tcp() -> Ways {
    let ways = Ways::of(config::Transport::Auto, true, false);
    let dialled = ways.dial(async |way| match way {
        WEB_SOCKET => Ok(()),
        _ => Err(Error::from(ErrorKind::ConnectionRefused)),
    });
    dialled.await.unwrap();
    assert_eq!(ways.in_turn(), [WEB_SOCKET, TCP]);
    ways
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_carrier_is_dialled_at_least_once_a_second() {
    let (waiting, carried) = (dials(0).await, dials(1).await);
    assert!((20..60).contains(&waiting), "{waiting} dials");
    assert!(
        (4..20).contains(&carried),
        "{carried} dials with a carrier that is up"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_that_came_to_web_socket_returns_to_tcp_with_all_its_carriers() {
    let (at, accepted) = listener();
    let dial_context = dial_context(ways_without_tcp().await);
    let memory = silent(None);
    memory.takes_carriers(&[WEB_SOCKET, WEB_SOCKET]);
    let web_socket = (&at, WEB_SOCKET);
    keeps(&memory, web_socket, exactly(2), &dial_context, 290).await;
    assert_eq!(memory.transports(), [WEB_SOCKET, WEB_SOCKET]);
    assert_eq!(accepted(), 0);
    // An observation takes up to 10 s.
    keeps(&memory, web_socket, exactly(2), &dial_context, 30).await;
    assert_eq!(memory.transports(), [TCP, TCP]);
    assert_eq!(accepted(), 2, "the other one is dialled by TCP alone");
    assert_eq!(dial_context.ways.in_turn(), [TCP, WEB_SOCKET]);
}

#[tokio::test(start_paused = true)]
async fn further_carriers_run_on_what_the_session_does_whatever_others_came_to() {
    let (at, accepted) = listener();
    let dial_context = dial_context(ways_without_tcp().await);
    let memory = silent(None);
    memory.takes_carriers(&[TCP]);
    keeps(&memory, (&at, TCP), exactly(2), &dial_context, 4).await;
    assert_eq!((memory.transports(), accepted()), (vec![TCP, TCP], 1));
}

#[tokio::test(start_paused = true)]
async fn where_one_carrier_has_to_change_all_of_them_do() {
    let (at, _accepted) = listener();
    let dial_context = dial_context(Ways::of(config::Transport::Auto, true, false));
    let memory = silent(None);
    memory.takes_carriers(&[WEB_SOCKET]);
    // The WebSocket request is never answered.
    keeps(&memory, (&at, WEB_SOCKET), exactly(2), &dial_context, 20).await;
    assert_eq!(memory.transports(), [TCP, TCP]);
}

/// A pool that grows from one carrier to 16.
const GROWS: config::Pool = config::Pool {
    min: 1,
    max: Some(16),
};

/// The exit accepts 7 carriers.
#[tokio::test(start_paused = true)]
async fn carriers_are_dialled_five_at_a_time_and_once_the_exit_refuses_them_one_at_a_time() {
    let (at, accepted) = listener();
    let dial_context = dial_context(Ways::of(config::Transport::Tcp, false, true));
    let memory = silent(None);
    memory.takes_carriers_up_to(7, &[TCP]);
    memory.wants_carriers(16);
    // The dials after 1, 2, 4, 8, 16, 32 and 60 s come after three batches of five.
    let failed = keeps(&memory, (&at, TCP), GROWS, &dial_context, 182).await;
    assert_eq!((memory.transports().len(), accepted()), (7, 15 + 7));
    assert_eq!(failed, 0, "the session has the carriers that it needs");
}

#[tokio::test(start_paused = true)]
async fn further_carriers_that_cannot_be_dialled_are_no_failure_of_the_session() {
    let memory = silent(None);
    memory.carried_by(1);
    memory.wants_carriers(16);
    let nobody = Address::unresolved("unix:/nobody/listens/here");
    let dial_context = dial_context(Ways::of(config::Transport::Tcp, false, true));
    let failed = keeps(&memory, (&nobody, TCP), GROWS, &dial_context, 20).await;
    assert_eq!(failed, 0);
}

/// The TCP carriers end because of their losses.
#[tokio::test(start_paused = true)]
async fn a_trial_during_which_carriers_end_is_repeated_without_a_pause() {
    let kcp = CarrierTransport::Kcp;
    let dial_context = dial_context(Ways::of(config::Transport::Auto, true, true));
    let (memory, (at, _)) = (silent(None), listener());
    let mux = memory.shared();
    let trial = trial::Trial::Compare(kcp);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        memory.carried_by(0);
    };
    let carriers = mux.carriers().unwrap();
    let (changed, ()) = tokio::join!(trial::run(trial, carriers, &at, &dial_context), ends);
    assert_eq!(changed, None);
    let now = tokio::time::Instant::now();
    assert_eq!(dial_context.ways.to_try(TCP, now), Some(kcp));
}

#[test]
fn the_pause_doubles_up_to_its_bound_and_is_jittered() {
    let at = |failures, random| backoff(failures, BACKOFF_MAX, random);
    assert_eq!(at(0, 1.0), BACKOFF_MIN);
    assert_eq!(at(1, 1.0), BACKOFF_MIN);
    assert_eq!(at(3, 1.0), BACKOFF_MIN * 4);
    assert_eq!(at(3, 0.0), BACKOFF_MIN * 2);
    assert_eq!(at(1000, 1.0), BACKOFF_MAX);
    assert_eq!(backoff(1000, WAITING_BACKOFF_MAX, 1.0), WAITING_BACKOFF_MAX);
}
