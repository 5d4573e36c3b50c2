//! The binary form of one write in the journal and in the tables: collection, time, event type and object.
//!
//! Integers are little-endian; strings are preceded by their length. A record holds everything that the index needs, so a restart parses no
//! JSON. The revision is the record's key and is not repeated; a deletion has no content, because the version before it has it.

use bytes::Bytes;

use crate::{
    collection::UnpublishedChange,
    object::{EventType, Key, Layout, Meta, Object},
};

/// The largest count of strings (labels, selectable fields) that the decoder accepts for one object.
const MOST_TEXTS: u32 = 1 << 20;

/// The error for bytes that are not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {revision} is malformed")]
pub(crate) struct Malformed {
    pub(super) revision: u64,
}

/// A decoded record.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) collection: u32,
    /// The time of the write, in seconds since 1970.
    pub(super) at: i64,
    pub(super) effect: Effect,
}

/// The effect of the write on the object.
#[derive(Debug)]
pub(super) enum Effect {
    Put(EventType, Object),
    Deleted(Key),
}

/// Returns the number of bytes that [`encode`] writes.
pub(super) fn encoded_len(sealed: &UnpublishedChange) -> usize {
    let key = 1 + 4 + 8 + 4 + sealed.object.key().as_str().len();
    if sealed.event_type == EventType::Deleted {
        return key;
    }
    let meta = sealed.object.meta();
    let labels: usize = meta.labels.iter().map(|(k, v)| 8 + k.len() + v.len()).sum();
    let fields: usize = meta.fields.iter().map(|field| 4 + field.len()).sum();
    key + 16 + 4 + meta.uid.len() + 4 + labels + 4 + fields + 4 + sealed.object.line().len()
}

/// Writes the record of a change into a buffer of exactly [`encoded_len`] bytes.
pub(super) fn encode(out: &mut [u8], collection: u32, at: i64, sealed: &UnpublishedChange) {
    let mut out = Writer(out);
    let object = &sealed.object;
    out.bytes(&[match sealed.event_type {
        EventType::Added => 1,
        EventType::Modified => 2,
        EventType::Deleted => 3,
    }]);
    out.number(collection);
    out.bytes(&at.to_le_bytes());
    out.text(object.key().as_str());
    if sealed.event_type == EventType::Deleted {
        return;
    }
    let layout = object.layout();
    for number in [
        layout.object,
        layout.body,
        layout.revision,
        layout.revision_len,
    ] {
        out.number(number);
    }
    let meta = object.meta();
    out.text(&meta.uid);
    out.number(meta.labels.len() as u32);
    for (key, value) in &meta.labels {
        out.text(key);
        out.text(value);
    }
    out.number(meta.fields.len() as u32);
    meta.fields.iter().for_each(|field| out.text(field));
    let line = object.line();
    out.number(line.len() as u32);
    out.bytes(&line);
}

/// Decodes a record.
pub(super) fn decode(revision: u64, bytes: &[u8]) -> Result<Record, Malformed> {
    read(revision, &mut Reader(bytes)).ok_or(Malformed { revision })
}

/// Returns the time of a record's write, in seconds since 1970, without decoding the rest.
pub(super) fn written_at(bytes: &[u8]) -> Option<i64> {
    let at = bytes.get(5..13)?;
    Some(i64::from_le_bytes(at.try_into().ok()?))
}

