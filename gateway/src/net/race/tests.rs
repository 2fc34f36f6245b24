use std::cell::RefCell;
use std::future::{pending, ready};
use std::io::ErrorKind;

use super::*;

/// How an address answers.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Silent,
    Refuses,
    /// The address answers after this number of milliseconds.
    After(u64),
    /// The address is reached at once, and the attempt fails after this number of milliseconds.
    FailsOnceReached(u64),
}

/// Counts the attempts that are open.
struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The outcome of a race between addresses of these kinds.
#[derive(Debug, PartialEq, Eq)]
struct Raced {
    /// The number of the winner.
    winner: Option<usize>,
    /// The times at which the attempts started, in milliseconds, with the numbers of the addresses.
    started: Vec<(u128, usize)>,
    /// The duration of the race in milliseconds.
    took: u128,
    /// Number of attempts that were open after the race.
    open: usize,
}

async fn raced(kinds: &[Kind], late: impl Future<Output = Vec<usize>>) -> Raced {
    let begin = Instant::now();
    let started = RefCell::new(Vec::new());
    let open = Rc::new(Cell::new(0));
    let attempt = |number: usize, reached: Reached| {
        started
            .borrow_mut()
            .push((begin.elapsed().as_millis(), number));
        open.set(open.get() + 1);
        let open = Open(Rc::clone(&open));
        async move {
            let open = open;
            let pause = |time| tokio::time::sleep(Duration::from_millis(time));
            let result = match kinds[number] {
                Kind::Silent => pending().await,
                Kind::Refuses => Err(ErrorKind::ConnectionRefused.into()),
                Kind::After(time) => {
                    pause(time).await;
                    Ok(())
                }
                Kind::FailsOnceReached(time) => {
                    reached.report();
                    pause(time).await;
                    Err(ErrorKind::UnexpectedEof.into())
                }
            };
            drop(open);
            result
        }
    };
    let first = (0..kinds.len()).collect();
    let until = begin + Duration::from_secs(10);
    let won = race(first, late, until, attempt).await;
    Raced {
        winner: won.ok().map(|(number, ())| number),
        started: started.into_inner(),
        took: begin.elapsed().as_millis(),
        open: open.get(),
    }
}

async fn of(kinds: &[Kind]) -> Raced {
    raced(kinds, ready(Vec::new())).await
}

#[tokio::test(start_paused = true)]
async fn six_silent_addresses_cost_the_delay_of_an_attempt_each_and_are_closed() {
    let kinds = [[Kind::Silent; 6].as_slice(), &[Kind::After(10)]].concat();
    let raced = of(&kinds).await;
    let started = (0..7).map(|number| (250 * number as u128, number));
    assert_eq!(
        raced,
        Raced {
            winner: Some(6),
            started: started.collect(),
            took: 1510,
            open: 0
        }
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_that_refuses_costs_no_time() {
    let raced = of(&[Kind::Refuses, Kind::Refuses, Kind::After(5)]).await;
    assert_eq!((raced.winner, raced.took), (Some(2), 5));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_address_that_answers_late_wins_over_a_later_one_that_does_not() {
    let raced = of(&[Kind::After(600), Kind::Silent, Kind::Silent]).await;
    assert_eq!((raced.winner, raced.took, raced.open), (Some(0), 600, 0));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_answers_in_time_is_the_only_one_that_is_dialled() {
    let raced = of(&[Kind::After(249), Kind::After(0)]).await;
    assert_eq!((raced.winner, raced.started), (Some(0), vec![(0, 0)]));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_race_is_bounded_whatever_the_number_of_addresses() {
    let raced = of(&[Kind::Silent; 50]).await;
    assert_eq!((raced.winner, raced.took), (None, 10_000));
    assert_eq!((raced.started.len(), raced.open), (40, 0));
}

#[tokio::test(start_paused = true)]
async fn the_last_error_is_reported_once_all_addresses_have_failed() {
    let attempt = |number, _| ready(Err::<(), _>(Error::other(format!("{number}"))));
    let until = Instant::now() + Duration::from_secs(10);
    let lost = race(vec![1, 2, 3], ready(Vec::new()), until, attempt).await;
    let Err(Lost::Failed(3, error)) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(error.to_string(), "3");
}

#[tokio::test(start_paused = true)]
async fn late_addresses_are_dialled_next() {
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        vec![4, 5]
    };
    let attempt = |number: u32, _: Reached| async move {
        match number {
            4 => Ok(()),
            _ => pending().await,
        }
    };
    let begin = Instant::now();
    let until = begin + Duration::from_secs(10);
    let won = race(vec![1, 2, 3], late, until, attempt).await.unwrap();
    assert_eq!((won.0, begin.elapsed().as_millis()), (4, 250));
}

#[tokio::test(start_paused = true)]
async fn a_race_without_addresses_waits_for_late_ones() {
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        vec![0]
    };
    let until = Instant::now() + Duration::from_secs(10);
    let won = race(Vec::new(), late, until, |_, _| ready(Ok(()))).await;
    assert_eq!(won.unwrap().0, 0);
    let lost = race(Vec::<u8>::new(), ready(Vec::new()), until, |_, _| {
        ready(Ok(()))
    })
    .await;
    assert!(matches!(lost, Err(Lost::NoAddress)));
}

/// A TLS handshake may take longer than the delay of an attempt. Meanwhile, no other exit is
/// dialled.
#[tokio::test(start_paused = true)]
async fn an_address_that_was_reached_is_alone_until_its_attempt_fails() {
    let kinds = [Kind::Silent, Kind::FailsOnceReached(3000), Kind::After(10)];
    let raced = of(&kinds).await;
    // The first address is dialled again, because its attempt was dropped for the second.
    let started = vec![(0, 0), (250, 1), (3250, 0), (3500, 2)];
    assert_eq!(
        (raced.winner, raced.started, raced.open),
        (Some(2), started, 0)
    );
}

#[test]
fn families_take_turns_beginning_with_the_first() {
    let order = |texts: &[&str]| -> Vec<String> {
        let addresses = texts.iter().map(|text| text.parse().unwrap());
        let ordered = by_family(addresses.collect());
        ordered.iter().map(ToString::to_string).collect()
    };
    let [six, seven, eight] = ["[fd00::6]:1", "[fd00::7]:1", "[fd00::8]:1"];
    let [one, two] = ["10.0.0.1:1", "10.0.0.2:1"];
    assert_eq!(
        order(&[six, seven, eight, one, two]),
        [six, one, seven, two, eight]
    );
    assert_eq!(order(&[one, two, six]), [one, six, two]);
    assert_eq!(order(&[one, two]), [one, two]);
    assert!(order(&[]).is_empty());
}
