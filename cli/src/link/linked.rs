//! The document of `link`.

use serde::Serialize;

use crate::object::Change;
use crate::output::{Document, Style};
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
pub(super) struct Linked {
    pub(super) exit: Object,
    pub(super) entry: Object,
    pub(super) peer: Object,
}

impl Document for Linked {
    const KIND: &'static str = "Linked";

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
