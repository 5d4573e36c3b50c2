//! How a group of writes looks in the journal: its rows, one after the other; [`super::block`] says how they are put into blocks.
//!
//! Integers are little-endian.

use super::{
    super::{super::collection::UnpublishedChange, record},
    MOST_KEPT,
};

const RECORD: u8 = 1;
const COLLECTION: u8 = 2;
const NOTE: u8 = 3;
const NO_NOTE: u8 = 4;

/// One change of a group of writes.
#[derive(Debug, PartialEq)]
pub(in crate::durable) enum Row<'a> {
    /// A write, in the form of [`record`].
    Record { revision: u64, bytes: &'a [u8] },
    /// A collection gets its number.
    Collection { number: u32, name: &'a str },
    /// A note has changed, or is gone.
    Note {
        key: &'a str,
        value: Option<&'a [u8]>,
    },
}

/// An entry while it is made. The buffer is used again for the next.
#[derive(Debug, Default)]
pub(in crate::durable) struct Entry(Vec<u8>);

impl Entry {
    /// Forgets the entry before.
    pub(in crate::durable) fn begin(&mut self) {
        self.0.clear();
        // One unusually large group would otherwise hold its memory for good.
        self.0.shrink_to(MOST_KEPT);
    }

    pub(in crate::durable) fn record(
        &mut self,
        collection: u32,
        at: i64,
        sealed: &UnpublishedChange,
    ) {
        let len = record::encoded_len(sealed);
        self.0.push(RECORD);
        self.0
            .extend_from_slice(&sealed.object.revision().to_le_bytes());
        self.0.extend_from_slice(&(len as u32).to_le_bytes());
        let from = self.0.len();
        // The length is known beforehand, so the record is encoded in place and needs no buffer of its own.
        self.0.resize(from + len, 0);
        record::encode(&mut self.0[from..], collection, at, sealed);
    }

    pub(in crate::durable) fn collection(&mut self, number: u32, name: &str) {
        self.0.push(COLLECTION);
        self.0.extend_from_slice(&number.to_le_bytes());
        self.bytes(name.as_bytes());
    }

    pub(in crate::durable) fn note(&mut self, key: &str, value: Option<&[u8]>) {
        self.0.push(if value.is_some() { NOTE } else { NO_NOTE });
        self.bytes(key.as_bytes());
        if let Some(value) = value {
            self.bytes(value);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0
            .extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    /// Returns the rows.
    pub(super) fn rows(&self) -> &[u8] {
        &self.0
    }
}

/// The rows of an entry; an `Err` ends them.
pub(in crate::durable) struct Rows<'a>(pub(super) &'a [u8]);

/// The error for rows that are malformed.
#[derive(Debug, PartialEq)]
pub(in crate::durable) struct Malformed;

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let row = self.row().ok_or(Malformed);
        if row.is_err() {
            self.0 = &[];
        }
        Some(row)
    }
}

impl<'a> Rows<'a> {
    fn row(&mut self) -> Option<Row<'a>> {
        Some(match self.take(1)?[0] {
            RECORD => Row::Record {
                revision: u64::from_le_bytes(self.take(8)?.try_into().ok()?),
                bytes: self.bytes()?,
            },
            COLLECTION => Row::Collection {
                number: u32::from_le_bytes(self.take(4)?.try_into().ok()?),
                name: self.text()?,
            },
            NOTE => Row::Note {
                key: self.text()?,
                value: Some(self.bytes()?),
            },
            NO_NOTE => Row::Note {
                key: self.text()?,
                value: None,
            },
            _ => return None,
        })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (here, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(here)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        self.take(len as usize)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn an_entry() -> Entry {
        let mut entry = Entry::default();
        entry.begin();
        entry.collection(3, "pods");
        entry.note("keys/a", Some(b"secret"));
        entry.note("keys/b", None);
        entry
    }

    #[test]
    fn an_entry_gives_back_its_rows() {
        let entry = an_entry();
        let rows: Result<Vec<_>, _> = Rows(entry.rows()).collect();
        let expected = vec![
            Row::Collection {
                number: 3,
                name: "pods",
            },
            Row::Note {
                key: "keys/a",
                value: Some(b"secret"),
            },
            Row::Note {
                key: "keys/b",
                value: None,
            },
        ];
        assert_eq!(rows, Ok(expected));
    }

    proptest! {
        #[test]
        fn rows_cut_short_are_refused_or_fewer(cut in any::<prop::sample::Index>()) {
            let entry = an_entry();
            let rows = entry.rows();
            let read: Vec<_> = Rows(&rows[..cut.index(rows.len())]).collect();
            prop_assert!(read.len() < 3 || read.last() == Some(&Err(Malformed)));
        }
    }
}
