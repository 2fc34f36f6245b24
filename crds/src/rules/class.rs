//! The rules of a MuxClass.

use kube::core::Rule;

use super::rule;

/// Objects and statuses have the name of a class as a value.
pub(crate) fn class_name() -> Rule {
    rule(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "'metadata.name ' + self.metadata.name + ' must have only lower-case letters, digits and hyphens, and begin and \
         end with a letter or digit'",
    )
}

pub(crate) fn selector_of_namespaces() -> Rule {
    rule(
        "(self.from == 'Selector') == has(self.selector)",
        "self.from == 'Selector' ? 'namespaces: from Selector needs a selector' : 'namespaces: selector is for from \
         Selector, not for ' + self.from + ': remove selector'",
    )
}
