//! Tests which revisions a DaemonSet has, creates and deletes.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSetSpec, DaemonSetStatus},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde_json::json;

use super::*;
use crate::ownership;

fn set(image: &str) -> DaemonSet {
    let template: PodTemplateSpec = serde_json::from_value(json!({
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"containers": [{"name": "main", "image": image, "resources": {}}]},
    }))
    .expect("a template");
    DaemonSet {
        metadata: ObjectMeta {
            name: Some("agent".to_owned()),
            namespace: Some("system".to_owned()),
            uid: Some("set-uid".to_owned()),
            annotations: Some([("kubernetes.io/change-cause".to_owned(), "why".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(DaemonSetSpec {
            template,
            selector: LabelSelector::default(),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
    let set = set(image);
    Arc::new(new_revision(&set, number))
}

fn numbers(revisions: &[Arc<ControllerRevision>]) -> Vec<i64> {
    revisions.iter().map(|revision| revision.revision).collect()
}

#[test]
fn the_data_replaces_the_whole_template_and_nothing_else() {
    let expected = json!({"spec": {"template": {
        "$patch": "replace",
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"containers": [{"name": "main", "image": "agent:1", "resources": {}}]},
    }}});
    assert_eq!(data_of(&set("agent:1")), expected);
}

#[test]
fn a_revision_is_named_labelled_and_owned_after_its_daemon_set() {
    let made = revision("agent:1", 7);
    let hash = hash_of(&made);
    assert!(!hash.is_empty());
    assert_eq!(made.name_any(), format!("agent-{hash}"));
    assert_eq!(made.namespace().as_deref(), Some("system"));
    assert_eq!(made.revision, 7);
    assert_eq!(made.labels().get("app").map(String::as_str), Some("agent"));
    let cause = made.annotations().get("kubernetes.io/change-cause");
    assert_eq!(cause.map(String::as_str), Some("why"));
    let owner = ownership::controller_of(&*made).expect("it has a controller");
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str()),
        ("DaemonSet", "set-uid")
    );
    assert_eq!(owner.block_owner_deletion, Some(true));
}

#[test]
fn a_collision_gives_the_same_template_another_name() {
    let mut collided = set("agent:1");
    collided.status = Some(DaemonSetStatus {
        collision_count: Some(1),
        ..DaemonSetStatus::default()
    });
    let renamed = new_revision(&collided, 1);
    let first = revision("agent:1", 1);
    assert_ne!(renamed.name_any(), first.name_any());
    assert_eq!(renamed.data, first.data);
}

#[test]
fn the_current_revision_is_known_by_its_data_and_outnumbers_the_old_ones() {
    let all = vec![
        revision("agent:1", 1),
        revision("agent:2", 2),
        revision("agent:3", 3),
    ];
    let back_to_first = History::new(all.clone(), &data_of(&set("agent:1")));
    assert_eq!(numbers(&back_to_first.current), [1]);
    assert_eq!(numbers(&back_to_first.old), [2, 3]);
    assert_eq!(back_to_first.number(), 4);

    let unchanged = History::new(all.clone(), &data_of(&set("agent:3")));
    assert_eq!(unchanged.number(), 3, "nothing to raise");

    let never_seen = History::new(all, &data_of(&set("agent:4")));
    assert_eq!((never_seen.kept(), never_seen.number()), (None, 4));
    assert_eq!(History::default().number(), 1);
}

#[test]
fn of_equal_revisions_the_newest_stays() {
    let twins = vec![
        revision("agent:1", 2),
        revision("agent:1", 5),
        revision("agent:1", 3),
    ];
    let history = History::new(twins, &data_of(&set("agent:1")));
    assert_eq!(history.kept().map(|kept| kept.revision), Some(5));
}

#[test]
fn the_oldest_revisions_beyond_the_limit_go_unless_pods_are_of_them() {
    let old = || {
        vec![
            revision("agent:3", 3),
            revision("agent:1", 1),
            revision("agent:4", 4),
            revision("agent:2", 2),
        ]
    };
    let mut keeps_two = set("agent:5");
    keeps_two
        .spec
        .get_or_insert_default()
        .revision_history_limit = Some(2);
    assert_eq!(numbers(&surplus(&keeps_two, old(), &[])), [1, 2]);

    let mut pod = Pod::default();
    pod.labels_mut().insert(
        HASH_LABEL.to_owned(),
        hash_of(&revision("agent:1", 1)).to_owned(),
    );
    let pods = [Arc::new(pod)];
    assert_eq!(numbers(&surplus(&keeps_two, old(), &pods)), [2, 3]);

    let silent = set("agent:5");
    assert_eq!(surplus(&silent, old(), &[]), [], "ten by default");
    let mut keeps_none = keeps_two;
    keeps_none
        .spec
        .get_or_insert_default()
        .revision_history_limit = Some(0);
    assert_eq!(numbers(&surplus(&keeps_none, old(), &pods)), [2, 3, 4]);
}
