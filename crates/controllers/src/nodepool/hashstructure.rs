//! Go's `mitchellh/hashstructure` (format 2), as far as Karpenter's objects need it: FNV-1 over a value's leaves, joined
//! by their places in structs, maps and sets.
//!
//! Invariant: options are Karpenter's (slices as sets, zero values ignored), and the numbers are Go's, bit for bit; the
//! order in which [`Struct::field`] is called is the order of the fields in Go. Who hashes what stands in [`super::hash`].

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The hash of a value.
pub type Hash = u64;

fn fnv1(bytes: &[u8]) -> Hash {
    bytes.iter().fold(OFFSET, |hash, byte| {
        hash.wrapping_mul(PRIME) ^ u64::from(*byte)
    })
}

/// Joins two hashes whose order matters.
fn ordered(first: Hash, second: Hash) -> Hash {
    let (first, second) = (first.to_le_bytes(), second.to_le_bytes());
    fnv1(&[first, second].concat())
}

/// Ends a join of hashes whose order does not matter, so that its parts cannot cancel out what follows.
fn finish(joined: Hash) -> Hash {
    fnv1(&joined.to_le_bytes())
}

/// Hashes a string, also of a named type.
pub fn string(text: &str) -> Hash {
    fnv1(text.as_bytes())
}

/// Hashes an `int64`, also a `time.Duration`.
pub fn int64(number: i64) -> Hash {
    fnv1(&number.to_le_bytes())
}

/// Hashes an `int32`.
pub fn int32(number: i32) -> Hash {
    fnv1(&number.to_le_bytes())
}

/// Hashes a `bool`, which counts as an `int8`.
pub fn boolean(value: bool) -> Hash {
    fnv1(&[u8::from(value)])
}

/// Hashes a map.
pub fn map(entries: impl IntoIterator<Item = (Hash, Hash)>) -> Hash {
    let entries = entries.into_iter();
    finish(entries.fold(0, |joined, (key, value)| joined ^ ordered(key, value)))
}

/// Hashes a slice, the order of whose elements does not matter.
pub fn set(elements: impl IntoIterator<Item = Hash>) -> Hash {
    elements
        .into_iter()
        .fold(0, |joined, element| joined ^ element)
}

/// A struct in the making.
#[derive(Clone, Copy, Debug)]
pub struct Struct(Hash);

impl Struct {
    /// Begins the hash of a struct of the Go type with this name.
    pub fn new(name: &str) -> Self {
        Self(string(name))
    }

    /// Adds the struct's next field; `None` is Go's zero value, which counts as no field.
    #[must_use]
    pub fn field(self, name: &str, value: Option<Hash>) -> Self {
        match value {
            // Go ends the join at every field, not once at the last.
            Some(value) => Self(finish(self.0 ^ ordered(string(name), value))),
            None => self,
        }
    }

    /// Returns the hash.
    pub fn hash(self) -> Hash {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_sets_do_not_depend_on_order_and_structs_do() {
        let entry = |key: &str, value: &str| (string(key), string(value));
        assert_eq!(
            map([entry("a", "1"), entry("b", "2")]),
            map([entry("b", "2"), entry("a", "1")])
        );
        assert_ne!(
            map([entry("a", "1"), entry("b", "2")]),
            map([entry("a", "2"), entry("b", "1")])
        );
        assert_eq!(set([1, 2, 3]), set([3, 1, 2]));
        let (a, b) = (Some(int64(1)), Some(int64(2)));
        let forth = Struct::new("T").field("A", a).field("B", b);
        let back = Struct::new("T").field("B", b).field("A", a);
        assert_ne!(forth.hash(), back.hash());
    }

    #[test]
    fn a_zero_value_is_no_field() {
        let bare = Struct::new("T");
        assert_eq!(bare.field("A", None).hash(), bare.hash());
        assert_eq!(bare.hash(), string("T"));
    }
}
