//! Roll-outs in steps: after a change of a class or of the operator, the objects of the class take
//! the new revision one after the other.
//!
//! A [`Revision`] is everything that the gateways of an object have from their class and from the
//! operator. Each Deployment records the revision of its gateways in an annotation ([`REVISION`]),
//! and, while the gateways roll, the object's turn ([`TURN`]). The Deployments therefore are the whole
//! memory of a roll-out, and another process of the operator continues it. [`plan`] decides which
//! objects take the class's revision next, and [`turns`] has their permissions. [`choose`] decides
//! which revision an object is built with. [`plan`] and [`choose`] are pure.
//!
//! An object that waits is built with the revision that its Deployments record, so its own changes
//! reach its gateways at once. There is one exception: if the revision is from another version of the
//! operator, this version cannot build it. The Deployments then keep their pod templates, and a change
//! of the object's spec also takes the class's revision.

pub mod plan;
pub mod turns;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_gateway_config::config_hash;
use serde::{Deserialize, Serialize};

use crate::class::{Class, ClassPart};
use crate::settings::Images;

/// Annotation of a Deployment: the [`Revision`] of its gateways, as JSON.
pub const REVISION: &str = "muxtunnel.dev/class-revision";
/// Annotation of a Deployment whose object rolls by a turn: a [`Turn`].
pub const TURN: &str = "muxtunnel.dev/turn";
/// The reason of a Deployment's condition Progressing after the progress deadline.
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
/// Number of digits of the hash in a version of the operator.
const HASH_DIGITS: usize = 8;

/// What gateways have from their class and from the operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// The name of the class.
    pub class: String,
    /// The version of the operator. Builds of one version differ in their default images.
    pub operator: String,
    /// The part of the class's spec.
    pub part: ClassPart,
}

impl Revision {
    /// The revision of `class`. `own`: the images of the operator's own version.
    pub fn of(class: &Class, own: &Images) -> Self {
        let Images {
            gateway,
            wan,
            bench,
        } = own;
        let mut hash = config_hash(&format!("{gateway} {wan} {bench}"));
        hash.truncate(HASH_DIGITS);
        Self {
            class: class.name.clone(),
            operator: format!("{}-{hash}", env!("CARGO_PKG_VERSION")),
            part: class.part.clone(),
        }
    }

    /// The text in the annotation. Equal revisions have equal texts.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The turn of an object that rolls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The gateways were not ready before, so a failure is not one of the roll-out.
    Broken,
    /// All gateways were ready before.
    Whole,
    /// All gateways were ready before, and were not ready within the progress deadline.
    Failed,
}

impl Turn {
    const ALL: [Self; 3] = [Self::Broken, Self::Whole, Self::Failed];

    /// The value of the annotation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "Broken",
            Self::Whole => "Whole",
            Self::Failed => "Failed",
        }
    }

    fn of(deployment: &Deployment) -> Option<Self> {
        let text = deployment.annotations().get(TURN)?;
        Self::ALL.into_iter().find(|turn| turn.as_str() == text)
    }
}

/// The state of an object's gateways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gateways {
    /// All gateways have the newest pod template and are ready.
    #[default]
    Complete,
    /// Gateways start, or end.
    Rolling,
    /// A Deployment did not become ready within its progress deadline.
    Stuck,
}

impl Gateways {
    fn of(deployment: &Deployment) -> Self {
        let Some(status) = &deployment.status else {
            return Self::Rolling;
        };
        if status.observed_generation < deployment.metadata.generation {
            return Self::Rolling;
        }
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        let number = |number: Option<i32>| number.unwrap_or(0);
        let pods = number(status.replicas);
        if number(status.updated_replicas) == pods
            && pods >= wanted.unwrap_or(1)
            && number(status.ready_replicas) >= pods
        {
            return Self::Complete;
        }
        let mut conditions = status.conditions.iter().flatten();
        let is_late = conditions.any(|condition| {
            condition.type_ == "Progressing"
                && condition.reason.as_deref() == Some(DEADLINE_EXCEEDED)
        });
        if is_late { Self::Stuck } else { Self::Rolling }
    }
}

