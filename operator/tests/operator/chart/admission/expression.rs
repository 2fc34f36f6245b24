//! The expressions of the policies in the form that the evaluator uses. The evaluator has no
//! variables and no authorizer, and escapes all keys as Kubernetes escapes names of fields.
//! Kubernetes does not escape keys of labels and annotations.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use kube_cel::{CompiledVapExpression, VapError, VapEvaluator, VapExpression};
use serde_json::Value;

use super::APPLIED_HASH;

/// The operations that compare the variable `key` with a text.
const OF_KEYS: [&str; 3] = ["key == '", "key.startsWith('", "key.contains('"];

/// The question to the authorizer, and the group that stands for its answer "yes" in the tests.
const MAY_BE_PERMANENT: &str = "authorizer.group('muxtunnel.dev').resource('muxpeers')\
     .namespace(request.namespace).check('permanent').allowed()";
pub(super) const PERMANENT: &str = "may be permanent";

type Compiled = &'static [Result<CompiledVapExpression, VapError>];

/// The compiled validations or conditions (`field`) of the policy with this spec. All tests share
/// them, because the compilation takes longer than a test.
pub(super) fn compiled(evaluator: &VapEvaluator, spec: &Value, field: &str) -> Compiled {
    static KNOWN: LazyLock<Mutex<BTreeMap<String, Compiled>>> = LazyLock::new(Mutex::default);
    let list = &spec[field];
    let key = format!("{}{list}", spec["variables"]);
    KNOWN.lock().unwrap().entry(key).or_insert_with(|| {
        let list = list.as_array().unwrap().iter();
        let expressions: Vec<_> = list.map(|one| expression(spec, one)).collect();
        Vec::leak(evaluator.compile_expressions(&expressions))
    })
}

/// A validation or a condition of the policy with this spec.
fn expression(spec: &Value, validation: &Value) -> VapExpression {
    let text = |field: &str| validation[field].as_str();
    let complete = |text: &str| with_escaped_keys(&with_variables(spec, text));
    VapExpression {
        expression: complete(text("expression").unwrap()),
        message: text("message").map(str::to_owned),
        message_expression: text("messageExpression").map(complete),
    }
}

/// `expression` with the expressions of the variables in their places. A variable uses only
/// variables before it.
fn with_variables(spec: &Value, expression: &str) -> String {
    let mut text = expression.to_owned();
    let variables = spec["variables"].as_array();
    for variable in variables.into_iter().flatten().rev() {
        let [name, expression] =
            ["name", "expression"].map(|field| variable[field].as_str().unwrap());
        text = text.replace(&format!("variables.{name}"), &format!("({expression})"));
    }
    assert!(!text.contains("variables."), "{text}");
    let answer = format!("('{PERMANENT}' in request.userInfo.groups)");
    let text = text.replace(MAY_BE_PERMANENT, &answer);
    assert!(!text.contains("authorizer"), "{text}");
    text
}

fn with_escaped_keys(expression: &str) -> String {
    let mut text = expression.to_owned();
    for key in [
        "app.kubernetes.io/managed-by",
        "muxtunnel.dev/kind",
        "muxtunnel.dev/name",
        "app.kubernetes.io/name",
        "app.kubernetes.io/component",
        APPLIED_HASH,
        "muxtunnel.dev/refresh",
    ] {
        text = text.replace(&format!("'{key}'"), &format!("'{}'", escaped(key)));
    }
    for operation in OF_KEYS {
        text = with_escaped_texts(&text, operation);
    }
    text
}

/// `expression` with the texts behind `operation` as the evaluator escapes keys.
fn with_escaped_texts(expression: &str, operation: &str) -> String {
    let mut parts = expression.split(operation);
    let mut result = parts.next().unwrap().to_owned();
    for part in parts {
        let (text, rest) = part.split_once('\'').unwrap();
        result.extend([operation, &escaped(text), "'", rest]);
    }
    result
}

fn escaped(key: &str) -> String {
    key.replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}
