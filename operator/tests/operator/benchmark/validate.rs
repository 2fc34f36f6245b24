//! Validation of benchmarks.

use muxtunnel_crds::Profile;
use muxtunnel_operator::benchmark_controller::validate::validate;

use crate::fixtures::benchmark::{benchmark, class};

#[test]
fn the_defaults_are_the_seeds_matrix() {
    let benchmark = validate(&benchmark("tunnel: {security: {mode: None}}"), Ok(class())).unwrap();
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
        let spec = format!("tunnel: {{security: {{mode: None}}}}\n{text}");
        let invalid = validate(&benchmark(&spec), Ok(class())).unwrap_err();
        invalid.to_string()
    };
    assert_eq!(
        refusal("durationSeconds: 5"),
        "warmUpSeconds 5 must be less than durationSeconds 5, which includes the warm-up"
    );
    let problem = "template.metadata.labels app: permitted.podMetadataKeys of MuxClass muxtunnel does not have this key";
    let refused = refusal("template: {metadata: {labels: {app: payments}}}");
    assert!(refused.starts_with(problem), "{refused}");
}
