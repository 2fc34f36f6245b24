//! Registrations, visits and tickets without connections.

use std::net::TcpListener;

use super::registrations::REGISTRATIONS_MAX;
use super::*;

const EMPTY: Option<oneshot::error::TryRecvError> = Some(oneshot::error::TryRecvError::Empty);

fn member(name: &str) -> Proof {
    Proof::of(name.to_owned())
}

fn register(meeting: &Meeting) -> (u64, mpsc::Receiver<Ticket>) {
    let registered = meeting.register(&member("db"), Duration::ZERO, |_| true);
    registered.unwrap()
}

fn registered() -> (Arc<Meeting>, u64, mpsc::Receiver<Ticket>) {
    let meeting = Meeting::new();
    let (number, tickets) = register(&meeting);
    (meeting, number, tickets)
}

type Begun = Result<(Visit, oneshot::Receiver<Ended>), VisitRefused>;

fn visit(meeting: &Arc<Meeting>, visitor: &str, limit: usize) -> Begun {
    meeting.visit(&member(visitor), &["db".to_owned()], limit, |_| true)
}

fn arrived() -> Arrived {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Arrived {
        tcp: TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
        peer: String::new(),
    }
}

#[test]
fn a_ticket_is_valid_once_and_no_longer_than_its_visit_and_its_registration() {
    let (meeting, number, mut tickets) = registered();
    let (visit, end) = visit(&meeting, "near", 1).unwrap();
    let mut own = visit.admit();
    let arrive = |ticket: &Ticket| meeting.arrive(ticket, arrived());
    assert_eq!(arrive(&[0; 16]), Arrival::Unknown, "a guess");
    assert_eq!(arrive(&own.ticket), Arrival::Awaited);
    assert_eq!(arrive(&own.ticket), Arrival::Unknown, "a second time");
    assert!(own.arrived.try_recv().is_ok());
    let invited = visit.invite().unwrap();
    let ticket = tickets.try_recv().unwrap();
    assert!(ticket == invited.ticket && ticket != own.ticket);
    drop(invited);
    assert_eq!(arrive(&ticket), Arrival::Late, "the visitor has gone");
    assert_eq!(arrive(&ticket), Arrival::Unknown, "late a second time");
    let mut invited = visit.invite().unwrap();
    meeting.unregister("db", number + 1);
    assert_eq!(invited.arrived.try_recv().err(), EMPTY);
    meeting.unregister("db", number);
    assert_eq!(arrive(&invited.ticket), Arrival::Late, "no exit");
    assert_eq!(visit.invite().err(), Some(VisitRefused::Nobody));
    drop((own, invited, visit, end));
    let state = meeting.state();
    assert_eq!((state.visits.len(), state.tickets.len()), (0, 0));
}

#[test]
fn late_tickets_are_bounded_and_the_oldest_goes_first() {
    let (meeting, _number, mut tickets) = registered();
    let (visit, _end) = visit(&meeting, "near", 1).unwrap();
    let mut late = || {
        drop(visit.invite().unwrap());
        tickets.try_recv().unwrap()
    };
    let issued: Vec<_> = (0..=LATE_MAX).map(|_| late()).collect();
    assert_eq!(meeting.state().late.len(), LATE_MAX);
    assert_eq!(meeting.arrive(&issued[0], arrived()), Arrival::Unknown);
    assert_eq!(meeting.arrive(&issued[1], arrived()), Arrival::Late);
}

#[test]
fn a_registration_ends_with_its_proof_and_not_by_another_of_the_key() {
    let (meeting, number, mut tickets) = registered();
    let proof = member("db");
    assert!(
        meeting
            .register(&proof, Duration::ZERO, |_| false)
            .is_none()
    );
    let (visit, _end) = visit(&meeting, "near", 1).unwrap();
    let mut waits = visit.invite().unwrap();
    let (_, mut later) = register(&meeting);
    assert!(tickets.try_recv().is_ok());
    assert_eq!(tickets.try_recv(), Err(mpsc::error::TryRecvError::Empty));
    assert_eq!(waits.arrived.try_recv().err(), EMPTY);
    assert_eq!(meeting.status().registered, ["db", "db"]);
    assert!(meeting.verify_again(|_| true).is_empty());
    meeting.unregister("db", number);
    assert_eq!(meeting.status().registered, ["db"]);
    assert_eq!(meeting.verify_again(|_| false), ["db"]);
    let closed = Err(mpsc::error::TryRecvError::Disconnected);
    assert!(later.try_recv() == closed && meeting.status().registered.is_empty());
    drop(visit);
    assert_eq!(
        self::visit(&meeting, "near", 1).err(),
        Some(VisitRefused::Nobody)
    );
}

