//! Field managers, and server-side apply.
//!
//! These are the rules of the real server. A field that its manager no longer applies is removed,
//! unless another manager also owns the field. An apply of another manager's field with a different
//! value is a conflict. A forced apply takes the field over. If a write without apply changes a
//! field, all other managers lose that field. Lists with keys are merged item by item. Every other
//! list is one value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// One step of a path: a field, or an item of a list with keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    /// The list's keys as JSON, as in `fieldsV1`.
    Item(String),
}

type Path = Vec<Step>;

/// Fields by manager, operation and subresource.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Managers(BTreeMap<(String, &'static str, String), BTreeSet<Path>>);

impl Managers {
    /// Merges the fields that `manager` applies into `object`, or returns the conflicting managers.
    pub(super) fn apply(
        &mut self,
        manager: &str,
        subresource: &str,
        force: bool,
        object: &mut Value,
        applied: &Value,
    ) -> Result<(), Vec<String>> {
        assert!(
            !has_empty_object(&applied["status"]),
            "the real server stores null for an empty object that had fields, and refuses null: {applied}"
        );
        let key = (manager.to_owned(), "Apply", subresource.to_owned());
        let paths = leaves(applied);
        let others = self.0.iter().filter(|(other, _)| **other != key);
        let contested: BTreeSet<&Path> = others
            .flat_map(|(_, theirs)| theirs.intersection(&paths))
            .filter(|path| !is_item(path) && at(object, path) != at(applied, path))
            .collect();
        let contested: Vec<Path> = contested.into_iter().cloned().collect();
        if !contested.is_empty() && !force {
            return Err(contested.iter().map(|path| format!("{path:?}")).collect());
        }
        for (other, theirs) in &mut self.0 {
            if *other != key {
                theirs.retain(|path| !contested.contains(path));
            }
        }
        let before = self.0.insert(key, paths.clone()).unwrap_or_default();
        for path in before.difference(&paths) {
            if !self.0.values().any(|theirs| theirs.contains(path)) {
                remove(object, path);
            }
        }
        merge(object, applied, "");
        self.0.retain(|_, theirs| !theirs.is_empty());
        Ok(())
    }

    /// Records that `manager` replaced `old` by `new` without apply.
    pub(super) fn updated(&mut self, manager: &str, subresource: &str, old: &Value, new: &Value) {
        let (had, has) = (leaves(old), leaves(new));
        let changed: BTreeSet<Path> = has
            .iter()
            .filter(|path| match at(old, path) {
                Some(before) => !is_item(path) && Some(before) != at(new, path),
                None => true,
            })
            .chain(had.difference(&has))
            .cloned()
            .collect();
        for theirs in self.0.values_mut() {
            theirs.retain(|path| !changed.contains(path));
        }
        let key = (manager.to_owned(), "Update", subresource.to_owned());
        let own = self.0.entry(key).or_default();
        own.extend(changed.into_iter().filter(|path| has.contains(path)));
        self.0.retain(|_, theirs| !theirs.is_empty());
    }

    /// The value of `metadata.managedFields`.
    pub(super) fn fields(&self) -> Value {
        let entry = |((manager, operation, subresource), paths): (
            &(String, &'static str, String),
            &BTreeSet<Path>,
        )| {
            let mut fields = json!({});
            for path in paths {
                let mut place = &mut fields;
                for step in path {
                    let key = match step {
                        Step::Field(name) => format!("f:{name}"),
                        Step::Item(keys) => format!("k:{keys}"),
                    };
                    place = &mut place[key];
                    if place.is_null() {
                        *place = json!({});
                    }
                }
            }
            let mut entry = json!({
                "manager": manager, "operation": operation,
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            });
            if !subresource.is_empty() {
                entry["subresource"] = json!(subresource);
            }
            entry
        };
        self.0.iter().map(entry).collect()
    }
}

/// The keys of an item of the list `field`; `None`: the list is one value.
fn keys(field: &str, item: &Value) -> Option<String> {
    let names: &[&str] = match field {
        "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" | "forwards" => {
            &["name"]
        }
        "ports" if item.get("containerPort").is_some() => &["containerPort", "protocol"],
        "ports" => &["port", "protocol"],
        "volumeMounts" => &["mountPath"],
        "ownerReferences" => &["uid"],
        "conditions" => &["type"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        _ => return None,
    };
    let keys: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), item[*name].clone()))
        .collect();
    Some(Value::Object(keys).to_string())
}

