//! Tests how a connection counts the payload of its channels.

use super::*;

fn shared(held_max: usize) -> Arc<Shared> {
    Shared::new(held_max)
}

#[tokio::test]
async fn what_came_is_delivered_before_the_end_and_before_a_cut() {
    let shared = shared(1 << 20);
    let ended = shared.add(1);
    ended.push(b"ab");
    ended.push(b"c");
    ended.end();
    ended.close();
    assert_eq!(ended.receive().await.unwrap().unwrap(), "abc");
    assert_eq!(ended.receive().await, Ok(None));
    let cut = shared.add(2);
    cut.push(b"x");
    cut.close();
    assert_eq!(cut.receive().await.unwrap().unwrap(), "x");
    assert_eq!(cut.receive().await, Err(Cut::Closed));
    assert!(cut.is_closed() && !cut.is_over());
}

#[tokio::test]
async fn a_full_account_stops_reading_until_some_is_taken_and_the_largest_staller_is_cut() {
    let shared = shared(100);
    let (small, large) = (shared.add(1), shared.add(2));
    small.push(&[0; 20]);
    large.push(&[0; 80]);
    assert_eq!(crate::io::ssh::at_once(shared.has_room()), None);
    let now = Instant::now();
    assert!(!shared.cut_stalled(now));
    small.took(1);
    assert_eq!(crate::io::ssh::at_once(shared.has_room()), Some(()));
    large.push(&[0; 1]);
    assert!(shared.cut_stalled(now + STALL_MAX * 2));
    assert_eq!(
        (large.why_cut(), small.why_cut()),
        (Some(Cut::Stalled), None)
    );
    assert_eq!(shared.held(), 19);
    // Later payload is discarded.
    large.push(&[0; 50]);
    assert_eq!(shared.held(), 19);
    assert_eq!(large.receive().await, Err(Cut::Stalled));
}

#[tokio::test]
async fn small_pieces_are_joined_and_an_end_reaches_all_channels() {
    let shared = shared(1 << 20);
    let chan = shared.add(1);
    (0..1000).for_each(|_| chan.push(b"z"));
    assert_eq!(chan.receive().await.unwrap().unwrap().len(), 1000);
    shared.end(End::Closed);
    shared.end(End::Violation(String::new()));
    assert_eq!(shared.ended().await, End::Closed);
    assert_eq!(chan.receive().await, Err(Cut::Lost));
    assert!(shared.get(1).is_none());
}

#[test]
fn what_waits_for_the_transport_holds_up_more() {
    let shared = shared(1);
    let queued = shared.queue(QUEUED_MAX);
    assert_eq!(crate::io::ssh::at_once(shared.may_queue()), None);
    shared.encrypted(QUEUED_MAX);
    drop(queued);
    assert_eq!(crate::io::ssh::at_once(shared.may_queue()), None);
    shared.left(QUEUED_MAX);
    assert_eq!(crate::io::ssh::at_once(shared.may_queue()), Some(()));
}

#[test]
fn a_connection_that_closed_many_channels_first_is_spent() {
    let shared = shared(1);
    for id in 0..CLOSED_FIRST_MAX as u32 {
        assert!(!shared.is_spent());
        shared.add(id).close_first();
    }
    assert!(shared.is_spent() && shared.get(0).is_none());
}
