//! The bottleneck of the carriers.

use std::time::Duration;

use muxtunnel_crds::Direction;
use muxtunnel_gateway_config::status::{Carrier, Limit};
use muxtunnel_operator::apply::Settled;
use muxtunnel_operator::caches::{Cluster, Feeds};
use muxtunnel_operator::clock::{Clock, Now};
use muxtunnel_operator::tunnel_controller::publish::Outcome;
use muxtunnel_operator::tunnel_controller::update_status::bottleneck::bottleneck;
use muxtunnel_operator::tunnel_controller::update_status::{Status, StatusDebounce, update_status};
use muxtunnel_testkit::api_server::FakeApi;

use super::*;

/// A carrier with this verdict and these bytes sent and received per second.
fn judged(limit: Limit, sent: u64, received: u64) -> Carrier {
    Carrier {
        sent_bytes_per_second: sent,
        received_bytes_per_second: received,
        limit: Some(limit),
        limit_advice: Some(format!("about {}", limit.as_str())),
        ..carrier(100.0)
    }
}

/// The bottleneck of a tunnel whose entry and exit have these carriers.
fn said(entry: &[Carrier], exit: &[Carrier]) -> Option<(Direction, String, String)> {
    let mut case = case(SMALLEST);
    case.status(End::Entry).carriers = entry.to_vec();
    case.status(End::Exit).carriers = exit.to_vec();
    let said = bottleneck(&case.seen, None)?;
    Some((said.direction, said.reason, said.message))
}

fn expect_said(
    entry: &[Carrier],
    exit: &[Carrier],
    (direction, reason, message): (Direction, Limit, &str),
) {
    let wanted = (direction, reason.as_str().to_owned(), message.to_owned());
    assert_eq!(said(entry, exit), Some(wanted));
}

#[test]
fn the_sender_of_the_direction_that_moves_more_says_what_limits_it() {
    let (little, much) = (10_000, 20_000_000);
    let exit = [judged(Limit::Application, little, much)];
    let upload = [
        judged(Limit::Application, little, 0),
        judged(Limit::SendBuffer, much, little),
    ];
    let message = "entry: about SendBuffer";
    let up = (Direction::EntryToExit, Limit::SendBuffer, message);
    expect_said(&upload, &exit, up);
    let download = [judged(Limit::CongestionWindow, much, little)];
    let message = "exit: about CongestionWindow";
    let down = (Direction::ExitToEntry, Limit::CongestionWindow, message);
    expect_said(&[judged(Limit::Application, little, much)], &download, down);
}

#[test]
fn a_receiver_without_memory_or_time_is_what_the_senders_full_window_comes_from() {
    for short in [Limit::Memory, Limit::Cpu] {
        let entry = [judged(Limit::ReceiveWindow, 1 << 20, 0)];
        let exit = [judged(short, 0, 1 << 20)];
        let message = format!("exit: about {}", short.as_str());
        expect_said(&entry, &exit, (Direction::EntryToExit, short, &message));
    }
    let entry = [judged(Limit::Cpu, 1 << 20, 0)];
    let exit = [judged(Limit::Memory, 0, 1 << 20)];
    let cpu = (Direction::EntryToExit, Limit::Cpu, "entry: about CPU");
    expect_said(&entry, &exit, cpu);
}

#[test]
fn a_senders_full_memory_is_of_the_other_direction() {
    let entry = [judged(Limit::Memory, 1 << 20, 0)];
    let exit = [judged(Limit::Application, 0, 1 << 20)];
    let message = "entry: about Memory";
    expect_said(
        &entry,
        &exit,
        (Direction::ExitToEntry, Limit::Memory, message),
    );
}

#[test]
fn an_idle_tunnel_has_one_direction_whatever_its_few_bytes_do() {
    for (sent, received) in [(10, 300), (300, 10)] {
        let said = said(
            &[judged(Limit::Idle, sent, received)],
            &[judged(Limit::Idle, received, sent)],
        );
        let (direction, reason, _) = said.unwrap();
        assert_eq!(
            (direction, reason.as_str()),
            (Direction::EntryToExit, "Idle")
        );
    }
}

#[test]
fn the_direction_changes_only_where_the_other_moves_a_quarter_more() {
    let mut case = case(SMALLEST);
    let mut direction = |shown, sent, received| {
        case.status(End::Entry).carriers = vec![judged(Limit::Application, sent, received)];
        case.status(End::Exit).carriers = vec![judged(Limit::Application, received, sent)];
        bottleneck(&case.seen, Some(shown)).unwrap().direction
    };
    let (up, down) = (Direction::EntryToExit, Direction::ExitToEntry);
    assert_eq!(direction(up, 4000, 5000), up);
    assert_eq!(direction(up, 4000, 5001), down);
    assert_eq!(direction(down, 5000, 4000), down);
}

#[test]
fn an_exit_alone_says_what_it_knows() {
    let alone = |limit, sent, received| {
        let mut case = case(EXIT);
        case.status(End::Exit).carriers = vec![judged(limit, sent, received)];
        bottleneck(&case.seen, None).map(|said| (said.direction, said.reason))
    };
    let (up, down) = (Direction::EntryToExit, Direction::ExitToEntry);
    let own = Some((down, "SendBuffer".to_owned()));
    assert_eq!(alone(Limit::SendBuffer, 1 << 20, 0), own);
    let own = Some((up, "Memory".to_owned()));
    assert_eq!(alone(Limit::Memory, 0, 1 << 20), own);
    assert_eq!(alone(Limit::Application, 0, 1 << 20), None);
    assert_eq!(alone(Limit::Idle, 0, 20), Some((up, "Idle".to_owned())));
}

#[test]
fn gateways_that_do_not_know_yet_say_nothing() {
    assert_eq!(said(&[carrier(1.0)], &[carrier(1.0)]), None);
    assert_eq!(said(&[], &[]), None);
}

#[tokio::test]
async fn what_limits_it_is_written_when_it_is_seen_again() {
    let api = FakeApi::default();
    api.put("muxtunnels/office", object_json(SMALLEST));
    let mut case = case(SMALLEST);
    case.status(End::Entry).carriers = vec![judged(Limit::SendBuffer, 1 << 20, 0)];
    let outcome = Outcome::Observed(Box::new(case.0));
    let cluster = Cluster {
        client: api.client(),
        caches: Feeds::default().caches(),
        settled: Settled::default(),
    };
    let debounce = StatusDebounce::default();
    let (mut written, begin) = (Vec::new(), Clock::system().now());
    for second in 0..3 {
        let instant = begin.instant + Duration::from_secs(second);
        let now = Now { instant, ..begin };
        let tunnel = try_decoded(api.get("muxtunnels/office").unwrap()).unwrap();
        let status = update_status(&cluster, &tunnel, &outcome, &debounce, now)
            .await
            .unwrap();
        let Status::Tunnel(status) = status else {
            panic!("{status:?}");
        };
        written.push(status.bottleneck.map(|bottleneck| bottleneck.reason));
    }
    let limit = Some("SendBuffer".to_owned());
    assert_eq!(written, [None, limit.clone(), limit]);
    let patches = api.take_requests().len();
    assert_eq!(patches, 2, "the third time nothing has changed");
}
