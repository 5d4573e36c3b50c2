//! The least capacity and allocatable that nodes of an instance type have reported, as a value.
//!
//! Pure: nodes and the time are arguments. The amounts depend on the image and on the volumes and kubelet settings of the
//! EC2NodeClass too, so both are part of the [`Key`].
//!
//! Invariant: the amounts of a key never grow while its nodes are seen; the key is forgotten [`KEPT`] after the last node
//! that confirmed them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mullion_api::labels;
use mullion_engine::model::{Quantity, ResourceMap};
use serde::{Deserialize, Serialize};

use crate::provisioner::risk;

/// How long a key is kept after the last node that confirmed it (AWS provider: `DiscoveredCapacityCacheTTL`).
const KEPT: SignedDuration = SignedDuration::from_hours(60 * 24);
/// A confirmation is written again only after this long, so that a fleet that starts causes few writes.
const CONFIRMED_AGAIN: SignedDuration = SignedDuration::from_hours(24);
/// The maximum number of keys: each takes about 250 bytes of the mebibyte that a ConfigMap may have.
const MOST: usize = 3_000;
/// The resources that every kubelet reports when it registers, besides [`HUGE_PAGES`]. Extended resources come later, from
/// device plugins.
const OF_MACHINE: [&str; 3] = [labels::CPU, labels::MEMORY, labels::EPHEMERAL_STORAGE];
/// The prefix of the resources that are taken out of a node's memory.
pub(crate) const HUGE_PAGES: &str = "hugepages-";
/// The separator of a key's parts in the ConfigMap; no part contains this character.
const SEPARATOR: char = '_';

/// Identifies nodes with the same capacity: instance type, image id, hash of the EC2NodeClass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Instance type.
    pub instance_type: String,
    /// Image id.
    pub image: String,
    /// `karpenter.k8s.aws/ec2nodeclass-hash`.
    pub class_hash: String,
}

impl Key {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(SEPARATOR).map(str::to_owned);
        let key = Self {
            instance_type: parts.next()?,
            image: parts.next()?,
            class_hash: parts.next()?,
        };
        parts.next().is_none().then_some(key)
    }

    fn text(&self) -> String {
        let parts = [&*self.instance_type, &self.image, &self.class_hash];
        parts.join(&SEPARATOR.to_string())
    }
}

/// The capacity of a node and the allocatable part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// `status.capacity`.
    pub capacity: ResourceMap,
    /// `status.allocatable`.
    pub allocatable: ResourceMap,
}

impl Amounts {
    /// Replaces computed amounts by those that nodes reported. The number of pods is a setting of the kubelet, so it is only
    /// ever lowered.
    pub fn correct(&self, capacity: &mut ResourceMap, allocatable: &mut ResourceMap) {
        for (seen, computed) in [(&self.capacity, capacity), (&self.allocatable, allocatable)] {
            for (name, amount) in seen {
                let slots = computed.get(name).filter(|_| name == labels::PODS);
                let amount = slots.map_or(*amount, |computed| (*computed).min(*amount));
                computed.insert(name.clone(), amount);
            }
        }
    }
}

/// A node's reported amounts, and the number of pods that its kubelet was configured for.
#[derive(Clone, Debug, Default)]
pub struct NodeReport {
    /// `status.capacity` and `status.allocatable`.
    pub shown: Amounts,
    /// The number of pods that the kubelet was configured for.
    pub pods_configured: Quantity,
}

