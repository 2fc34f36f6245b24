//! The answers to requests that fail.

use http::StatusCode;
use serde_json::{Value, json};

/// Returns status and message of the refusal of a write, for the stored and the new object.
pub(super) type Judge = Box<dyn Fn(Option<&Value>, &Value) -> Option<(u16, String)> + Send>;

pub(super) fn conflict(conflicts: &[String]) -> (StatusCode, Value) {
    let (code, mut status) = refused(409, "Conflict", &conflicts.join(", "));
    let causes = conflicts
        .iter()
        .map(|conflict| json!({"reason": "FieldManagerConflict", "message": conflict}));
    status["details"] = json!({"causes": causes.collect::<Vec<_>>()});
    (code, status)
}

pub(super) fn refused(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}

/// The answer to a request that a test denies.
pub(super) fn denied(code: u16) -> (StatusCode, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    refused(code, reason, "told to refuse")
}
