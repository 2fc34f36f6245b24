//! Benchmarks: YAML -> validate -> build -> assert.

mod build;
mod names;
mod operator_key;
mod runner_client;
mod validate;

use muxtunnel_operator::benchmark_controller::build::{environment, results, runner};
use muxtunnel_operator::benchmark_controller::validate::validate;
use serde_json::{Value, json};

use crate::fixtures::benchmark::{benchmark, class, settings};

/// All objects of a benchmark that uses every feature.
pub(crate) fn objects() -> Vec<Value> {
    let spec = "
tunnel: {security: {mode: None}}
delayMilliseconds: [50, 0]
profiles: [WAN]
";
    let valid = validate(&benchmark(spec), Ok(class())).unwrap();
    let mut objects = vec![
        json!(runner::job(&valid)),
        json!(runner::secret(&valid, "token")),
        json!(runner::operator_key(&valid, "hash".to_owned())),
        json!(results::config_map(&valid, &[], None)),
    ];
    for asked in &valid.environments {
        let made = environment(&settings(), &valid, asked).unwrap();
        objects.extend(made.tunnels.iter().map(|object| json!(object)));
        objects.extend(made.services.iter().map(|object| json!(object)));
        objects.extend(made.agents.iter().map(|object| json!(object)));
    }
    objects
}
