use mullion_engine::Plugin;
use serde_json::json;

use super::*;
use crate::scheduler::DeviceEvent;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).expect("within range")
}

fn pod(name: &str, priority: i32) -> Arc<Pod> {
    let pod = json!({ "metadata": { "name": name, "uid": name }, "spec": { "priority": priority, "containers": [] } });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn gated(name: &str) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod(name, 0));
    pod.spec.as_mut().expect("a spec").scheduling_gates = Some(vec![Default::default()]);
    Arc::new(pod)
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries
        .iter()
        .map(|entry| entry.pod.metadata.name.as_deref().unwrap_or_default())
        .collect()
}

fn fit() -> Plugins {
    Plugins::from_iter([Plugin::NodeResourcesFit])
}

#[test]
fn pods_are_handed_out_by_priority_and_then_by_arrival() {
    let mut queue = SchedulingQueue::default();
    for (name, priority, second) in [("a", 0, 1), ("b", 10, 2), ("c", 0, 0), ("d", 10, 2)] {
        queue.set(pod(name, priority), at(second));
    }
    assert_eq!(names(&queue.pop(3)), ["b", "d", "c"]);
    assert_eq!(names(&queue.pop(3)), ["a"]);
    assert!(!queue.has_work());
}

#[test]
fn a_refused_pod_waits_for_an_event_that_can_help_and_for_its_back_off() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), false, at(0));
    queue.notify(&[Event::PodAdded(pod("x", 0))], at(0));
    assert_eq!(queue.depth(), [0, 0, 1, 0]);
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(0));
    assert_eq!(queue.depth(), [0, 1, 0, 0]);
    queue.flush_backoff(at(1));
    assert_eq!(queue.depth(), [0, 1, 0, 0]);
    queue.flush_backoff(at(2));
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
}

#[test]
fn a_pod_that_was_held_keeps_its_place_and_does_not_back_off() {
    let mut queue = SchedulingQueue::default();
    for (name, second) in [("a", 0), ("b", 1)] {
        queue.set(pod(name, 0), at(second));
    }
    let devices = Plugins::from_iter([Plugin::DynamicResources]);
    let first = queue.pop(1).remove(0);
    queue.held(first, devices, PodRequirements::default(), at(1));
    assert_eq!(queue.depth(), [1, 0, 1, 0]);
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(1));
    assert_eq!(queue.depth(), [1, 0, 1, 0]);
    queue.notify(&[Event::Device(DeviceEvent::Slice)], at(1));
    assert_eq!(queue.depth(), [2, 0, 0, 0]);
    assert_eq!(names(&queue.pop(2)), ["a", "b"]);
}

#[test]
fn a_pod_refused_by_nobody_is_tried_again_without_an_event() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(
        entry,
        Plugins::default(),
        PodRequirements::default(),
        false,
        at(0),
    );
    assert!(!queue.has_work());
    queue.flush_backoff(at(2));
    assert_eq!(names(&queue.pop(5)), ["a"]);
}

#[test]
fn an_event_after_the_back_off_makes_the_pod_active_at_once() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), false, at(0));
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(2));
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
}

#[test]
fn rejections_in_a_row_back_off_one_two_four_eight_and_then_ten_seconds() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let mut waits = Vec::new();
    for now in (0..6).map(|round| at(round * 60)) {
        queue.flush_stale(now + SignedDuration::from_secs(600));
        queue.flush_backoff(now);
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, fit(), PodRequirements::default(), false, now);
        let (entry, _) = queue.entries.values().next().expect("it waits");
        waits.push(entry.backoff_ends().as_second() - now.as_second());
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn a_pod_that_backs_off_is_handed_out_when_there_is_nothing_else_to_do() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), false, at(0));
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(0));
    queue.set(pod("b", 0), at(0));
    assert_eq!(names(&queue.pop(5)), ["b"]);
    let entry = queue.pop(5).remove(0);
    queue.failed(entry, at(0));
    assert!(
        !queue.has_work(),
        "after an error the back-off is waited out"
    );
    queue.flush_backoff(at(2));
    assert_eq!(names(&queue.pop(5)), ["a"]);
}

