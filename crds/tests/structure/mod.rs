//! Checks an object against the structural part of a schema, with the messages of an API server. It
//! supports only the keywords that these schemas use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::Regex;
use serde_json::Value;

/// Schemas of Kubernetes' own types, which the API server bounds in the objects that contain them.
const FOREIGN: &[&str] = &[
    "affinity",
    "dnsConfig",
    "hostAliases",
    "tolerations",
    "topologySpreadConstraints",
    "imagePullSecrets",
    "peers",
    "selector",
    "labels",
    "annotations",
    "nodeSelector",
    "requests",
    "limits",
];

/// The messages with which an API server refuses `value`. Empty if `value` matches the schema.
pub(super) fn check(schema: &Value, value: &Value) -> Vec<String> {
    let mut messages = Vec::new();
    walk("", schema, value, &mut messages);
    messages
}

fn walk(path: &str, schema: &Value, value: &Value, messages: &mut Vec<String>) {
    check_type(path, schema, value, messages);
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        messages.push(format!("{path}: Unsupported value: {value}"));
    }
    match value {
        Value::Object(_) => check_object(path, schema, value, messages),
        Value::Array(items) => check_list(path, schema, items, messages),
        Value::String(text) => check_string(path, schema, text, messages),
        Value::Number(number) => check_number(path, schema, number.as_f64().unwrap(), messages),
        _ => {}
    }
}

fn check_type(path: &str, schema: &Value, value: &Value, messages: &mut Vec<String>) {
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if let (false, Some(type_)) = (fits, schema["type"].as_str()) {
        messages.push(format!("{path} in body must be of type {type_}"));
    }
}

/// The path of the field `key` of the object at `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn check_object(path: &str, schema: &Value, value: &Value, messages: &mut Vec<String>) {
    for required in schema["required"].as_array().into_iter().flatten() {
        let required = required.as_str().unwrap();
        if value.get(required).is_none() {
            messages.push(format!("{}: Required value", join(path, required)));
        }
    }
    for (key, property) in value.as_object().unwrap() {
        let property_path = join(path, key);
        if let Some(property_schema) = schema["properties"].get(key) {
            walk(&property_path, property_schema, property, messages);
        } else if let Some(Value::Object(_)) = schema.get("additionalProperties") {
            walk(
                &property_path,
                &schema["additionalProperties"],
                property,
                messages,
            );
        } else if schema["properties"].is_object() && path != "metadata" {
            messages.push(format!("unknown field \"{property_path}\""));
        }
    }
}

fn check_list(path: &str, schema: &Value, items: &[Value], messages: &mut Vec<String>) {
    if let Some(max) = schema["maxItems"].as_u64()
        && items.len() as u64 > max
    {
        messages.push(format!(
            "{path}: Too many: {}: must have at most {max} items",
            items.len()
        ));
    }
    if let Some(min) = schema["minItems"].as_u64()
        && (items.len() as u64) < min
    {
        messages.push(format!("{path} in body should have at least {min} items"));
    }
    let key = schema["x-kubernetes-list-map-keys"][0].as_str();
    let identity = |item: &Value| match (schema["x-kubernetes-list-type"].as_str(), key) {
        (Some("map"), Some(key)) => Some(item[key].clone()),
        (Some("set"), _) => Some(item.clone()),
        _ => None,
    };
    for (index, item) in items.iter().enumerate() {
        let item_path = format!("{path}[{index}]");
        if let Some(own) = identity(item)
            && items[..index]
                .iter()
                .any(|other| identity(other).as_ref() == Some(&own))
        {
            messages.push(format!("{item_path}: Duplicate value: {own}"));
        }
        walk(&item_path, &schema["items"], item, messages);
    }
}

/// An API server reports the first broken bound of a string.
fn check_string(path: &str, schema: &Value, text: &str, messages: &mut Vec<String>) {
    let length = text.chars().count() as u64;
    let fits = |pattern| Regex::new(pattern).unwrap().is_match(text);
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        messages.push(format!(
            "{path}: Too long: may not be more than {max} bytes"
        ));
    } else if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        messages.push(format!(
            "{path} in body should be at least {min} chars long"
        ));
    } else if let Some(pattern) = schema["pattern"].as_str()
        && !fits(pattern)
    {
        messages.push(format!("{path} in body should match '{pattern}'"));
    } else if let Some(format) = schema["format"].as_str()
        && !is_of_format(format, text)
    {
        messages.push(format!("{path} in body must be of type {format}: {text:?}"));
    } else if let Some(any) = schema["anyOf"].as_array()
        && !any
            .iter()
            .any(|one| is_of_format(one["format"].as_str().unwrap(), text))
    {
        messages.push(format!(
            "\"{path}\" must validate at least one schema (anyOf)"
        ));
    }
}

fn is_of_format(format: &str, text: &str) -> bool {
    let has_length =
        |address: IpAddr, length: u8| length <= if address.is_ipv4() { 32 } else { 128 };
    match format {
        "cidr" => text.split_once('/').is_some_and(|(address, length)| {
            let parsed = address.parse().ok().zip(length.parse().ok());
            parsed.is_some_and(|(address, length)| has_length(address, length))
        }),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        _ => true,
    }
}

fn check_number(path: &str, schema: &Value, number: f64, messages: &mut Vec<String>) {
    if let Some(max) = schema["maximum"].as_f64()
        && number > max
    {
        messages.push(format!(
            "{path} in body should be less than or equal to {max}"
        ));
    }
    if let Some(min) = schema["minimum"].as_f64()
        && number < min
    {
        messages.push(format!(
            "{path} in body should be greater than or equal to {min}"
        ));
    }
}

/// Panics if a list has neither `maxItems` nor a list type, or a string has neither `maxLength` nor `enum`.
pub(super) fn assert_bounded(path: &str, schema: &Value) {
    match schema["type"].as_str() {
        Some("array") => {
            assert!(schema["maxItems"].is_u64(), "{path} has no maxItems");
            let list_type = &schema["x-kubernetes-list-type"];
            assert!(list_type.is_string(), "{path} has no list type");
            assert_bounded(&format!("{path}[]"), &schema["items"]);
        }
        Some("string") => assert!(
            schema["maxLength"].is_u64() || schema["enum"].is_array(),
            "{path} has neither maxLength nor enum"
        ),
        Some("object") => {
            for (key, property) in schema["properties"].as_object().into_iter().flatten() {
                if !FOREIGN.contains(&key.as_str()) {
                    assert_bounded(&join(path, key), property);
                }
            }
        }
        _ => {}
    }
}
