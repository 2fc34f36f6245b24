use super::own::{OWN_WRITE_AGE_MAX, OWN_WRITES_MAX, version};
use super::*;
use serde_json::json;

fn config_map(uid: &str, version: u64) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {
        "name": "office-exit", "namespace": "site", "uid": uid,
        "resourceVersion": version.to_string(),
        "labels": labels::child("MuxExit", "office", "exit"),
        "managedFields": [{"manager": "somebody"}],
    }}))
    .unwrap()
}

fn feed(events: impl IntoIterator<Item = Event<ConfigMap>>) -> Feed<ConfigMap> {
    let mut feed = Feed::default();
    for event in events {
        feed.take(event);
    }
    feed
}

fn listed(objects: impl IntoIterator<Item = ConfigMap>) -> Feed<ConfigMap> {
    let objects = objects.into_iter().map(Event::InitApply);
    feed(
        [Event::Init]
            .into_iter()
            .chain(objects)
            .chain([Event::InitDone]),
    )
}

fn seen(cache: &Cache<ConfigMap>) -> Option<u64> {
    let got = cache.get("site", "office-exit").unwrap();
    let listed = cache
        .children("site", ("MuxExit", "office"), &["exit"])
        .unwrap();
    assert_eq!(
        got.as_ref(),
        listed.first(),
        "both functions return the same object"
    );
    got.map(|object| version(object.as_ref()))
}

#[test]
fn nothing_is_known_before_the_first_list() {
    let feed = feed([Event::Init, Event::InitApply(config_map("a", 1))]);
    let error = feed.cache().get("site", "office-exit").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("objects of kind ConfigMap are not known yet")
    );
    assert_eq!(seen(&listed([]).cache()), None);
}

#[tokio::test(start_paused = true)]
async fn an_own_write_is_seen_until_the_watch_has_something_newer() {
    let mut feed = listed([config_map("a", 1)]);
    let cache = feed.cache();
    cache.wrote(&config_map("a", 3));
    assert_eq!(seen(&cache), Some(3));
    feed.take(Event::Apply(config_map("a", 2)));
    assert_eq!(
        seen(&cache),
        Some(3),
        "the watch delivered an older version than the own write"
    );
    feed.take(Event::Apply(config_map("a", 3)));
    assert_eq!(cache.own.lock().len(), 0);
    feed.take(Event::Delete(config_map("a", 4)));
    assert_eq!(seen(&cache), None);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_is_not_seen_again_but_its_successor_is() {
    let mut feed = listed([config_map("a", 1)]);
    let cache = feed.cache();
    cache.deleted(&config_map("a", 1));
    assert_eq!(seen(&cache), None);
    feed.take(Event::Apply(config_map("a", 2)));
    assert_eq!(seen(&cache), None, "the event is older than the deletion");
    feed.take(Event::Apply(config_map("b", 5)));
    assert_eq!(seen(&cache), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_asked_for_later_counts_more_than_an_own_write() {
    let mut feed = listed([]);
    let cache = feed.cache();
    cache.wrote(&config_map("a", 3));
    assert_eq!(seen(&cache), Some(3));
    feed.take(Event::Init);
    feed.take(Event::InitDone);
    assert_eq!(
        seen(&cache),
        Some(3),
        "the object was written in the moment in which the list was requested"
    );
    tokio::time::advance(Duration::from_millis(1)).await;
    feed.take(Event::Init);
    feed.take(Event::InitDone);
    assert_eq!(seen(&cache), None, "another client has deleted the object");
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_few_and_young() {
    let cache = listed([]).cache();
    for number in 0..=OWN_WRITES_MAX {
        let mut object = config_map("a", 3);
        object.metadata.name = Some(number.to_string());
        cache.wrote(&object);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(cache.own.lock().len(), OWN_WRITES_MAX);
    assert!(
        cache.get("site", "0").unwrap().is_none(),
        "the oldest write was dropped"
    );
    tokio::time::advance(OWN_WRITE_AGE_MAX).await;
    assert!(cache.get("site", "7").unwrap().is_none());
    cache.wrote(&config_map("a", 3));
    assert_eq!(cache.own.lock().len(), 1);
}

#[test]
fn nobody_reads_field_managers_or_the_labels_of_others() {
    let mut other = config_map("b", 2);
    other.metadata.name = Some("other".to_owned());
    other.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
    let cache = listed([config_map("a", 1), other]).cache();
    for object in cache.watched.state() {
        assert_eq!(object.metadata.managed_fields, None);
    }
    let other = cache.get("site", "other").unwrap().unwrap();
    assert!(other.labels().is_empty());
}
