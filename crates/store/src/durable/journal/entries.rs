//! Reading a file of the journal: its entries, and whether what follows them is what the journal's writer leaves there.

use std::path::Path;

use redb::StorageBackend;

use super::{
    super::error::{StoreError, file_error},
    block::{self, BLOCK, Block, Head},
    entry::Rows,
    segment::{FIRST, Segment},
};

/// The number of bytes that are read at once while scanning.
const PIECE: usize = 64 << 10;

/// Reads entries from the beginning of a file on, as long as each is whole and its number is one more than the last.
pub(super) struct Entries<'a> {
    segment: &'a Segment,
    identity: u64,
    len: u64,
    at: u64,
    last: Option<u64>,
    blocks: Vec<u8>,
    rows: Vec<u8>,
}

impl<'a> Entries<'a> {
    pub(super) fn of(segment: &'a Segment, identity: u64) -> Result<Self, StoreError> {
        let len = segment.backend.len();
        Ok(Entries {
            segment,
            identity,
            len: len.map_err(|error| file_error(&segment.path, error))?,
            at: FIRST,
            last: None,
            blocks: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// Returns the number of the last entry that was acknowledged when the file was marked last.
    ///
    /// # Errors
    /// The mark is not there, or is another store's.
    pub(super) fn mark(&self) -> Result<u64, StoreError> {
        if self.len < FIRST {
            return Err(self.damaged("it is cut short"));
        }
        let mut bytes = [0; BLOCK];
        self.read(0, &mut bytes)?;
        match block::read(self.identity, &bytes) {
            Block::Mark(number) => Ok(number),
            _ if block::is_mark_of_another(self.identity, &bytes) => {
                Err(self.damaged("it belongs to another cluster"))
            }
            _ => Err(self.not_as_written(0)),
        }
    }

    /// Returns the next entry's number and rows; none where the entries end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Rows<'_>)>, StoreError> {
        let Some(head) = self.head()? else {
            return Ok(None);
        };
        // Behind the last entry there may be older ones from an earlier use of the file.
        let follows = head.number > 0 && self.last.is_none_or(|last| head.number == last + 1);
        let bytes = head.entry_bytes();
        if !follows || bytes > self.len - self.at {
            return Ok(None);
        }
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.resize(bytes as usize, 0);
        let read = self.read(self.at, &mut blocks);
        self.blocks = blocks;
        read?;
        self.rows.clear();
        for (index, bytes) in (0..).zip(self.blocks.as_chunks().0) {
            match block::read(self.identity, bytes) {
                // The attempt must agree as well: a refused attempt may have left some of its blocks.
                Block::Part(part, content) if part == Head { index, ..head } => {
                    self.rows.extend_from_slice(content);
                }
                _ => return Ok(None),
            }
        }
        self.rows.truncate(head.len as usize);
        self.at += bytes;
        self.last = Some(head.number);
        Ok(Some((head.number, Rows(&self.rows))))
    }

    /// Returns the head of the entry that begins here, if one does.
    fn head(&self) -> Result<Option<Head>, StoreError> {
        if self.len.saturating_sub(self.at) < BLOCK as u64 {
            return Ok(None);
        }
        let mut bytes = [0; BLOCK];
        self.read(self.at, &mut bytes)?;
        Ok(match block::read(self.identity, &bytes) {
            Block::Part(head, _) if head.index == 0 => Some(head),
            _ => None,
        })
    }

    /// Checks that the entries end here because the next one was torn, or never made, where `last` is the last of all entries.
    ///
    /// # Errors
    /// The file was cut short, or something behind the entries is not what was written, or a later entry is there.
    pub(super) fn check_rest(&self, last: u64) -> Result<(), StoreError> {
        let left = self.len.saturating_sub(self.at);
        let torn = self.head()?.filter(|head| head.number == last + 1);
        // A torn entry fits into the file all the same.
        let needed = torn.map_or(0, |head| head.entry_bytes()) + BLOCK as u64;
        if needed > left {
            return Err(self.damaged("it is cut short"));
        }
        let mut at = self.at;
        let mut piece = vec![0; PIECE];
        while at < self.len {
            let bytes = &mut piece[..(self.len - at).min(PIECE as u64) as usize];
            self.read(at, bytes)?;
            for block in bytes.as_chunks().0 {
                match block::read(self.identity, block) {
                    // Entries are written one after the other, so a crash can tear only the last one.
                    Block::Part(head, _) if head.number > last + 1 => {
                        let why = format!(
                            "entry {} cannot be read, and later ones are there",
                            last + 1
                        );
                        return Err(self.damaged(&why));
                    }
                    Block::Zeros | Block::Part(..) => {}
                    Block::Mark(_) | Block::Broken => return Err(self.not_as_written(at)),
                }
                at += BLOCK as u64;
            }
            if bytes.len() < BLOCK {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let read = self.segment.backend.read(at, out);
        read.map_err(|error| file_error(&self.segment.path, error))
    }

    fn not_as_written(&self, at: u64) -> StoreError {
        let end = at + BLOCK as u64 - 1;
        self.damaged(&format!("its bytes {at} to {end} are not what was written"))
    }

    fn damaged(&self, why: &str) -> StoreError {
        damaged(&self.segment.path, why)
    }
}

pub(super) fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redb::backends::InMemoryBackend;

    use super::{super::super::backend::Backend, *};

    const IDENTITY: u64 = 7;

    /// Returns a file that holds these pieces, each with the block at which it begins.
    fn file(pieces: &[(usize, &[u8])]) -> Segment {
        let backend = Backend::new(Arc::new(InMemoryBackend::new()));
        backend.set_len(64 * FIRST).expect("there is room");
        let mark = block::mark(IDENTITY, 0);
        for (block, bytes) in [(0, &mark[..])].iter().chain(pieces) {
            let at = (block * BLOCK) as u64;
            backend.write(at, bytes).expect("there is room");
        }
        Segment::found(backend, "journal.0".into())
    }

    fn entry(number: u64, attempt: u32, rows: usize) -> Vec<u8> {
        let mut blocks = Vec::new();
        block::write_entry(&mut blocks, IDENTITY, number, attempt, &vec![4; rows]);
        blocks
    }

    /// Returns the numbers of the entries that can be read, and whether what follows is as it should be.
    fn read(segment: &Segment) -> (Vec<u64>, Result<(), String>) {
        let mut entries = Entries::of(segment, IDENTITY).expect("readable");
        let mut numbers = Vec::new();
        while let Some((number, _)) = entries.next().expect("readable") {
            numbers.push(number);
        }
        let last = numbers.last().copied().unwrap_or(0);
        let rest = entries.check_rest(last);
        (numbers, rest.map_err(|error| error.to_string()))
    }

    #[test]
    fn an_entry_is_not_put_together_from_two_attempts_to_write_it() {
        let (refused, torn) = (entry(2, 2, 900), entry(2, 3, 900));
        assert_eq!(refused.len(), 2 * BLOCK);
        let first = entry(1, 1, 10);
        let mixed = file(&[(1, &first), (2, &refused), (2, &torn[..BLOCK])]);
        assert_eq!(read(&mixed), (vec![1], Ok(())));
        let whole = file(&[(1, &first), (2, &refused), (2, &torn)]);
        assert_eq!(read(&whole), (vec![1, 2], Ok(())));
    }

    #[test]
    fn what_an_earlier_use_of_the_file_has_left_is_no_entry_and_no_damage() {
        let left: Vec<u8> = (1..6).flat_map(|number| entry(number, 1, 600)).collect();
        let again = file(&[(1, &left), (1, &entry(6, 1, 100))]);
        // Of the entry that it was written over a part is left.
        assert_eq!(read(&again), (vec![6], Ok(())));
        let later = file(&[(1, &entry(6, 1, 100)), (4, &entry(8, 1, 100))]);
        let why = "journal.0 is damaged: entry 7 cannot be read, and later ones are there";
        assert_eq!(read(&later), (vec![6], Err(why.to_owned())));
    }

    #[test]
    fn a_torn_entry_is_dropped_whichever_of_its_blocks_arrived() {
        let (first, torn) = (entry(1, 1, 10), entry(2, 2, 1400));
        let blocks: Vec<_> = torn.chunks(BLOCK).collect();
        assert_eq!(blocks.len(), 3);
        for arrived in 0..7 {
            let mut pieces = vec![(1, &*first)];
            let those = (0..3).filter(|block| arrived >> block & 1 == 1);
            pieces.extend(those.map(|block| (2 + block, blocks[block])));
            assert_eq!(read(&file(&pieces)), (vec![1], Ok(())), "{arrived:b}");
        }
    }
}
