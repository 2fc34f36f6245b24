//! The expressions of the policies in the form that the evaluator uses. The evaluator escapes all
//! keys as Kubernetes escapes names of fields. Kubernetes does not escape keys of labels and
//! annotations.

use kube_cel::VapExpression;
use serde_json::Value;

use super::APPLIED_HASH;

/// The operations that compare the variable `key` with a text.
const OF_KEYS: [&str; 3] = ["key == '", "key.startsWith('", "key.contains('"];

pub(super) fn expression(validation: &Value) -> VapExpression {
    let mut text = validation["expression"].as_str().unwrap().to_owned();
    for key in [
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/instance",
        APPLIED_HASH,
    ] {
        text = text.replace(&format!("'{key}'"), &format!("'{}'", escaped(key)));
    }
    for operation in OF_KEYS {
        text = with_escaped_texts(&text, operation);
    }
    VapExpression {
        expression: text,
        message: validation["message"].as_str().map(str::to_owned),
        message_expression: None,
    }
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
