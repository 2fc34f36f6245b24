//! Tests the order of dials with a virtual clock.

use std::io::{Error, ErrorKind};

use super::*;

const TCP: CarrierTransport = CarrierTransport::Tcp;
const KCP: CarrierTransport = CarrierTransport::Kcp;
const WEB_SOCKET: CarrierTransport = CarrierTransport::WebSocket;

/// The result of a dial. `outcome` returns, for each transport, whether it connects and after how
/// many milliseconds.
async fn dialled(
    ways: &Ways,
    outcome: impl Fn(CarrierTransport) -> (u64, bool),
) -> Result<(CarrierTransport, Duration)> {
    let begun = Instant::now();
    let (way, ()) = ways
        .dial(async |way| {
            let (after, is_up) = outcome(way);
            tokio::time::sleep(Duration::from_millis(after)).await;
            let failed = || Error::new(ErrorKind::TimedOut, format!("{way}"));
            is_up.then_some(()).ok_or_else(failed)
        })
        .await?;
    Ok((way, begun.elapsed()))
}

#[test]
fn what_is_configured_and_possible_is_dialled() {
    let in_turn =
        |transport, upgrades, datagrams| Ways::of(transport, upgrades, datagrams).in_turn();
    assert_eq!(in_turn(Transport::Tcp, false, true), [TCP]);
    assert_eq!(in_turn(Transport::WebSocket, true, true), [WEB_SOCKET]);
    assert_eq!(in_turn(Transport::Kcp, false, true), [KCP]);
    assert_eq!(in_turn(Transport::Auto, true, true), [TCP, KCP, WEB_SOCKET]);
    assert_eq!(in_turn(Transport::Auto, true, false), [TCP, WEB_SOCKET]);
    assert_eq!(in_turn(Transport::Auto, false, false), [TCP]);
}

#[tokio::test(start_paused = true)]
async fn the_first_that_comes_up_counts_and_is_dialled_first_the_next_time() {
    let ways = Ways::of(Transport::Auto, true, true);
    let all_up = |_| (10, true);
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, TCP);
    // Neither TCP nor UDP is answered, as behind a firewall that drops their packets.
    let blocked = |way| {
        if way == WEB_SOCKET {
            (10, true)
        } else {
            (3000, false)
        }
    };
    let (way, took) = dialled(&ways, blocked).await.unwrap();
    assert_eq!((way, took.as_millis()), (WEB_SOCKET, 510));
    assert_eq!(ways.in_turn(), [WEB_SOCKET, TCP, KCP]);
    let (way, took) = dialled(&ways, blocked).await.unwrap();
    assert_eq!((way, took.as_millis()), (WEB_SOCKET, 10));
    // The entry does not wait for a refused transport, and dials the first transport once more.
    let refused = |way| (1, way == KCP);
    let (way, took) = dialled(&ways, refused).await.unwrap();
    assert_eq!((way, took.as_millis()), (KCP, 4));
}

