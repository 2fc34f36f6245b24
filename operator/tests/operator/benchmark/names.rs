//! Names of a benchmark's objects.

use muxtunnel_operator::benchmark_controller::names::{
    Agent, ENVIRONMENT_COMPONENTS, network, tunnel,
};

#[test]
fn the_longest_names_fit_their_limits() {
    let benchmark = "b".repeat(28);
    let last = 8 * 8 - 1;
    assert!(tunnel(&benchmark, last, "Native").len() <= 40);
    assert!(network(&benchmark, last).len() <= 40);
    for agent in Agent::ALL {
        assert!(agent.name(&benchmark, last).len() <= 63);
        assert!(ENVIRONMENT_COMPONENTS.contains(&agent.component()));
    }
}
