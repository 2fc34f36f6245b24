//! The stored objects. Indexes replace searches through all objects, so a server with thousands of
//! objects answers quickly.

use std::collections::btree_map::{BTreeMap, Iter};
use std::collections::btree_set::BTreeSet;

use serde_json::Value;

use super::world::Stored;

/// What an index finds objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Address,
    Owner,
    Uid,
}

/// Objects by their key.
#[derive(Default)]
pub(super) struct Objects {
    by_key: BTreeMap<String, Stored>,
    index: BTreeSet<(By, String, String)>,
}

impl Objects {
    pub(super) fn get(&self, key: &str) -> Option<&Stored> {
        self.by_key.get(key)
    }

    pub(super) fn iter(&self) -> Iter<'_, String, Stored> {
        self.by_key.iter()
    }

    pub(super) fn insert(&mut self, key: &str, stored: Stored) -> Option<Stored> {
        let old = self.remove(key);
        let terms = terms(&stored.object).into_iter();
        let terms = terms.map(|(by, value)| (by, value, key.to_owned()));
        self.index.extend(terms);
        self.by_key.insert(key.to_owned(), stored);
        old
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Stored> {
        let old = self.by_key.remove(key)?;
        for (by, value) in terms(&old.object) {
            self.index.remove(&(by, value, key.to_owned()));
        }
        Some(old)
    }

    /// The objects of a resource, such as `pods`.
    pub(super) fn of<'a>(
        &'a self,
        resource: &str,
    ) -> impl Iterator<Item = (&'a String, &'a Stored)> + use<'a> {
        let first = format!("{resource}/");
        let objects = self.by_key.range(first.clone()..);
        objects.take_while(move |(key, _)| key.starts_with(&first))
    }

    /// The keys of the objects with an owner with this UID.
    pub(super) fn owned_by(&self, uid: &str) -> Vec<String> {
        self.found(By::Owner, uid).cloned().collect()
    }

    /// The pod with this IP address.
    pub(super) fn at_address(&self, address: &str) -> Option<&Stored> {
        let key = self.found(By::Address, address).next()?;
        self.by_key.get(key)
    }

    /// Whether an object has this UID.
    pub(super) fn has_uid(&self, uid: &str) -> bool {
        self.found(By::Uid, uid).next().is_some()
    }

    fn found<'a>(&'a self, by: By, value: &'a str) -> impl Iterator<Item = &'a String> {
        let first = (by, value.to_owned(), String::new());
        let found = self.index.range(first..);
        let found = found.take_while(move |(of, own, _)| *of == by && own == value);
        found.map(|(_, _, key)| key)
    }
}

fn terms(object: &Value) -> Vec<(By, String)> {
    let metadata = &object["metadata"];
    let owners = metadata["ownerReferences"].as_array();
    let owners = owners.into_iter().flatten();
    let owners = owners.map(|owner| (By::Owner, &owner["uid"]));
    let own = [
        (By::Address, &object["status"]["podIP"]),
        (By::Uid, &metadata["uid"]),
    ];
    let terms = own.into_iter().chain(owners);
    terms
        .filter_map(|(by, value)| Some((by, value.as_str()?.to_owned())))
        .collect()
}