/// The path of every field with a value.
fn leaves(object: &Value) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    for field in [
        "metadata",
        "spec",
        "status",
        "data",
        "type",
        "automountServiceAccountToken",
    ] {
        if let Some(value) = object.get(field) {
            collect(
                value,
                field,
                &vec![Step::Field(field.to_owned())],
                &mut found,
            );
        }
    }
    let is_identity = |path: &Path| {
        let identity = [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
        ];
        matches!(&path[..], [Step::Field(first), Step::Field(second), ..]
            if first == "metadata" && identity.contains(&second.as_str()))
    };
    found.retain(|path| !is_identity(path));
    found
}

fn collect(value: &Value, field: &str, path: &Path, found: &mut BTreeSet<Path>) {
    let below = |step| [path.clone(), vec![step]].concat();
    match value {
        Value::Null => {}
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                collect(value, name, &below(Step::Field(name.clone())), found);
            }
        }
        Value::Array(items)
            if items
                .first()
                .is_some_and(|item| keys(field, item).is_some()) =>
        {
            for item in items {
                let item_itself = below(Step::Item(keys(field, item).unwrap()));
                collect(item, "", &item_itself, found);
                found.insert(item_itself);
            }
        }
        _ => {
            found.insert(path.clone());
        }
    }
}

fn is_item(path: &[Step]) -> bool {
    matches!(path.last(), Some(Step::Item(_)))
}

fn field_of(path: &[Step]) -> &str {
    match path.last() {
        Some(Step::Field(name)) => name,
        _ => "",
    }
}

fn at<'a>(object: &'a Value, path: &[Step]) -> Option<&'a Value> {
    let mut place = object;
    for (index, step) in path.iter().enumerate() {
        place = match step {
            Step::Field(name) => place.get(name)?,
            Step::Item(wanted) => {
                let field = field_of(&path[..index]);
                let is_it = |item: &&Value| keys(field, item).as_ref() == Some(wanted);
                place.as_array()?.iter().find(is_it)?
            }
        };
    }
    Some(place)
}

/// Removes a field, and its parents that become empty.
fn remove(object: &mut Value, path: &[Step]) {
    remove_below(object, path, "");
}

/// Removes the rest of a path below `field`. Returns whether the object is then empty.
fn remove_below(object: &mut Value, path: &[Step], field: &str) -> bool {
    let Some((step, rest)) = path.split_first() else {
        return true;
    };
    match step {
        Step::Field(name) => {
            let Some(fields) = object.as_object_mut() else {
                return false;
            };
            if let Some(below) = fields.get_mut(name)
                && remove_below(below, rest, name)
            {
                fields.remove(name);
            }
            fields.is_empty()
        }
        Step::Item(wanted) => {
            let Some(items) = object.as_array_mut() else {
                return false;
            };
            let is_it = |item: &Value| keys(field, item).as_ref() == Some(wanted);
            if let Some(index) = items.iter().position(is_it)
                && remove_below(&mut items[index], rest, "")
            {
                items.remove(index);
            }
            items.is_empty()
        }
    }
}

fn merge(object: &mut Value, applied: &Value, field: &str) {
    match applied {
        Value::Null => {}
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (name, value) in fields {
                if !value.is_null() {
                    merge(&mut object[name], value, name);
                }
            }
        }
        Value::Array(items)
            if items
                .first()
                .is_some_and(|item| keys(field, item).is_some()) =>
        {
            let mut old = match object.take() {
                Value::Array(old) => old,
                _ => Vec::new(),
            };
            let mut new = Vec::new();
            for item in items {
                let same = |old: &Value| keys(field, old) == keys(field, item);
                let mut merged = match old.iter().position(same) {
                    Some(index) => old.remove(index),
                    None => json!({}),
                };
                merge(&mut merged, item, "");
                new.push(merged);
            }
            new.extend(old);
            *object = Value::Array(new);
        }
        _ => *object = applied.clone(),
    }
}

/// Whether `value` contains an object without fields, apart from `value` itself.
fn has_empty_object(value: &Value) -> bool {
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    let bad = |value: &Value| is_empty(value) || has_empty_object(value);
    match value {
        Value::Object(fields) => fields.values().any(bad),
        Value::Array(items) => items.iter().any(bad),
        _ => false,
    }
}
