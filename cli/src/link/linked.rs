//! The document of `link`.

use serde::Serialize;

use crate::object::Change;
use crate::output::{API_VERSION, Document, Style};
use crate::table::draw;

/// One object of a link.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    pub(super) context: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) change: Change,
    /// Exit: the address of carriers. Entry: the address of clients. Peer: the public key.
    pub(super) detail: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Linked {
    api_version: &'static str,
    kind: &'static str,
    exit: Object,
    entry: Object,
    peer: Object,
}

impl Linked {
    pub(super) fn new(exit: Object, entry: Object, peer: Object) -> Self {
        Self {
            api_version: API_VERSION,
            kind: "Linked",
            exit,
            entry,
            peer,
        }
    }
}

impl Document for Linked {
    fn text(&self, style: Style) -> String {
        let row = |what: &str, object: &Object| {
            vec![
                what.to_owned(),
                object.context.clone(),
                format!("{}/{}", object.namespace, object.name),
                object.change.word().to_owned(),
                object.detail.clone(),
            ]
        };
        let rows = vec![
            row("exit", &self.exit),
            row("entry", &self.entry),
            row("peer", &self.peer),
        ];
        let table = draw(
            &["OBJECT", "CONTEXT", "NAME", "CHANGE", "ADDRESS OR KEY"],
            rows,
            style,
        );
        format!(
            "{table}\n\nClients in the cluster {} connect to {}",
            self.entry.context, self.entry.detail
        )
    }
}
