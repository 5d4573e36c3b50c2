//! How a group of writes looks in the journal: a head of [`HEAD`] bytes, then its rows.
//!
//! The head holds the group's number, the length of the rows and a checksum over both, the rows and the identity of the store. So an
//! entry that is torn, left over from an earlier use of the file (whose numbers are lower) or of another store is not taken for one.
//! Integers are little-endian.

use super::super::{super::collection::Sealed, record};

/// Bytes before the rows of an entry.
pub(in crate::store::durable) const HEAD: usize = 16;

const RECORD: u8 = 1;
const COLLECTION: u8 = 2;
const NOTE: u8 = 3;
const NO_NOTE: u8 = 4;

/// What a group changes.
#[derive(Debug, PartialEq)]
pub(in crate::store::durable) enum Row<'a> {
    /// A write, as [`record`] has it.
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
pub(in crate::store::durable) struct Entry(Vec<u8>);

/// A buffer that has grown beyond this is not kept.
const MOST_KEPT: usize = 1 << 20;

impl Entry {
    /// Forgets the entry before.
    pub(in crate::store::durable) fn begin(&mut self) {
        self.0.clear();
        self.0.shrink_to(MOST_KEPT);
        self.0.resize(HEAD, 0);
    }

    pub(in crate::store::durable) fn record(&mut self, collection: u32, at: i64, sealed: &Sealed) {
        let len = record::encoded_len(sealed);
        self.0.push(RECORD);
        self.0
            .extend_from_slice(&sealed.object.revision().to_le_bytes());
        self.0.extend_from_slice(&(len as u32).to_le_bytes());
        let from = self.0.len();
        self.0.resize(from + len, 0);
        record::encode(&mut self.0[from..], collection, at, sealed);
    }

    pub(in crate::store::durable) fn collection(&mut self, number: u32, name: &str) {
        self.0.push(COLLECTION);
        self.0.extend_from_slice(&number.to_le_bytes());
        self.bytes(name.as_bytes());
    }

    pub(in crate::store::durable) fn note(&mut self, key: &str, value: Option<&[u8]>) {
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

    /// The bytes to write, under a number.
    pub(super) fn sealed(&mut self, identity: u64, number: u64) -> &[u8] {
        let (head, rows) = self.0.split_at_mut(HEAD);
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..12].copy_from_slice(&(rows.len() as u32).to_le_bytes());
        let sum = checksum(identity, &head[..12], rows);
        head[12..].copy_from_slice(&sum.to_le_bytes());
        &self.0
    }
}

/// The head of an entry as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) number: u64,
    /// The length of the rows.
    pub(super) len: u64,
    bytes: [u8; HEAD],
}

impl Head {
    pub(super) fn read(bytes: [u8; HEAD]) -> Self {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[..8]);
        let mut len = [0; 4];
        len.copy_from_slice(&bytes[8..12]);
        Head {
            number: u64::from_le_bytes(number),
            len: u64::from(u32::from_le_bytes(len)),
            bytes,
        }
    }

    /// Whether these are the rows that were written with it.
    pub(super) fn fits(&self, identity: u64, rows: &[u8]) -> bool {
        checksum(identity, &self.bytes[..12], rows).to_le_bytes() == self.bytes[12..]
    }
}

fn checksum(identity: u64, head: &[u8], rows: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&identity.to_le_bytes());
    sum.update(head);
    sum.update(rows);
    sum.finalize()
}

/// The rows of an entry; an `Err` ends them.
pub(in crate::store::durable) struct Rows<'a>(pub(super) &'a [u8]);

/// Rows that nobody has written so.
#[derive(Debug, PartialEq)]
pub(in crate::store::durable) struct Malformed;

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

    fn an_entry(number: u64) -> Vec<u8> {
        let mut entry = Entry::default();
        entry.begin();
        entry.collection(3, "pods");
        entry.note("keys/a", Some(b"secret"));
        entry.note("keys/b", None);
        entry.sealed(7, number).to_vec()
    }

    fn is_whole(identity: u64, bytes: &[u8]) -> bool {
        let head = Head::read(bytes[..HEAD].try_into().expect("a head"));
        let rows = bytes.get(HEAD..HEAD + head.len as usize);
        rows.is_some_and(|rows| head.fits(identity, rows))
    }

    #[test]
    fn an_entry_gives_back_its_rows() {
        let bytes = an_entry(9);
        let rows: Result<Vec<_>, _> = Rows(&bytes[HEAD..]).collect();
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
        assert!(is_whole(7, &bytes) && !is_whole(8, &bytes));
        assert!(!is_whole(7, &[0; 64]), "nothing is no entry");
    }

    proptest! {
        #[test]
        fn a_changed_entry_is_none(at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = an_entry(9);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(!is_whole(7, &bytes));
        }

        #[test]
        fn rows_cut_short_are_refused_or_fewer(cut in any::<prop::sample::Index>()) {
            let bytes = an_entry(9);
            let rows = &bytes[HEAD..];
            let read: Vec<_> = Rows(&rows[..cut.index(rows.len())]).collect();
            prop_assert!(read.len() < 3 || read.last() == Some(&Err(Malformed)));
        }
    }
}
