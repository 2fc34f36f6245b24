//! Validation of benchmarks.

use muxtunnel_crds::Profile;
use muxtunnel_operator::benchmark_controller::validate::validate;

use crate::fixtures::benchmark::benchmark;

#[test]
fn the_defaults_are_the_seeds_matrix() {
    let benchmark = validate(&benchmark("tunnel: {carrier: {security: {mode: None}}}")).unwrap();
    assert_eq!(benchmark.matrix.cells().len(), 24);
    assert_eq!(
        (benchmark.matrix.duration_s, benchmark.matrix.warm_up_s),
        (30, 5)
    );
    let environments: Vec<_> = benchmark
        .environments
        .iter()
        .map(|environment| (environment.key.one_way_delay_ms, environment.profile))
        .collect();
    assert_eq!(
        environments,
        [
            (50, Profile::None),
            (50, Profile::Wan),
            (0, Profile::None),
            (0, Profile::Wan)
        ]
    );
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let refusal = |text: &str| {
        let spec = format!("tunnel: {{carrier: {{security: {{mode: None}}}}}}\n{text}");
        validate(&benchmark(&spec)).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("duration: 5500ms"),
        "duration 5s500ms is not a whole number of seconds"
    );
    assert_eq!(
        refusal("warmUp: 1ms"),
        "warmUp 1ms is not a whole number of seconds"
    );
}