/// What the Deployments of an object show of a roll-out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// The texts of the recorded revisions, one per Deployment.
    pub revisions: Vec<Option<String>>,
    /// The turn of the object.
    pub turn: Option<Turn>,
    /// The gateways of all Deployments.
    pub gateways: Gateways,
    /// Whether a person has paused a Deployment, which then does not roll.
    pub is_paused: bool,
}

impl Shown {
    /// The state of an object with these Deployments.
    pub fn of<'a>(deployments: impl IntoIterator<Item = &'a Deployment>) -> Self {
        let mut shown = Self::default();
        for deployment in deployments {
            let spec = deployment.spec.as_ref();
            let recorded = deployment.annotations().get(REVISION);
            shown.revisions.push(recorded.cloned());
            shown.turn = shown.turn.max(Turn::of(deployment));
            shown.gateways = shown.gateways.max(Gateways::of(deployment));
            shown.is_paused |= spec.and_then(|spec| spec.paused) == Some(true);
        }
        shown
    }

    /// Whether all Deployments have the revision with the text `present`.
    pub fn is_current(&self, present: &str) -> bool {
        let mut revisions = self.revisions.iter();
        revisions.all(|recorded| recorded.as_deref() == Some(present))
    }

    /// The recorded revision. `None` without Deployments, or if a Deployment records none.
    fn recorded(&self) -> Option<Revision> {
        let texts: Option<Vec<_>> = self.revisions.iter().map(Option::as_deref).collect();
        serde_json::from_str(texts?.first()?).ok()
    }
}

/// An object of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Whether all gateways have the class's revision.
    pub is_current: bool,
    /// The turn of the object.
    pub turn: Option<Turn>,
    /// The state of the gateways.
    pub gateways: Gateways,
    /// Whether the operator does not apply the object's spec, or a Deployment is paused.
    pub is_held: bool,
    /// Whether the object has the condition Stalled.
    pub is_stalled: bool,
}

/// What an object is built with.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Basis {
    /// The class's revision.
    #[default]
    Present,
    /// The recorded revision.
    Earlier(Box<Revision>),
    /// The class's revision, but the Deployments keep their pod templates.
    Kept,
}

/// The roll-out of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// What the object is built with.
    pub basis: Basis,
    /// The turn of the object, if the object rolls by a turn.
    pub turn: Option<Turn>,
}

/// The facts of an object that decide its roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Whether the object names its class.
    pub names_class: bool,
    /// Whether the object's spec changed since the last reconciliation.
    pub has_changed: bool,
    /// Whether the object may take the class's revision now.
    pub is_permitted: bool,
    /// Whether the object has the condition Stalled.
    pub is_stalled: bool,
}

/// What an object of the class with the revision `present` is built with.
pub fn choose(present: &Revision, shown: &Shown, own: Own) -> Choice {
    let text = present.text();
    let taken = |turn| Choice {
        basis: Basis::Present,
        turn,
    };
    let is_whole = shown.gateways == Gateways::Complete && !own.is_stalled;
    if shown.is_current(&text) {
        let is_late = shown.gateways == Gateways::Stuck || own.is_stalled;
        return taken(match shown.turn {
            _ if is_whole => None,
            Some(Turn::Whole) if is_late => Some(Turn::Failed),
            turn => turn,
        });
    }
    // The object took its turn, and not all Deployments were written.
    if shown.turn.is_some() && shown.revisions.contains(&Some(text)) {
        return taken(shown.turn);
    }
    if own.is_permitted {
        let was_whole = is_whole || shown.turn > Some(Turn::Broken);
        return taken(Some(if was_whole { Turn::Whole } else { Turn::Broken }));
    }
    let Some(recorded) = shown.recorded() else {
        return taken(None);
    };
    // A change of className is a change of the object. A change of the default class is not.
    if own.names_class && recorded.class != present.class {
        return taken(None);
    }
    let turn = shown.turn.filter(|_| !is_whole);
    let basis = match (recorded.operator == present.operator, own.has_changed) {
        (true, _) => Basis::Earlier(Box::new(recorded)),
        (false, true) => return taken(None),
        (false, false) => Basis::Kept,
    };
    Choice { basis, turn }
}

#[cfg(test)]
mod tests;
