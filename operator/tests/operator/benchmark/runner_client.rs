//! The requests to a runner, and who may send them.

use muxtunnel_operator::benchmark_controller::runner_client::{
    Ask, HttpRunner, RunnerApi, RunnerError,
};
use muxtunnel_operator::leader::Leadership;

#[tokio::test]
async fn a_runner_is_told_nothing_while_another_operator_leads_and_is_asked_all_the_same() {
    let runner = HttpRunner::new(Leadership::default());
    // No process listens on this host, so a connection error shows that a request was sent.
    let host = "127.0.0.1";
    let told = runner.ask(host, "token", Ask::Finish).await.unwrap_err();
    assert!(matches!(told, RunnerError::NotLeader(_)), "{told}");
    let asked = runner.ask(host, "token", Ask::State).await.unwrap_err();
    assert!(!matches!(asked, RunnerError::NotLeader(_)), "{asked}");
}