#[test]
fn the_oldest_registration_beyond_the_bound_ends() {
    let (meeting, _, mut oldest) = registered();
    let mut others: Vec<_> = (0..REGISTRATIONS_MAX).map(|_| register(&meeting)).collect();
    let closed = Err(mpsc::error::TryRecvError::Disconnected);
    assert_eq!(oldest.try_recv(), closed);
    assert_eq!(meeting.status().registered.len(), REGISTRATIONS_MAX);
    let open = |(_, tickets): &mut (u64, mpsc::Receiver<_>)| tickets.try_recv() != closed;
    assert!(others.iter_mut().all(open));
}

#[test]
fn a_visitor_keeps_to_one_exit_and_visitors_share_the_exits() {
    let (meeting, first, _tickets) = registered();
    let (second, _more) = register(&meeting);
    let mut open = Vec::new();
    let mut reach = |visitor| {
        open.push(visit(&meeting, visitor, 9).unwrap());
        open.last().map(|(visit, _)| visit.registration)
    };
    let (near, other) = (reach("near"), reach("other"));
    assert_eq!((near, other), (Some(second), Some(first)));
    assert_eq!([reach("near"), reach("near"), reach("near")], [near; 3]);
    assert_eq!(reach("other"), other);
    // The visitor's carriers were cut: the session is still there.
    open.clear();
    let visit = visit(&meeting, "other", 9).unwrap().0;
    assert_eq!(Some(visit.registration), other);
    // An exit that does not connect is the last choice, until it connects.
    visit.exit_came(false);
    let again = |visitor| self::visit(&meeting, visitor, 9).unwrap().0.registration;
    assert_eq!([again("other"), again("new")], [second; 2]);
    visit.exit_came(true);
    assert_eq!([again("other"), again("new")], [second; 2]);
    drop(visit);
    meeting.unregister("db", second);
    assert_eq!([again("near"), again("other")], [first; 2]);
}

#[test]
fn at_the_limit_the_member_with_the_most_visits_gives_up_its_newest() {
    let (meeting, ..) = registered();
    let mut greedy: Vec<_> = (0..4)
        .map(|_| visit(&meeting, "greedy", 4).unwrap())
        .collect();
    assert_eq!(
        visit(&meeting, "greedy", 4).err(),
        Some(VisitRefused::TooMany)
    );
    let _first = visit(&meeting, "honest", 4).unwrap();
    assert_eq!(greedy[3].1.try_recv(), Ok(Ended::Share));
    let _second = visit(&meeting, "honest", 4).unwrap();
    assert_eq!(greedy[2].1.try_recv(), Ok(Ended::Share));
    // The shares are equal.
    assert_eq!(
        visit(&meeting, "honest", 4).err(),
        Some(VisitRefused::TooMany)
    );
    assert_eq!(
        visit(&meeting, "greedy", 4).err(),
        Some(VisitRefused::TooMany)
    );
    let _third = visit(&meeting, "new", 4).unwrap();
    let _fourth = visit(&meeting, "last", 4).unwrap();
    assert_eq!(
        visit(&meeting, "fifth", 4).err(),
        Some(VisitRefused::TooMany)
    );
    // The end of a visit that the rendezvous ended frees no further place.
    drop(greedy.split_off(2));
    assert_eq!(meeting.state().visits.len(), 4);
}

#[test]
fn visits_end_with_the_proof_of_either_member() {
    let (meeting, ..) = registered();
    let (visit, mut end) = visit(&meeting, "near", 9).unwrap();
    visit.joined();
    let (_other, mut other_end) = self::visit(&meeting, "other", 9).unwrap();
    meeting.verify_again(|_| true);
    assert_eq!((end.try_recv().err(), meeting.status().meeting), (EMPTY, 1));
    assert!(
        meeting
            .verify_again(|proof| proof.identity != "near")
            .is_empty()
    );
    assert_eq!(end.try_recv(), Ok(Ended::NoMember("near".to_owned())));
    assert_eq!(other_end.try_recv().err(), EMPTY);
    assert_eq!(meeting.verify_again(|proof| proof.identity != "db"), ["db"]);
    assert_eq!(other_end.try_recv(), Ok(Ended::NoMember("db".to_owned())));
    assert_eq!((meeting.status().meeting, meeting.status().waiting), (0, 0));
    drop(visit);
    assert_eq!(
        meeting
            .visit(&member("near"), &["db".to_owned()], 9, |_| false)
            .err(),
        Some(VisitRefused::NoMember)
    );
}
