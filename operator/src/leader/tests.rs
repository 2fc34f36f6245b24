//! Several electors and one API server in memory, with a clock that the test advances.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::runtime::{reflector, watcher};
use serde_json::json;
use tokio::task::JoinHandle;
use tower::{BoxError, Layer, Service};

use super::*;
use crate::interceptor::InterceptorLayer;
use crate::testing::{Failure, FakeApi};

const NAME: &str = "muxtunnel-operator";
const PATH: &str = "leases/muxtunnel-operator@mux";

fn elector(api: &FakeApi, identity: &str) -> Elector {
    let (client, name, identity) = (api.client(), NAME.to_owned(), identity.to_owned());
    Elector::new(client, "mux", name, identity, Clock::system())
}

/// An elector in a task, like a process.
struct Running {
    leadership: Leadership,
    task: JoinHandle<()>,
}

impl Running {
    fn new(api: &FakeApi, identity: &str) -> Self {
        let mut elector = elector(api, identity);
        let leadership = elector.leadership();
        let task = tokio::spawn(async move { elector.run().await });
        Self { leadership, task }
    }

    /// Ends the elector without cleanup, like SIGKILL.
    fn kill(&self) {
        self.task.abort();
    }
}

fn holder(api: &FakeApi) -> String {
    let lease = api.get(PATH).unwrap();
    lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_after_a_kill_the_other_does_within_twenty_seconds() {
    let api = FakeApi::default();
    let first = Running::new(&api, "first");
    pass(1.0).await;
    let second = Running::new(&api, "second");
    pass(60.0).await;
    assert!(first.leadership.is_held() && !second.leadership.is_held());
    assert_eq!(holder(&api), "first");
    first.kill();
    let killed = Instant::now();
    let mut won = second.leadership.won();
    won.next().await.unwrap();
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(holder(&api), "second");
    assert!(
        !first.leadership.is_held(),
        "the old leader's time ends before the new leader's time begins"
    );
    assert_eq!(api.get(PATH).unwrap()["spec"]["leaseTransitions"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_put_down_is_taken_at_the_next_poll() {
    let api = FakeApi::default();
    let mut first = elector(&api, "first");
    first.turn().await;
    assert!(first.leadership().is_held());
    let second = Running::new(&api, "second");
    pass(1.0).await;
    let gate = first.leadership();
    let released = tokio::spawn(first.release());
    pass(SETTLE.as_secs_f64() - 0.1).await;
    assert!(!gate.is_held(), "a release stops all writes at once");
    assert_eq!(
        holder(&api),
        "first",
        "a release waits for earlier requests"
    );
    released.await.unwrap();
    pass(POLL_INTERVAL.as_secs_f64() + 0.1).await;
    assert!(second.leadership.is_held());
    assert_eq!(holder(&api), "second");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_meets_its_own_earlier_one_takes_nothing_away() {
    let api = FakeApi::default();
    let mut first = elector(&api, "first");
    first.turn().await;
    // Either the write succeeds and its answer is lost, or another client labels the Lease
    // meanwhile.
    for failure in [Failure::After(504), Failure::Before(409)] {
        api.fail_write(0, failure);
        first.turn().await;
        assert!(first.leadership().is_held(), "{failure:?}");
        assert_eq!(holder(&api), "first");
        first.turn().await;
        assert!(first.leadership().is_held());
    }
    // A Lease with another holder's name ends the leadership immediately.
    let mut lease = api.get(PATH).unwrap();
    lease["spec"]["holderIdentity"] = json!("second");
    api.put(PATH, lease);
    first.turn().await;
    assert!(!first.leadership().is_held());
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_answers_stops_writing_before_another_may_begin_and_leads_again_later() {
    let api = FakeApi::default();
    let first = Running::new(&api, "first");
    pass(6.0).await;
    let mut won = first.leadership.won();
    won.next().await.unwrap();
    api.go_away(true);
    pass(WRITE_FOR.as_secs_f64()).await;
    assert!(!first.leadership.is_held());
    api.go_away(false);
    tokio::time::timeout(Duration::from_secs(2), won.next())
        .await
        .expect("the Lease is won again");
    assert_eq!(api.get(PATH).unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_over_at_once_one_fails() {
    let api = FakeApi::default();
    elector(&api, "dead").turn().await;
    let (mut one, mut other) = (elector(&api, "one"), elector(&api, "other"));
    one.turn().await;
    other.turn().await;
    pass(f64::from(LEASE_SECONDS)).await;
    // Both electors have read the same version of the Lease, and the second elector writes first.
    api.fail_write(0, Failure::Before(409));
    one.turn().await;
    other.turn().await;
    assert!(!one.leadership().is_held() && other.leadership().is_held());
    let mut stale = api.get(PATH).unwrap();
    stale["metadata"]["resourceVersion"] = json!("1");
    let stale: Lease = serde_json::from_value(stale).unwrap();
    let Err(kube::Error::Api(refusal)) = one.put(&stale).await else {
        panic!("the API server has a newer Lease");
    };
    assert_eq!(refusal.code, 409);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_of_another_machine_takes_nothing_away() {
    let api = FakeApi::default();
    let first = Running::new(&api, "first");
    pass(1.0).await;
    let mut lease = api.get(PATH).unwrap();
    lease["spec"]["renewTime"] = json!("2001-01-01T00:00:00.000000Z");
    api.put(PATH, lease);
    let mut second = elector(&api, "second");
    for _ in 0..20 {
        second.turn().await;
        pass(1.0).await;
    }
    assert!(first.leadership.is_held() && !second.leadership().is_held());
}

/// A client's service that counts the requests and answers after a delay.
fn gated(
    leadership: &Leadership,
    answer_after: Duration,
) -> (
    impl Service<Request<()>, Response = Response<()>, Error = BoxError>,
    Arc<AtomicUsize>,
) {
    let reached = Arc::new(AtomicUsize::new(0));
    let counted = reached.clone();
    let service = tower::service_fn(move |_: Request<()>| {
        let counted = counted.clone();
        // The request is counted when its future is polled, because only then does a request reach
        // the network.
        Box::pin(async move {
            counted.fetch_add(1, Ordering::Relaxed);
            sleep(answer_after).await;
            Ok::<_, std::io::Error>(Response::new(()))
        })
    });
    let gate = WriteGate(leadership.clone());
    (InterceptorLayer(gate).layer(service), reached)
}

fn request(method: Method) -> Request<()> {
    Request::builder().method(method).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn nothing_but_a_get_passes_the_gate_of_a_follower() {
    let leadership = Leadership::default();
    let (mut service, reached) = gated(&leadership, Duration::ZERO);
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let error = service.call(request(method)).await.unwrap_err();
        assert!(error.is::<NotLeader>());
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
    service.call(request(Method::GET)).await.unwrap();
    leadership.hold_until(Instant::now() + WRITE_FOR);
    service.call(request(Method::PATCH)).await.unwrap();
    assert_eq!(reached.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_past_its_lease_sends_nothing() {
    let leadership = Leadership::default();
    leadership.hold_until(Instant::now() + WRITE_FOR);
    let (mut service, reached) = gated(&leadership, Duration::ZERO);
    // The request is created before the stop, but not sent yet.
    let asked = service.call(request(Method::PATCH));
    tokio::time::advance(WRITE_FOR).await;
    assert!(asked.await.unwrap_err().is::<NotLeader>());
    let error = service.call(request(Method::PATCH)).await.unwrap_err();
    assert!(error.is::<NotLeader>());
    assert_eq!(reached.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_on_its_way_ends_with_the_lease_and_outlives_a_renewal() {
    let leadership = Leadership::default();
    leadership.hold_until(Instant::now() + WRITE_FOR);
    let (mut service, _) = gated(&leadership, WRITE_FOR + Duration::from_secs(1));
    let error = service.call(request(Method::PATCH)).await.unwrap_err();
    assert!(error.is::<NotLeader>());
    leadership.hold_until(Instant::now() + WRITE_FOR);
    let renewing = async {
        sleep(RENEW_EVERY).await;
        leadership.hold_until(Instant::now() + WRITE_FOR);
    };
    let (answer, ()) = tokio::join!(service.call(request(Method::PATCH)), renewing);
    answer.unwrap();
    let given_up = async {
        sleep(RENEW_EVERY).await;
        leadership.give_up();
    };
    let (answer, ()) = tokio::join!(service.call(request(Method::PATCH)), given_up);
    assert!(answer.unwrap_err().is::<NotLeader>());
}

#[tokio::test(start_paused = true)]
async fn a_follower_reconciles_nothing_and_the_winner_all_that_is_known() {
    let leadership = Leadership::default();
    let (store, mut writer) = reflector::store::<Lease>();
    for name in ["a", "b"] {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("mux".to_owned()),
            ..ObjectMeta::default()
        };
        let spec = None;
        writer.apply_watcher_event(&watcher::Event::Apply(Lease { metadata, spec }));
    }
    let reconciled = AtomicUsize::new(0);
    let reconcile = || {
        leadership.if_held(async {
            reconciled.fetch_add(1, Ordering::Relaxed);
            Ok::<_, NotLeader>(Action::requeue(RENEW_EVERY))
        })
    };
    assert_eq!(reconcile().await.unwrap(), Action::await_change());
    assert_eq!(reconciled.load(Ordering::Relaxed), 0);
    let mut requeues = leadership.requeues(&store);
    assert!(timeout(POLL_INTERVAL, requeues.next()).await.is_err());
    // The Lease is won, renewed and lost, twice.
    for wins in [1, 2] {
        leadership.hold_until(Instant::now() + WRITE_FOR);
        leadership.hold_until(Instant::now() + WRITE_FOR);
        let mut names = Vec::new();
        while let Ok(Some(reference)) = timeout(POLL_INTERVAL, requeues.next()).await {
            names.push(reference.name);
        }
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(reconcile().await.unwrap(), Action::requeue(RENEW_EVERY));
        assert_eq!(reconciled.load(Ordering::Relaxed), wins);
        leadership.give_up();
    }
}
