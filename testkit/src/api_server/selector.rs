//! The selectors that the programs use: labels `key=value` and `key in (a,b)`, fields `a.b=value`.

use serde_json::Value;

pub(super) struct Selector {
    labels: Vec<(String, Vec<String>)>,
    fields: Vec<(String, String)>,
}

impl Selector {
    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let has_label = |(key, allowed): &(String, Vec<String>)| {
            let value = labels[key].as_str();
            value.is_some_and(|value| allowed.iter().any(|allowed| allowed == value))
        };
        let has_field = |(pointer, wanted): &(String, String)| {
            object.pointer(pointer).is_some_and(|value| value == wanted)
        };
        self.labels.iter().all(has_label) && self.fields.iter().all(has_field)
    }
}

pub(super) fn parse(query: &str) -> Selector {
    let parameter = |name: &str| {
        let mut pairs = query.split('&');
        let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        value.map(decode).unwrap_or_default()
    };
    let fields = parameter("fieldSelector");
    let fields = fields.split(',').filter_map(|field| field.split_once('='));
    Selector {
        labels: parse_labels(&parameter("labelSelector")),
        fields: fields
            .map(|(path, value)| (format!("/{}", path.replace('.', "/")), value.to_owned()))
            .collect(),
    }
}

fn parse_labels(text: &str) -> Vec<(String, Vec<String>)> {
    let mut requirements = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = match (rest.find(','), rest.find('(')) {
            (Some(comma), Some(open)) if open < comma => rest.find(')').unwrap() + 1,
            (Some(comma), _) => comma,
            (None, _) => rest.len(),
        };
        let (requirement, tail) = rest.split_at(end);
        requirements.push(parse_one(requirement));
        rest = tail.strip_prefix(',').unwrap_or(tail);
    }
    requirements
}

fn parse_one(requirement: &str) -> (String, Vec<String>) {
    if let Some((key, values)) = requirement.split_once(" in ") {
        let values = values.trim_matches(['(', ')']).split(',');
        return (key.to_owned(), values.map(str::to_owned).collect());
    }
    let (key, value) = requirement.split_once('=').unwrap();
    (key.to_owned(), vec![value.to_owned()])
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = tail;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A parameter of a query.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| *key == name)
        .map(|(_, value)| decode(value))
}
