//! The code of each failure.

use kube::core::Status;
use muxtunnel_codes::Code;
use muxtunnel_operator::apply::{ApplyError, Named};
use muxtunnel_operator::benchmark_controller;
use muxtunnel_operator::benchmark_controller::runner_client::RunnerError;
use muxtunnel_operator::failure::{Coded, NotLeader, chain, code, is_reported};
use muxtunnel_operator::tunnel_controller;
use muxtunnel_operator::tunnel_controller::error::KeyError;

fn answered(status: u16) -> kube::Error {
    kube::Error::Api(Status::failure("", "").with_code(status).boxed())
}

#[test]
fn each_answer_has_its_class_however_deep_it_lies() {
    for (status, class) in [
        (0, Code::ApiUnavailable),
        (403, Code::ApiRefused),
        (409, Code::WriteConflict),
        (422, Code::ApiRefused),
        (429, Code::ApiUnavailable),
        (503, Code::ApiUnavailable),
    ] {
        assert_eq!(code(&answered(status)), class);
        let name = "office-exit".to_owned();
        let source = Box::new(answered(status));
        let deep = tunnel_controller::Error::from(KeyError::Create { name, source });
        assert_eq!(deep.code(), class);
    }
    let refused = kube::Error::Service(Box::new(NotLeader));
    let refused = tunnel_controller::Error::Certify(refused);
    assert_eq!(refused.code(), Code::LeaderLost);
    let lost = kube::Error::Service(Box::new(std::io::Error::other("gone")));
    assert_eq!(code(&lost), Code::ApiUnavailable);
    let own = tunnel_controller::Error::Incomplete("UID");
    assert_eq!(own.code(), Code::BuildFailed);
}

#[test]
fn a_runner_that_does_not_answer_is_no_fault_of_the_api_server() {
    let silent = benchmark_controller::Error::from(RunnerError::TimedOut);
    assert_eq!(silent.code(), Code::BenchmarkRunnerSilent);
}

fn refused_write(source: kube::Error) -> tunnel_controller::Error {
    let object = Named {
        kind: "Deployment".to_owned(),
        name: "office-exit".to_owned(),
    };
    tunnel_controller::Error::from(ApplyError::Api("apply", object, Box::new(source)))
}

#[test]
fn a_refusal_is_one_plain_sentence() {
    let said = "deployments.apps \"office-exit\" is forbidden: a policy forbids it";
    let status = Status::failure(said, "Forbidden").with_code(403);
    let refused = || kube::Error::Api(status.clone().boxed());
    let expected = format!("cannot apply Deployment office-exit: {said}");
    assert_eq!(chain(&refused_write(refused())), expected);
    // The client's error, with and without a message of the operator.
    assert_eq!(chain(&refused()), said);
    let of_status = tunnel_controller::Error::UpdateStatus(refused());
    let expected = format!("cannot write the status: {said}");
    assert_eq!(chain(&of_status), expected);
    let name = "office-exit".to_owned();
    let source = Box::new(refused());
    let of_secret = tunnel_controller::Error::from(KeyError::Create { name, source });
    assert_eq!(
        chain(&of_secret),
        format!("cannot create Secret office-exit: {said}")
    );
    // A refusal without a message has at least its number.
    let empty = Status::failure("", "").with_code(403).boxed();
    let expected = "cannot apply Deployment office-exit: the API server answered with status 403";
    assert_eq!(chain(&refused_write(kube::Error::Api(empty))), expected);
}

#[test]
fn a_write_without_an_answer_is_reported_once_it_lasts() {
    let lost = kube::Error::Service(Box::new(std::io::Error::other("connection reset by peer")));
    let lost = refused_write(lost);
    assert!(!is_reported(&lost, 0) && !is_reported(&lost, 2));
    assert!(is_reported(&lost, 3));
    let expected = "cannot apply Deployment office-exit: the API server did not answer: \
                    connection reset by peer";
    assert_eq!(chain(&lost), expected);
    // The other errors of a reconciliation are reported in the same way.
    assert!(is_reported(&tunnel_controller::Error::Incomplete("UID"), 3));
    // The leader writes the status. An operator that is not the leader has nothing to report.
    let refused = refused_write(kube::Error::Service(Box::new(NotLeader)));
    assert!(!is_reported(&refused, 99));
}