impl NodeReport {
    /// Returns the reported amounts worth recording: the machine's resources, huge pages, and the number of pods if it is
    /// lower than configured.
    fn amounts_to_record(&self) -> Amounts {
        let of = |map: &ResourceMap| {
            let shown = map.iter().filter(|(name, amount)| {
                let is_of_machine =
                    OF_MACHINE.contains(&name.as_str()) || name.starts_with(HUGE_PAGES);
                let fewer_slots = *name == labels::PODS && **amount < self.pods_configured;
                !amount.is_zero() && (is_of_machine || fewer_slots)
            });
            shown
                .map(|(name, amount)| (name.clone(), *amount))
                .collect()
        };
        Amounts {
            capacity: of(&self.shown.capacity),
            allocatable: of(&self.shown.allocatable),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    least: Amounts,
    /// When the last node confirmed these amounts.
    seen: Timestamp,
}

impl Entry {
    /// Lowers each amount to that of the lesson. Returns whether an amount became less or is new, and whether no amount of
    /// the lesson is more than the one kept.
    fn lower_to(&mut self, lesson: &Amounts) -> (bool, bool) {
        let (mut lowered, mut confirmed) = (false, true);
        for (kept, seen) in [
            (&mut self.least.capacity, &lesson.capacity),
            (&mut self.least.allocatable, &lesson.allocatable),
        ] {
            for (name, amount) in seen {
                let kept = kept.entry(name.clone()).or_insert_with(|| {
                    lowered = true;
                    *amount
                });
                lowered |= *amount < *kept;
                confirmed &= *amount <= *kept;
                *kept = (*kept).min(*amount);
            }
        }
        (lowered, confirmed)
    }
}

/// The least reported amounts, by [`Key`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityRecords {
    entries: BTreeMap<Key, Entry>,
}

impl CapacityRecords {
    /// Records a node. Returns whether that changed what has to be written.
    pub fn record(&mut self, key: Key, sighting: &NodeReport, now: Timestamp) -> bool {
        let lesson = sighting.amounts_to_record();
        if lesson.allocatable.is_empty() {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            let entry = Entry {
                least: lesson,
                seen: now,
            };
            self.entries.insert(key, entry);
            return true;
        };
        let (lowered, confirmed) = entry.lower_to(&lesson);
        let is_old = now.duration_since(entry.seen) >= CONFIRMED_AGAIN;
        // A node with more than the records keep confirms nothing: while only such nodes appear, the
        // smaller one's key expires.
        let changed = lowered || (confirmed && is_old);
        if changed {
            entry.seen = now;
        }
        changed
    }

    /// Drops keys that no node confirmed for too long, and the oldest keys beyond the maximum. Returns whether any was
    /// dropped.
    pub fn forget_old(&mut self, now: Timestamp) -> bool {
        let before = self.entries.len();
        self.entries
            .retain(|_, entry| now.duration_since(entry.seen) < KEPT);
        if self.entries.len() > MOST {
            let mut seen: Vec<_> = self.entries.values().map(|entry| entry.seen).collect();
            seen.sort();
            // Keys with the same time as the last one kept stay too, so the result does not depend
            // on their order.
            let oldest = seen[seen.len() - MOST];
            self.entries.retain(|_, entry| entry.seen >= oldest);
        }
        self.entries.len() != before
    }

    /// Returns the amounts of a type with this image and class.
    pub fn of(&self, key: &Key) -> Option<&Amounts> {
        Some(&self.entries.get(key)?.least)
    }

    /// Returns the amounts of each type by name, for a class and its images; the least where several images are known.
    pub fn of_class(&self, images: &[String], class_hash: &str) -> BTreeMap<String, Amounts> {
        let mut found: BTreeMap<String, Entry> = BTreeMap::new();
        for (key, entry) in &self.entries {
            // A type may boot any image of the class, so what any of them was seen to leave has to
            // be enough.
            if key.class_hash != class_hash || !images.contains(&key.image) {
                continue;
            }
            let least = found
                .entry(key.instance_type.clone())
                .or_insert_with(|| entry.clone());
            least.lower_to(&entry.least);
        }
        found
            .into_iter()
            .map(|(name, entry)| (name, entry.least))
            .collect()
    }

    /// Adds the entries of another records; where both have a key, the lesser amounts and the later time remain.
    pub fn merge(&mut self, other: Self) {
        for (key, entry) in other.entries {
            let own = self.entries.entry(key).or_insert_with(|| entry.clone());
            own.lower_to(&entry.least);
            own.seen = own.seen.max(entry.seen);
        }
    }

