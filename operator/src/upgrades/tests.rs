use serde_json::{Value, json};

use super::*;

const NOT_PERMITTED: Own = Own {
    names_class: false,
    has_changed: false,
    is_permitted: false,
    is_stalled: false,
};
const PERMITTED: Own = Own {
    is_permitted: true,
    ..NOT_PERMITTED
};

fn images(tag: &str) -> Images {
    Images {
        gateway: format!("gateway:{tag}"),
        wan: format!("wan:{tag}"),
        bench: format!("bench:{tag}"),
    }
}

/// A class with this gateway image.
fn class(gateway: &str, own: &Images) -> Class {
    let class = json!({
        "metadata": {"name": "muxtunnel"},
        "spec": {"controllerName": "muxtunnel.dev/operator", "images": {"gateway": gateway}},
    });
    Class::of(&serde_json::from_value(class).unwrap(), own)
}

fn revision(operator: &str, gateway: &str) -> Revision {
    Revision {
        operator: operator.to_owned(),
        ..Revision::of(&class(gateway, &images("1")), &images("1"))
    }
}

fn shown(revision: &Revision, turn: Option<Turn>, gateways: Gateways) -> Shown {
    Shown {
        revisions: vec![Some(revision.text()), Some(revision.text())],
        turn,
        gateways,
        is_paused: false,
    }
}

#[test]
fn a_new_object_and_one_without_a_record_take_the_newest_revision() {
    let present = revision("2", "b");
    for revisions in [vec![], vec![None], vec![Some("{}".to_owned())]] {
        let shown = Shown {
            revisions,
            ..Shown::default()
        };
        let choice = choose(&present, &shown, NOT_PERMITTED);
        assert_eq!((choice.basis, choice.turn), (Basis::Present, None));
    }
}

#[test]
fn an_object_waits_with_the_revision_that_its_gateways_have() {
    let (present, earlier) = (revision("1", "b"), revision("1", "a"));
    let shown = shown(&earlier, None, Gateways::Complete);
    let waits = choose(&present, &shown, NOT_PERMITTED);
    assert_eq!(waits.basis, Basis::Earlier(Box::new(earlier.clone())));
    // Its own change reaches the gateways, and does not take the class's revision.
    let changed = Own {
        has_changed: true,
        ..NOT_PERMITTED
    };
    assert_eq!(choose(&present, &shown, changed), waits);
    let taken = choose(&present, &shown, PERMITTED);
    assert_eq!(
        (taken.basis, taken.turn),
        (Basis::Present, Some(Turn::Whole))
    );
}

#[test]
fn another_version_of_the_operator_leaves_the_pods_of_an_object_until_its_turn_or_its_change() {
    let (present, earlier) = (revision("2", "b"), revision("1", "a"));
    let shown = shown(&earlier, None, Gateways::Complete);
    assert_eq!(choose(&present, &shown, NOT_PERMITTED).basis, Basis::Kept);
    let changed = Own {
        has_changed: true,
        ..NOT_PERMITTED
    };
    let choice = choose(&present, &shown, changed);
    assert_eq!((choice.basis, choice.turn), (Basis::Present, None));
}

#[test]
fn a_person_moves_an_object_to_another_class_at_once_and_a_new_default_class_takes_turns() {
    let earlier = revision("1", "a");
    let present = Revision {
        class: "canary".to_owned(),
        ..revision("1", "b")
    };
    let shown = shown(&earlier, None, Gateways::Complete);
    let named = Own {
        names_class: true,
        ..NOT_PERMITTED
    };
    let choice = choose(&present, &shown, named);
    assert_eq!((choice.basis, choice.turn), (Basis::Present, None));
    let choice = choose(&present, &shown, NOT_PERMITTED);
    assert!(matches!(choice.basis, Basis::Earlier(_)));
}

#[test]
fn a_turn_ends_when_the_gateways_are_ready() {
    let present = revision("1", "a");
    let turn = |turn, gateways, is_stalled| {
        let own = Own {
            is_stalled,
            ..NOT_PERMITTED
        };
        let choice = choose(&present, &shown(&present, turn, gateways), own);
        assert_eq!(choice.basis, Basis::Present);
        choice.turn
    };
    let (whole, broken, failed) = (Some(Turn::Whole), Some(Turn::Broken), Some(Turn::Failed));
    for begun in [whole, broken, failed] {
        assert_eq!(turn(begun, Gateways::Complete, false), None);
        assert_eq!(turn(begun, Gateways::Rolling, false), begun);
    }
    assert_eq!(turn(whole, Gateways::Stuck, false), failed);
    assert_eq!(turn(whole, Gateways::Complete, true), failed);
    assert_eq!(turn(failed, Gateways::Complete, true), failed);
    assert_eq!(turn(broken, Gateways::Stuck, false), broken);
    assert_eq!(turn(None, Gateways::Stuck, true), None);
}