#[tokio::test(start_paused = true)]
async fn an_exit_that_begins_to_listen_between_two_dials_is_reached_by_the_first() {
    let soon = Duration::from_secs(2);
    for (listens_after, takes, expected) in [
        (soon, Duration::from_millis(900), TCP),
        (soon, Duration::from_millis(1100), WEB_SOCKET),
        (Duration::MAX, Duration::ZERO, WEB_SOCKET),
    ] {
        let ways = Ways::of(Transport::Auto, true, false);
        let begun = Instant::now();
        let dialled = ways.dial(async |way| {
            if way == TCP && begun.elapsed() < listens_after {
                return Err(Error::from(ErrorKind::ConnectionRefused));
            }
            let takes = if way == TCP { takes } else { soon };
            tokio::time::sleep(takes).await;
            Ok(())
        });
        assert_eq!(dialled.await.unwrap().0, expected, "{takes:?}");
        assert_eq!(ways.in_turn()[0], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_configured_order_comes_back_after_a_pause_that_doubles_while_it_is_of_no_use() {
    let ways = Ways::of(Transport::Auto, true, true);
    let blocked = |way| (10, way == WEB_SOCKET);
    dialled(&ways, blocked).await.unwrap();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let begun = Instant::now();
        let mut took = Duration::ZERO;
        while took < Duration::from_millis(30) {
            assert!(begun.elapsed() < AGAIN_MAX * 2, "{pauses:?}");
            tokio::time::advance(Duration::from_secs(60)).await;
            took = dialled(&ways, blocked).await.unwrap().1;
        }
        pauses.push(begun.elapsed().as_secs() / 60);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    tokio::time::advance(AGAIN_MAX).await;
    assert_eq!(dialled(&ways, |_| (10, true)).await.unwrap().0, TCP);
    ways.heard(TCP);
    // The next pause is short again.
    dialled(&ways, blocked).await.unwrap();
    tokio::time::advance(AGAIN).await;
    assert_eq!(dialled(&ways, |_| (10, true)).await.unwrap().0, TCP);
}

/// The path has a firewall that accepts connections, and closes connections that do not begin with
/// HTTP.
#[tokio::test(start_paused = true)]
async fn one_by_which_nobody_was_heard_waits_until_all_others_have_failed() {
    let ways = Ways::of(Transport::Auto, true, true);
    let far = |way| match way {
        TCP => (300, true),
        KCP => (3000, false),
        _ => (900, true),
    };
    assert_eq!(dialled(&ways, far).await.unwrap().0, TCP);
    ways.unheard(TCP, Instant::now());
    let (way, took) = dialled(&ways, far).await.unwrap();
    assert_eq!((way, took.as_millis()), (WEB_SOCKET, 1150));
    ways.heard(WEB_SOCKET);
    // Once the other transports have failed, the entry dials TCP again.
    let (way, took) = dialled(&ways, |way| (100, way == TCP)).await.unwrap();
    assert_eq!((way, took.as_millis()), (TCP, 400));
    ways.heard(TCP);
    let (way, took) = dialled(&ways, |way| (400, way != WEB_SOCKET))
        .await
        .unwrap();
    assert_eq!((way, took.as_millis()), (TCP, 400));
    // If the exit answers on no transport, all transports are dialled again.
    for way in [KCP, TCP, WEB_SOCKET] {
        ways.unheard(way, Instant::now());
    }
    assert!(ways.doubted.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_way_that_a_session_ran_on_is_judged_whichever_is_dialled_first_by_now() {
    let ways = Ways::of(Transport::Auto, true, true);
    let (by, _) = dialled(&ways, |_| (10, true)).await.unwrap();
    // Another session of the worker dials.
    dialled(&ways, |way| (10, way == KCP)).await.unwrap();
    assert_eq!(ways.in_turn()[0], KCP);
    ways.unheard(by, Instant::now());
    assert_eq!(*ways.doubted.borrow(), [TCP]);
    assert_eq!(ways.in_turn(), [KCP, WEB_SOCKET, TCP]);
    ways.heard(KCP);
    assert_eq!(*ways.doubted.borrow(), [TCP]);
    ways.heard(TCP);
    assert_eq!(ways.in_turn(), [TCP, KCP, WEB_SOCKET]);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_heard_is_dialled_in_its_turn_again_after_a_pause() {
    let ways = Ways::of(Transport::Auto, true, true);
    ways.unheard(TCP, Instant::now());
    let all_up = |_| (10, true);
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, KCP);
    tokio::time::advance(AGAIN).await;
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, TCP);
}

#[tokio::test(start_paused = true)]
async fn a_session_on_web_socket_has_others_to_return_to_after_ever_longer_pauses() {
    let ways = Ways::of(Transport::Auto, true, true);
    let to_return_to = |way| ways.to_return_to(way, Instant::now());
    let blocked = |way| (10, way == WEB_SOCKET);
    dialled(&ways, blocked).await.unwrap();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let begun = Instant::now();
        while to_return_to(WEB_SOCKET).is_empty() {
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(to_return_to(WEB_SOCKET), [TCP, KCP]);
        ways.returning(Instant::now());
        pauses.push(begun.elapsed().as_secs() / 60);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    ways.returned(KCP);
    assert_eq!(ways.in_turn()[0], KCP);
    tokio::time::advance(AGAIN_MAX).await;
    // A trial decides between KCP and TCP.
    assert!(to_return_to(KCP).is_empty() && to_return_to(TCP).is_empty());
    ways.returned(TCP);
    assert_eq!(ways.in_turn(), [TCP, KCP, WEB_SOCKET]);
    // This call is for another session, which has started no attempt to return.
    assert_eq!(to_return_to(WEB_SOCKET), [TCP, KCP]);
}

#[tokio::test(start_paused = true)]
async fn the_winner_of_a_trial_is_dialled_first_though_it_was_not_heard_once() {
    let ways = Ways::of(Transport::Auto, true, true);
    let all_up = |_| (10, true);
    ways.unheard(KCP, Instant::now());
    ways.carried_more(KCP, "a test");
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, KCP);
    tokio::time::advance(AGAIN_MAX).await;
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, KCP);
    // The trial compared WebSocket with KCP only, so the position of TCP must not change.
    ways.carried_more(WEB_SOCKET, "a test");
    assert_eq!(dialled(&ways, all_up).await.unwrap().0, WEB_SOCKET);
    tokio::time::advance(AGAIN_MAX).await;
    assert_eq!(ways.to_return_to(WEB_SOCKET, Instant::now()), [TCP]);
    ways.carried_more(TCP, "a test");
    assert_eq!(ways.in_turn(), [TCP, KCP, WEB_SOCKET]);
}

#[tokio::test(start_paused = true)]
async fn where_none_comes_up_the_error_is_that_of_the_first() {
    let ways = Ways::of(Transport::Auto, false, true);
    let error = dialled(&ways, |_| (3000, false)).await.unwrap_err();
    assert_eq!(error.to_string(), "TCP");
    assert_eq!(ways.in_turn(), [TCP, KCP]);
}

#[tokio::test(start_paused = true)]
async fn another_is_tried_after_ever_longer_pauses_until_one_carries_more() {
    let ways = Ways::of(Transport::Auto, true, true);
    let (mut pauses, mut now) = (Vec::new(), Instant::now());
    assert_eq!(ways.to_try(TCP, now), Some(KCP));
    assert_eq!(ways.to_try(WEB_SOCKET, now), Some(KCP));
    assert_eq!(ways.to_try(KCP, now), Some(TCP));
    for _ in 0..8 {
        ways.tried(false, now);
        let begun = now;
        while ways.to_try(TCP, now).is_none() {
            now += Duration::from_secs(60);
        }
        pauses.push((now - begun).as_secs() / 60);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120, 120]);
    ways.tried(true, now);
    assert_eq!(ways.to_try(KCP, now + AGAIN), Some(TCP));
    assert_eq!(Ways::of(Transport::Tcp, false, true).to_try(TCP, now), None);
}