    /// Reads the data of the ConfigMap; also returns the keys that could not be parsed.
    pub fn read(data: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let (mut records, mut unreadable) = (Self::default(), Vec::new());
        // The same ConfigMap also keeps the spot risks under a key of their own.
        for (key, text) in data.iter().filter(|(key, _)| *key != risk::KEPT_AS) {
            match (Key::parse(key), serde_json::from_str::<Entry>(text)) {
                (Some(parsed), Ok(entry)) => drop(records.entries.insert(parsed, entry)),
                _ => unreadable.push(key.clone()),
            }
        }
        (records, unreadable)
    }

    /// Returns the data of the ConfigMap.
    pub fn data(&self) -> BTreeMap<String, String> {
        let text = |(key, entry): (&Key, &Entry)| {
            // Serializing plain fields cannot fail.
            Some((key.text(), serde_json::to_string(entry).ok()?))
        };
        self.entries.iter().filter_map(text).collect()
    }

    /// Returns whether no capacity is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(instance_type: &str, image: &str) -> Key {
        Key {
            instance_type: instance_type.to_owned(),
            image: image.to_owned(),
            class_hash: "123".to_owned(),
        }
    }

    fn map(pairs: &[(&str, &str)]) -> ResourceMap {
        let parse =
            |(name, text): &(&str, &str)| ((*name).to_owned(), text.parse().expect("a quantity"));
        pairs.iter().map(parse).collect()
    }

    fn node(capacity: &str, allocatable: &str, pods: &str) -> NodeReport {
        let of = |memory| {
            map(&[
                ("cpu", "2"),
                ("memory", memory),
                ("pods", pods),
                ("nvidia.com/gpu", "1"),
            ])
        };
        NodeReport {
            shown: Amounts {
                capacity: of(capacity),
                allocatable: of(allocatable),
            },
            pods_configured: "29".parse().expect("a quantity"),
        }
    }

