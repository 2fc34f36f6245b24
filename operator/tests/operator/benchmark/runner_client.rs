//! What a runner is told, and by whom.

use muxtunnel_operator::benchmark_controller::runner_client::{HttpRunner, RunnerApi, RunnerError};

#[tokio::test]
async fn a_runner_is_told_nothing_while_another_operator_leads_and_is_asked_all_the_same() {
    let runner = HttpRunner::default();
    // Nobody listens there, which only shows where somebody is asked.
    let host = "127.0.0.1";
    let told = runner.finish(host, "token").await.unwrap_err();
    assert!(matches!(told, RunnerError::NotLeader(_)), "{told}");
    let asked = runner.state(host, "token").await.unwrap_err();
    assert!(!matches!(asked, RunnerError::NotLeader(_)), "{asked}");
}