fn read(revision: u64, from: &mut Reader<'_>) -> Option<Record> {
    let kind = from.bytes(1)?[0];
    let collection = from.number()?;
    let at = i64::from_le_bytes(from.bytes(8)?.try_into().ok()?);
    let key = Key::parse(from.text()?);
    let event = match kind {
        1 => EventType::Added,
        2 => EventType::Modified,
        3 => {
            let effect = Effect::Deleted(key);
            return from.0.is_empty().then_some(Record {
                collection,
                at,
                effect,
            });
        }
        _ => return None,
    };
    let layout = Layout {
        object: from.number()?,
        body: from.number()?,
        revision: from.number()?,
        revision_len: from.number()?,
    };
    let uid = from.text()?.into();
    let labels = (0..from.count()?)
        .map(|_| Some((from.text()?.into(), from.text()?.into())))
        .collect::<Option<_>>()?;
    let fields = (0..from.count()?)
        .map(|_| Some(from.text()?.into()))
        .collect::<Option<_>>()?;
    let len = from.number()? as usize;
    let line = Bytes::copy_from_slice(from.bytes(len)?);
    let slot_end = layout.revision.checked_add(layout.revision_len)?;
    // Offsets are used to slice without further checks, so a damaged record must fail here.
    let in_order = layout.object <= layout.body
        && layout.body <= layout.revision
        && slot_end as usize + 2 <= line.len()
        && from.0.is_empty();
    if !in_order {
        return None;
    }
    let meta = Meta {
        uid,
        labels,
        fields,
    };
    let object = Object::restored(key, revision, line, layout, meta);
    Some(Record {
        collection,
        at,
        effect: Effect::Put(event, object),
    })
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }

    fn number(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.bytes(text.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (here, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(here)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn count(&mut self) -> Option<u32> {
        // A damaged count must not make the decoder run for long or reserve much.
        self.number().filter(|count| *count <= MOST_TEXTS)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = self.number()? as usize;
        std::str::from_utf8(self.bytes(len)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::Draft;

    fn sealed(event: EventType, object: &Value, fields: &[String]) -> UnpublishedChange {
        let fields = fields.iter().map(|field| field.as_str().into()).collect();
        let draft = Draft::new(event, object, fields, 7);
        let object = draft.seal(Key::new(Some("n"), "x"), 12);
        let object = match event {
            EventType::Deleted => object.deleted_at(13),
            _ => object,
        };
        UnpublishedChange {
            event_type: event,
            object: Arc::new(object),
        }
    }

    fn encoded(sealed: &UnpublishedChange) -> Vec<u8> {
        let mut bytes = vec![0; encoded_len(sealed)];
        encode(&mut bytes, 3, -5, sealed);
        bytes
    }

    proptest! {
        #[test]
        fn a_record_gives_back_the_version_that_was_written(
            labels in proptest::collection::btree_map("[a-z]{1,9}", ".{0,9}", 0..4),
            fields in proptest::collection::vec(".{0,9}", 0..4),
            data in ".{0,40}",
        ) {
            let object = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "x", "namespace": "n", "uid": "u", "labels": labels}, "data": data});
            let sealed = sealed(EventType::Modified, &object, &fields);
            let bytes = encoded(&sealed);
            prop_assert_eq!(written_at(&bytes), Some(-5));
            let record = decode(12, &bytes).unwrap();
            prop_assert_eq!((record.collection, record.at), (3, -5));
            let Effect::Put(event, read) = record.effect else { panic!("it was put") };
            prop_assert_eq!(event, EventType::Modified);
            prop_assert_eq!((read.key(), read.revision()), (sealed.object.key(), 12));
            prop_assert_eq!((read.line(), read.layout(), read.meta()), (sealed.object.line(), sealed.object.layout(), sealed.object.meta()));
        }

        #[test]
        fn a_record_cut_short_is_refused(cut in 0..1000usize) {
            let object = json!({"metadata": {"name": "x", "labels": {"a": "b"}}});
            let bytes = encoded(&sealed(EventType::Added, &object, &["f".to_owned()]));
            prop_assert!(decode(1, &bytes[..cut % bytes.len()]).is_err());
        }
    }

    #[test]
    fn a_deletion_keeps_only_its_key() {
        let deleted = sealed(
            EventType::Deleted,
            &json!({"metadata": {}, "data": "long"}),
            &[],
        );
        let bytes = encoded(&deleted);
        assert_eq!(bytes.len(), 1 + 4 + 8 + 4 + 3);
        let record = decode(13, &bytes).unwrap();
        assert!(matches!(record.effect, Effect::Deleted(key) if key.as_str() == "n/x"));
        assert!(decode(13, &[&bytes[..], &[0]].concat()).is_err());
    }
}