#[test]
fn a_pod_that_nothing_woke_for_five_minutes_is_tried_again() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), false, at(0));
    queue.flush_stale(at(300));
    assert_eq!(queue.depth(), [0, 0, 1, 0]);
    queue.flush_stale(at(301));
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
}

#[test]
fn a_gated_pod_waits_until_its_last_gate_is_gone() {
    let mut queue = SchedulingQueue::default();
    queue.set(gated("a"), at(0));
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(5));
    queue.flush_stale(at(1_000));
    assert_eq!(queue.depth(), [0, 0, 0, 1]);
    queue.set(pod("a", 0), at(6));
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
}

#[test]
fn what_changes_while_a_pod_is_tried_counts_when_it_comes_back() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    queue.set(pod("b", 0), at(0));
    let mut entries = queue.pop(2);
    let mut tolerating = Pod::clone(&pod("a", 0));
    tolerating.spec.as_mut().expect("a spec").tolerations = Some(vec![Default::default()]);
    queue.set(Arc::new(tolerating), at(1));
    queue.remove(&pod("b", 0));
    let rejectors = Plugins::from_iter([Plugin::TaintToleration]);
    let (b, a) = (entries.remove(1), entries.remove(0));
    queue.refused(b, rejectors, PodRequirements::default(), false, at(1));
    queue.refused(a, rejectors, PodRequirements::default(), false, at(1));
    assert_eq!(
        queue.depth(),
        [0, 1, 0, 0],
        "a's toleration may help it, b is gone"
    );
}

#[test]
fn a_pod_that_others_are_evicted_for_is_woken_by_the_end_of_the_last_of_them() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), true, at(0));
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(5));
    queue.flush_stale(at(1_000));
    assert_eq!(
        queue.depth(),
        [0, 0, 1, 0],
        "others are still to be evicted"
    );
    queue.awaits("a", "y");
    queue.left("x");
    queue.notify(&[Event::PodDeleted(pod("x", 0))], at(6));
    assert_eq!(queue.depth(), [0, 0, 1, 0], "y is still there");
    queue.left("y");
    assert_eq!(queue.depth(), [0, 0, 1, 0]);
    queue.notify(&[Event::PodDeleted(pod("y", 0))], at(7));
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
}

#[test]
fn a_victim_makes_room_for_all_that_wait_for_it() {
    let mut queue = SchedulingQueue::default();
    for name in ["a", "b", "c"] {
        queue.set(pod(name, 0), at(0));
    }
    for entry in queue.pop(3) {
        queue.refused(entry, fit(), PodRequirements::default(), true, at(0));
    }
    for name in ["a", "b", "c"] {
        queue.awaits(name, "y");
    }
    queue.remove(&pod("c", 0));
    queue.left("y");
    queue.notify(&[Event::PodDeleted(pod("y", 0))], at(7));
    assert_eq!(queue.depth(), [2, 0, 0, 0]);
}

#[test]
fn a_pod_whose_victims_could_not_be_evicted_is_tried_again_at_once() {
    let mut queue = SchedulingQueue::default();
    queue.set(pod("a", 0), at(0));
    let entry = queue.pop(1).remove(0);
    queue.refused(entry, fit(), PodRequirements::default(), true, at(0));
    queue.activate("a");
    assert_eq!(queue.depth(), [1, 0, 0, 0]);
    queue.activate("nobody");
}

#[test]
fn a_victim_that_is_spared_lets_those_that_wait_for_it_be_tried_at_once() {
    let mut queue = SchedulingQueue::default();
    for name in ["a", "b"] {
        queue.set(pod(name, 0), at(0));
    }
    for entry in queue.pop(2) {
        queue.refused(entry, fit(), PodRequirements::default(), true, at(0));
    }
    queue.awaits("a", "x");
    queue.awaits("b", "y");
    queue.spared("x");
    queue.spared("nobody");
    assert_eq!(queue.depth(), [1, 0, 1, 0]);
    assert_eq!(
        queue.pop(2).remove(0).pod.metadata.uid.as_deref(),
        Some("a")
    );
}
