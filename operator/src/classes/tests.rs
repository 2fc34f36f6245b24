use futures::StreamExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::testing::tunnel::{CONTROLLER, class_json, images};

/// Classes that a test fills.
pub(crate) struct Known {
    pub(crate) classes: Classes,
    feed: Feed<MuxClass>,
    listed: usize,
}

impl Known {
    fn take(&mut self, event: Event<DynamicObject>) {
        self.classes.take(&mut self.feed, &mut self.listed, event);
    }

    /// Creates or changes a class.
    pub(crate) fn put(&mut self, class: Value) {
        self.take(Event::Apply(untyped(class)));
    }

    /// Deletes a class.
    pub(crate) fn remove(&mut self, class: Value) {
        self.take(Event::Delete(untyped(class)));
    }
}

fn untyped(mut class: Value) -> DynamicObject {
    // The server counts the versions of a spec.
    class["metadata"]["generation"] = json!(class["spec"].to_string().len());
    serde_json::from_value(class).unwrap()
}

/// Classes whose watch has listed these.
pub(crate) fn known(classes: impl IntoIterator<Item = Value>) -> Known {
    known_by(images(), classes)
}

/// Classes of an operator with these images.
pub(crate) fn known_by(images: Images, classes: impl IntoIterator<Item = Value>) -> Known {
    let mut known = of(images);
    known.take(Event::Init);
    for class in classes {
        known.take(Event::InitApply(untyped(class)));
    }
    known.take(Event::InitDone);
    known
}

fn unlisted() -> Known {
    of(images())
}

fn of(images: Images) -> Known {
    let feed = Feed::default();
    Known {
        classes: Classes::new(CONTROLLER.to_owned(), images, &feed),
        feed,
        listed: 0,
    }
}

fn class(name: &str, more: &[(&str, Value)]) -> Value {
    let mut class = class_json();
    class["metadata"]["name"] = json!(name);
    for (field, value) in more {
        class["spec"][*field] = value.clone();
    }
    class
}

fn name_of(known: &Known, asked: Option<&str>) -> Result<String, NoClass> {
    known.classes.find("site", asked).map(|class| class.name)
}

#[test]
fn no_object_has_a_class_before_the_list() {
    let mut known = unlisted();
    assert!(matches!(name_of(&known, None), Err(NoClass::NotKnown(_))));
    known.take(Event::Init);
    known.take(Event::InitApply(untyped(class_json())));
    assert!(matches!(name_of(&known, None), Err(NoClass::NotKnown(_))));
    known.take(Event::InitDone);
    assert_eq!(name_of(&known, None).unwrap(), "muxtunnel");
}

#[test]
fn a_class_that_cannot_be_decoded_is_still_of_its_operator() {
    let newer = [
        ("imagePullPolicy", json!("Sometimes")),
        ("default", json!(false)),
    ];
    let known = known([class_json(), class("newer", &newer)]);
    assert_eq!(name_of(&known, None).unwrap(), "muxtunnel");
    let Err(NoClass::Refused(code, detail)) = name_of(&known, Some("newer")) else {
        panic!("the class was decoded");
    };
    assert_eq!(code, Code::UnknownValue);
    assert!(detail.contains("Sometimes"), "{detail}");
    let mut known = known;
    let mut foreign = newer.to_vec();
    foreign.push(("controllerName", json!("example.com/operator")));
    known.put(class("newer", &foreign));
    assert!(matches!(
        name_of(&known, Some("newer")),
        Err(NoClass::Foreign)
    ));
}

#[test]
fn further_classes_are_ignored_and_what_is_known_still_changes() {
    let all = (0..CLASSES_MAX)
        .map(|number| class(&format!("c{number}"), &[("default", json!(number == 0))]));
    let mut known = known(all);
    known.put(class("further", &[("default", json!(false))]));
    assert!(matches!(
        name_of(&known, Some("further")),
        Err(NoClass::Refused(..))
    ));
    known.put(class(
        "c7",
        &[
            ("default", json!(false)),
            ("images", json!({"gateway": "g:2"})),
        ],
    ));
    let changed = known.classes.find("site", Some("c7")).unwrap();
    assert_eq!(changed.part.images.gateway, "g:2");
    known.remove(class("c8", &[]));
    known.put(class("further", &[("default", json!(false))]));
    assert_eq!(name_of(&known, Some("further")).unwrap(), "further");
}

#[tokio::test]
async fn a_changed_spec_is_told_and_a_changed_status_is_not() {
    let mut known = known([class_json()]);
    let mut changes = Box::pin(known.classes.changes());
    let mut counted = class_json();
    counted["status"] = json!({"objects": {"total": 3, "current": 1}});
    known.put(counted);
    known.put(class("muxtunnel", &[("trustDomain", json!("other.org"))]));
    known.remove(class("muxtunnel", &[]));
    let changed = Change::Class("muxtunnel".to_owned());
    assert_eq!(changes.next().await, Some(changed.clone()));
    assert_eq!(changes.next().await, Some(changed.clone()));
    for _ in 0..=CHANGES_MAX {
        known.classes.tell(changed.clone());
    }
    assert_eq!(changes.next().await, Some(Change::All), "some were missed");
}

#[test]
fn labels_of_a_namespace_decide_and_are_told_if_a_class_selects_by_them() {
    let selecting = json!({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}});
    let known = known([class("muxtunnel", &[("namespaces", selecting)])]);
    assert!(matches!(name_of(&known, None), Err(NoClass::NotKnown(_))));
    let label = |team: &str| {
        let labels = [("team".to_owned(), team.to_owned())];
        known.classes.label("site", Some(labels.into()));
    };
    let mut changed = known.classes.0.changed.subscribe();
    label("b");
    assert!(matches!(
        name_of(&known, None),
        Err(NoClass::Refused(Code::ClassNotPermitted, _))
    ));
    label("b");
    label("a");
    assert_eq!(name_of(&known, None).unwrap(), "muxtunnel");
    assert_eq!(changed.len(), 2, "an unchanged label is not told");
    assert_eq!(
        changed.try_recv().unwrap(),
        Change::Namespace("site".to_owned())
    );
}

#[test]
fn a_change_concerns_the_objects_that_it_may_give_another_class() {
    let named = Change::Class("fast".to_owned());
    assert!(named.concerns("site", Some("fast")) && named.concerns("site", None));
    assert!(!named.concerns("site", Some("slow")));
    let labelled = Change::Namespace("site".to_owned());
    assert!(labelled.concerns("site", Some("slow")) && !labelled.concerns("shops", None));
    assert!(Change::All.concerns("shops", Some("slow")));
}