#[test]
fn an_object_that_was_not_ready_has_a_turn_that_cannot_fail() {
    let (present, earlier) = (revision("1", "b"), revision("1", "a"));
    let turn = |turn, gateways, is_stalled| {
        let own = Own {
            is_stalled,
            ..PERMITTED
        };
        choose(&present, &shown(&earlier, turn, gateways), own).turn
    };
    assert_eq!(turn(None, Gateways::Stuck, false), Some(Turn::Broken));
    assert_eq!(turn(None, Gateways::Complete, true), Some(Turn::Broken));
    // An earlier turn has made it so.
    for before in [Turn::Whole, Turn::Failed] {
        let again = turn(Some(before), Gateways::Stuck, true);
        assert_eq!(again, Some(Turn::Whole));
    }
    let again = turn(Some(Turn::Broken), Gateways::Stuck, false);
    assert_eq!(again, Some(Turn::Broken));
}

/// The operator ended between the two Deployments of an object.
#[test]
fn a_turn_that_was_begun_goes_on() {
    let (present, earlier) = (revision("1", "b"), revision("1", "a"));
    let shown = Shown {
        revisions: vec![Some(present.text()), Some(earlier.text())],
        turn: Some(Turn::Whole),
        ..Shown::default()
    };
    let choice = choose(&present, &shown, NOT_PERMITTED);
    assert_eq!(
        (choice.basis, choice.turn),
        (Basis::Present, Some(Turn::Whole))
    );
}

fn deployment(status: &Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {
            "generation": 2,
            "annotations": {TURN: "Whole", REVISION: "{}"},
        },
        "spec": {"replicas": 2, "selector": {}, "template": {}},
        "status": status,
    }))
    .unwrap()
}

#[test]
fn gateways_are_complete_when_all_pods_are_new_and_ready() {
    let state = |change: Value| {
        let mut status = json!({
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
        });
        for (field, value) in change.as_object().unwrap() {
            status[field] = value.clone();
        }
        Shown::of([&deployment(&status)]).gateways
    };
    let late = json!([{"type": "Progressing", "status": "False", "reason": DEADLINE_EXCEEDED}]);
    assert_eq!(state(json!({})), Gateways::Complete);
    for (change, late_state) in [
        (json!({"observedGeneration": 1}), Gateways::Rolling),
        (json!({"replicas": 3}), Gateways::Stuck),
        (
            json!({"replicas": 3, "updatedReplicas": 1}),
            Gateways::Stuck,
        ),
        (json!({"readyReplicas": 1}), Gateways::Stuck),
        (
            json!({"replicas": null, "updatedReplicas": null, "readyReplicas": null}),
            Gateways::Stuck,
        ),
    ] {
        assert_eq!(state(change.clone()), Gateways::Rolling, "{change}");
        let mut change = change;
        change["conditions"] = late.clone();
        assert_eq!(state(change.clone()), late_state, "{change}");
    }
    // The deadline of an earlier roll-out does not count.
    assert_eq!(state(json!({"conditions": late})), Gateways::Complete);
}

#[test]
fn both_ends_are_one_object() {
    let whole = deployment(&json!({
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
    }));
    let mut rolls = deployment(&Value::Null);
    rolls.metadata.annotations = None;
    rolls.spec.as_mut().unwrap().paused = Some(true);
    let shown = Shown::of([&whole, &rolls]);
    assert_eq!(shown.gateways, Gateways::Rolling);
    assert_eq!(shown.turn, Some(Turn::Whole));
    assert_eq!(shown.revisions, [Some("{}".to_owned()), None]);
    assert!(shown.is_paused);
    assert!(!shown.is_current("{}") && Shown::default().is_current("{}"));
}

#[test]
fn a_revision_has_the_images_in_force_and_the_version_of_the_operator() {
    let [first, second] =
        ["1", "2"].map(|tag| Revision::of(&class("own:1", &images(tag)), &images(tag)));
    assert_eq!(first.part.images.gateway, "own:1");
    assert_eq!(second.part.images.wan, "wan:2");
    assert_ne!(first.operator, second.operator);
    let recorded: Revision = serde_json::from_str(&first.text()).unwrap();
    assert_eq!(recorded, first);
    // An object that waits has the images of its revision, not those of the present operator.
    let waits = class("own:2", &images("2")).with(recorded.part);
    assert_eq!(waits.part, first.part);
}
