//! The readable part of a status that another version of the operator wrote.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Returns the fields of `status` that a status of type `S` can have, and a text for each other
/// field: its path and why it cannot be decoded. A newer operator may have written an enum value
/// that this version does not know.
pub fn readable<S: DeserializeOwned>(status: &Value) -> (Map<String, Value>, Vec<String>) {
    let decodes = |value: &Value| serde_path_to_error::deserialize::<_, S>(value);
    let fields = match status {
        Value::Null => return (Map::new(), Vec::new()),
        Value::Object(fields) if decodes(status).is_ok() => return (fields.clone(), Vec::new()),
        Value::Object(fields) => fields,
        _ => return (Map::new(), vec!["status is no object".to_owned()]),
    };
    let (mut readable, mut unreadable) = (Map::new(), Vec::new());
    for (name, value) in fields {
        let field = Map::from_iter([(name.clone(), value.clone())]);
        match decodes(&Value::Object(field)) {
            Ok(_) => {
                readable.insert(name.clone(), value.clone());
            }
            Err(error) => unreadable.push(format!("status.{error}")),
        }
    }
    (readable, unreadable)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::MuxTunnelStatus;

    #[test]
    fn what_another_version_wrote_hides_no_other_field() {
        let status = json!({
            "observedGeneration": 3,
            "carriers": {"connected": 2, "news": true},
            "bottleneck": {"direction": "Sideways", "reason": "CPU"},
        });
        let (readable, unreadable) = super::readable::<MuxTunnelStatus>(&status);
        assert_eq!(
            readable.keys().collect::<Vec<_>>(),
            ["carriers", "observedGeneration"]
        );
        let [why] = &unreadable[..] else {
            panic!("{unreadable:?}");
        };
        assert!(
            why.starts_with("status.bottleneck.direction: unknown variant `Sideways`"),
            "{why}"
        );
    }

    #[test]
    fn a_status_of_this_version_is_whole() {
        let status = json!({"observedGeneration": 3});
        let (readable, unreadable) = super::readable::<MuxTunnelStatus>(&status);
        assert_eq!((Value::Object(readable), unreadable.len()), (status, 0));
        let absent = super::readable::<MuxTunnelStatus>(&Value::Null);
        assert_eq!(absent, (Map::new(), Vec::new()));
    }
}
