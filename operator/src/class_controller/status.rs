//! The status of a class. Pure.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition::ROLLED_OUT;
use muxtunnel_crds::{ClassObjects, MuxClass, MuxClassStatus};

use crate::clock::Now;
use crate::conditions::{Verdict, conditions};
use crate::upgrades::plan::Plan;
use crate::watches::ObjectId;

/// Maximum number of objects in a message.
const NAMED_MAX: usize = 5;

/// The status of `class`.
pub(super) fn status(class: &MuxClass, plan: &Plan, now: Now) -> MuxClassStatus {
    let old = class.status.as_ref().map_or(&[][..], |old| &old.conditions);
    let generation = class.metadata.generation;
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    MuxClassStatus {
        observed_generation: generation,
        conditions: conditions(&[rolled_out(plan)], old, generation, &now.whole_second()),
        objects: Some(ClassObjects {
            total: number(plan.total),
            current: number(plan.current),
        }),
    }
}

/// Whether all objects of the class have its revision. The message has no counts, so that the
/// condition changes rarely.
fn rolled_out(plan: &Plan) -> Verdict {
    if !plan.failed.is_empty() {
        let names = named(&plan.failed);
        let detail = format!(
            "with the settings of the class, or the image of the operator's version, the gateways of these objects did \
             not become ready: {names}; their earlier gateways serve, and their conditions have the cause"
        );
        let code = match plan.is_paused {
            true => Code::Paused,
            false => Code::RollOutFailed,
        };
        return Verdict::no(ROLLED_OUT, code, detail);
    }
    let waits = plan.current + plan.held.len() < plan.total;
    if waits {
        return Verdict::no(ROLLED_OUT, Code::RollingOut, "");
    }
    if plan.held.is_empty() {
        return Verdict::yes(ROLLED_OUT, Code::RolledOut);
    }
    let names = named(&plan.held);
    let detail = format!(
        "these objects keep an earlier revision, because they are paused or not accepted: {names}"
    );
    Verdict::no(ROLLED_OUT, Code::RollingOut, detail)
}

/// The first of `objects`, and the number of the others.
fn named(objects: &[ObjectId]) -> String {
    let names = objects.iter().take(NAMED_MAX);
    let names: Vec<_> = names
        .map(|object| format!("{} {}/{}", object.kind, object.namespace, object.name))
        .collect();
    let names = names.join(", ");
    match objects.len().saturating_sub(NAMED_MAX) {
        0 => names,
        others => format!("{names} and {others} others"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ObjectId {
        ObjectId {
            namespace: "site".to_owned(),
            kind: "MuxTunnel".to_owned(),
            name: format!("t{number}"),
        }
    }

    #[test]
    fn the_condition_names_the_objects_that_an_administrator_has_to_repair() {
        let plan = Plan {
            total: 20,
            current: 3,
            failed: (0..7).map(id).collect(),
            is_paused: true,
            ..Plan::default()
        };
        let verdict = rolled_out(&plan);
        assert_eq!((verdict.holds, verdict.code), (Some(false), Code::Paused));
        let message = verdict.message();
        let names = "MuxTunnel site/t0, MuxTunnel site/t1, ";
        assert!(
            message.contains(names) && message.contains("t4 and 2 others"),
            "{message}"
        );
        assert!(message.ends_with(Code::Paused.remedy()), "{message}");
        let goes_on = Plan {
            is_paused: false,
            ..plan
        };
        assert_eq!(rolled_out(&goes_on).code, Code::RollOutFailed);
    }

    #[test]
    fn a_class_is_rolled_out_when_no_object_has_an_earlier_revision() {
        let plan = |total, current, held: usize| {
            let held = (0..held).map(id).collect();
            let verdict = rolled_out(&Plan {
                total,
                current,
                held,
                ..Plan::default()
            });
            (
                verdict.code,
                verdict.detail.contains("paused or not accepted"),
            )
        };
        assert_eq!(plan(0, 0, 0), (Code::RolledOut, false));
        assert_eq!(plan(5, 5, 0), (Code::RolledOut, false));
        assert_eq!(plan(5, 4, 0), (Code::RollingOut, false));
        assert_eq!(plan(5, 3, 1), (Code::RollingOut, false));
        assert_eq!(plan(5, 4, 1), (Code::RollingOut, true));
    }
}