    fn day(number: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * number)
    }

    #[test]
    fn the_least_of_what_nodes_of_a_type_have_is_kept_by_image_and_class() {
        let (mut records, own) = (CapacityRecords::default(), key("m5.large", "ami-1"));
        assert!(records.record(own.clone(), &node("7500Mi", "6800Mi", "29"), day(0)));
        assert!(!records.record(own.clone(), &node("7600Mi", "6900Mi", "29"), day(0)));
        assert!(records.record(own.clone(), &node("7600Mi", "6700Mi", "29"), day(0)));
        let kept = records.of(&own).expect("it was seen");
        assert_eq!(kept.capacity, map(&[("cpu", "2"), ("memory", "7500Mi")]));
        assert_eq!(kept.allocatable, map(&[("cpu", "2"), ("memory", "6700Mi")]));
        assert_eq!(records.of(&key("m5.large", "ami-2")), None);
        assert_eq!(records.of(&key("m5.xlarge", "ami-1")), None);
    }

    #[test]
    fn what_was_seen_takes_the_place_of_what_was_computed_larger_or_smaller() {
        let mut records = CapacityRecords::default();
        for (name, pods) in [("m5.large", "29"), ("c5.large", "10")] {
            records.record(key(name, "ami-1"), &node("9000Mi", "4000Mi", pods), day(0));
        }
        let of_class = records.of_class(&["ami-0".to_owned(), "ami-1".to_owned()], "123");
        let corrected = |name: &str| {
            let mut capacity = map(&[("memory", "8000Mi"), ("pods", "29"), ("x.com/y", "3")]);
            let mut allocatable = map(&[("memory", "7000Mi"), ("pods", "29")]);
            of_class[name].correct(&mut capacity, &mut allocatable);
            (capacity, allocatable)
        };
        let (capacity, allocatable) = corrected("m5.large");
        let expected = [
            ("cpu", "2"),
            ("memory", "9000Mi"),
            ("pods", "29"),
            ("x.com/y", "3"),
        ];
        assert_eq!(capacity, map(&expected));
        assert_eq!(
            allocatable["memory"],
            map(&[("memory", "4000Mi")])["memory"]
        );
        assert_eq!(allocatable["pods"].value(), 29);
        assert_eq!(corrected("c5.large").1["pods"].value(), 10);
        // Slots that another setting makes fewer still stay fewer.
        let mut fewer = map(&[("pods", "5")]);
        of_class["c5.large"].correct(&mut fewer.clone(), &mut fewer);
        assert_eq!(fewer["pods"].value(), 5);
        assert!(records.of_class(&["ami-1".to_owned()], "456").is_empty());
    }

    #[test]
    fn a_type_is_forgotten_sixty_days_after_the_last_node_that_had_no_more() {
        let (mut records, own) = (CapacityRecords::default(), key("m5.large", "ami-1"));
        records.record(own.clone(), &node("7500Mi", "6800Mi", "29"), day(0));
        // A larger node says nothing of whether smaller ones are still sold.
        records.record(own.clone(), &node("7600Mi", "6900Mi", "29"), day(30));
        assert!(!records.forget_old(day(59)));
        assert!(records.record(own.clone(), &node("7500Mi", "6800Mi", "29"), day(59)));
        assert!(!records.forget_old(day(118)));
        assert!(records.forget_old(day(119)));
        assert!(records.is_empty());
    }

    #[test]
    fn a_node_that_reports_nothing_yet_teaches_nothing() {
        let mut records = CapacityRecords::default();
        assert!(!records.record(key("m5.large", "ami-1"), &NodeReport::default(), day(0)));
        assert!(
            !records.record(key("m5.large", "ami-1"), &node("0", "0", "0"), day(0))
                || !records.is_empty()
        );
        let kept = records
            .of(&key("m5.large", "ami-1"))
            .expect("its processors are known");
        assert!(!kept.allocatable.contains_key("memory"));
    }

    #[test]
    fn the_text_of_a_book_is_read_as_it_was_written_and_strangers_are_named() {
        let mut records = CapacityRecords::default();
        records.record(
            key("m5.large", "ami-1"),
            &node("7500Mi", "6800Mi", "29"),
            day(3),
        );
        let mut data = records.data();
        insta::assert_debug_snapshot!(data, @r#"
        {
            "m5.large_ami-1_123": "{\"capacity\":{\"cpu\":\"2\",\"memory\":\"7500Mi\"},\"allocatable\":{\"cpu\":\"2\",\"memory\":\"6800Mi\"},\"seen\":\"1970-01-04T00:00:00Z\"}",
        }
        "#);
        data.insert("note".to_owned(), "by hand".to_owned());
        assert_eq!(
            CapacityRecords::read(&data),
            (records.clone(), vec!["note".to_owned()])
        );
        let mut merged = CapacityRecords::default();
        merged.record(
            key("m5.large", "ami-1"),
            &node("7400Mi", "6900Mi", "29"),
            day(1),
        );
        merged.merge(records);
        let kept = merged.of(&key("m5.large", "ami-1")).expect("both knew it");
        assert_eq!(kept.capacity["memory"], map(&[("m", "7400Mi")])["m"]);
        assert_eq!(kept.allocatable["memory"], map(&[("m", "6800Mi")])["m"]);
    }

    #[test]
    fn no_more_is_remembered_than_a_config_map_holds() {
        let mut records = CapacityRecords::default();
        for number in 0..MOST + 10 {
            let hours = SignedDuration::from_hours(number as i64 / 10);
            let own = key(&format!("m5.{number}"), "ami-0123456789abcdef0");
            records.record(own, &node("7500Mi", "6800Mi", "29"), day(0) + hours);
        }
        assert!(records.forget_old(day(0)));
        let data = records.data();
        assert_eq!(data.len(), MOST);
        let bytes: usize = data.iter().map(|(key, text)| key.len() + text.len()).sum();
        assert!(bytes < 1 << 20, "{bytes}");
        assert!(!data.contains_key("m5.0_ami-0123456789abcdef0_123"));
    }
}
