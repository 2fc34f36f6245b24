//! The code of each failure.

use kube::core::Status;
use muxtunnel_codes::Code;
use muxtunnel_operator::benchmark_controller;
use muxtunnel_operator::benchmark_controller::runner_client::RunnerError;
use muxtunnel_operator::failure::{Coded, NotLeader, code};
use muxtunnel_operator::tunnel_controller::{self, error::CertifyError};

fn answered(status: u16) -> kube::Error {
    kube::Error::Api(Status::failure("", "").with_code(status).boxed())
}

#[test]
fn each_answer_has_its_class_however_deep_it_lies() {
    for (status, class) in [
        (403, Code::ApiRefused),
        (409, Code::WriteConflict),
        (422, Code::ApiRefused),
        (429, Code::ApiUnavailable),
        (503, Code::ApiUnavailable),
    ] {
        assert_eq!(code(&answered(status)), class);
        let name = "office-exit".to_owned();
        let source = Box::new(answered(status));
        let deep = tunnel_controller::Error::from(CertifyError::Apply { name, source });
        assert_eq!(deep.code(), class);
    }
    let refused = kube::Error::Service(Box::new(NotLeader));
    let refused = tunnel_controller::Error::from(CertifyError::from(refused));
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
