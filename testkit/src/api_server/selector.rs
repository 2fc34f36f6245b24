//! Label selectors, as far as the operator uses them: `key=value` and `key in (a,b)`.

use serde_json::Value;

pub(super) struct Selector(Vec<(String, Vec<String>)>);

impl Selector {
    pub(super) fn matches(&self, labels: &Value) -> bool {
        self.0.iter().all(|(key, allowed)| {
            labels[key]
                .as_str()
                .is_some_and(|value| allowed.iter().any(|allowed| allowed == value))
        })
    }
}

pub(super) fn parse(query: &str) -> Selector {
    let text = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="))
        .map(decode)
        .unwrap_or_default();
    let mut requirements = Vec::new();
    let mut rest = text.as_str();
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
    Selector(requirements)
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
