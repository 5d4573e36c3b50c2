//! The protobuf wire format: varints, fixed widths and length-delimited fields.

use super::ProtoError;

/// Reads the fields of one message.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// The encoded value of a field.
#[derive(Clone, Copy)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Reader { rest: message }
    }

    /// Returns the next field's tag and value. Groups, which no encoder uses, are an error.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Field<'a>)>, ProtoError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| ProtoError::Truncated)?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtoError::Truncated)?;
                Field::Bytes(self.take(length)?)
            }
            // No field of Kubernetes has this type, but an unknown one must be skipped.
            5 => {
                self.take(4)?;
                Field::Fixed32
            }
            _ => return Err(ProtoError::Truncated),
        };
        Ok(Some((tag, field)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProtoError> {
        let mut value = 0u64;
        // A number of 64 bits has ten bytes at most.
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(ProtoError::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ProtoError::Truncated)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(ProtoError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| ProtoError::Truncated)
    }
}

impl<'a> Field<'a> {
    fn wire(self) -> u8 {
        match self {
            Field::Varint(_) => 0,
            Field::Fixed64(_) => 1,
            Field::Bytes(_) => 2,
            Field::Fixed32 => 5,
        }
    }

    pub(super) fn wrong(self, name: &str) -> ProtoError {
        ProtoError::WireType {
            wire: self.wire(),
            field: name.to_owned(),
        }
    }

    pub(super) fn bytes(self, name: &str) -> Result<&'a [u8], ProtoError> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            other => Err(other.wrong(name)),
        }
    }

    pub(super) fn text(self, name: &str) -> Result<String, ProtoError> {
        String::from_utf8(self.bytes(name)?.to_vec()).map_err(|_| ProtoError::Utf8)
    }

    pub(super) fn number(self, name: &str) -> Result<u64, ProtoError> {
        match self {
            Field::Varint(number) => Ok(number),
            other => Err(other.wrong(name)),
        }
    }
}

/// Writes the fields of one message.
#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// Creates a writer whose bytes begin with `prefix`, with room for `capacity` more.
    pub fn starting_with(prefix: &[u8], capacity: usize) -> Self {
        let mut out = Vec::with_capacity(prefix.len() + capacity);
        out.extend_from_slice(prefix);
        Writer { out }
    }

    /// Returns the message.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Returns the number of bytes so far.
    #[expect(
        clippy::len_without_is_empty,
        reason = "sizes are subtracted, never compared with zero"
    )]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn key(&mut self, tag: u32, wire: u64) {
        self.push(u64::from(tag) << 3 | wire);
    }

    /// Writes a number, a boolean or an enum.
    pub fn varint(&mut self, tag: u32, value: u64) {
        self.key(tag, 0);
        self.push(value);
    }

    /// Writes a number of eight bytes.
    pub fn fixed64(&mut self, tag: u32, value: u64) {
        self.key(tag, 1);
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a text, bytes or a message, after their length.
    pub fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        self.key(tag, 2);
        self.push(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }
}
