//! The blocks that the journal's files are made of: each says which part of which entry it holds, and has a checksum.
//!
//! A block is one sector of the disk, so a power cut leaves it as it was before or as it was written, never a mixture. What is neither
//! zeros nor whole was therefore changed after it was written, wherever it is: a torn entry is told from a damaged one, and a place that
//! nobody has written to from one that has lost its content.
//!
//! ```text
//! 0         4         8        12        16        24                      512
//! | checksum | attempt |  index  |  length |  number | content, then zeros |
//! ```
//!
//! The checksum is over the identity of the store and everything behind it. Integers are little-endian.

/// The bytes of a block.
pub(super) const BLOCK: usize = 512;
/// The bytes before a block's content.
const HEAD: usize = 24;
/// The most bytes of content.
const CONTENT: usize = BLOCK - HEAD;
/// The index of a block that holds the file's mark instead of a part of an entry.
const MARK: u32 = u32::MAX;
/// The first bytes of a mark's content; the identity of the store follows.
const MARK_TEXT: &[u8] = b"mullion journal\n";

/// The part of an entry that a block holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Head {
    /// The entry's number.
    pub(super) number: u64,
    /// Which attempt to write it: one that the disk refused is followed by another with the same number.
    pub(super) attempt: u32,
    /// The place of the block among those of its entry.
    pub(super) index: u32,
    /// The bytes of all the entry's rows.
    pub(super) len: u32,
}

/// The content found at the place of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Block<'a> {
    /// Nobody has written there.
    Zeros,
    /// A part of an entry, and what follows the head.
    Part(Head, &'a [u8]),
    /// A mark: the entry of this number, and all before it, were acknowledged.
    Mark(u64),
    /// Bytes that are not a valid block.
    Broken,
}

impl Head {
    /// Returns the number of bytes that all blocks of this block's entry take.
    pub(super) fn entry_bytes(&self) -> u64 {
        // An entry without rows is still an entry.
        u64::from(self.len).div_ceil(CONTENT as u64).max(1) * BLOCK as u64
    }
}

/// Replaces `out` with the blocks of an entry.
pub(super) fn write_entry(
    out: &mut Vec<u8>,
    identity: u64,
    number: u64,
    attempt: u32,
    rows: &[u8],
) {
    let mut head = Head {
        number,
        attempt,
        index: 0,
        // An entry is far below 4 GiB: a group ends at 4 MiB, an object at a few.
        len: rows.len() as u32,
    };
    out.clear();
    out.reserve(head.entry_bytes() as usize);
    let mut rest = rows;
    loop {
        let (content, behind) = rest.split_at(rest.len().min(CONTENT));
        out.extend_from_slice(&sealed(identity, head, content));
        (head.index, rest) = (head.index + 1, behind);
        if rest.is_empty() {
            return;
        }
    }
}

/// Returns the mark that entries up to a number were acknowledged.
pub(super) fn mark(identity: u64, number: u64) -> [u8; BLOCK] {
    let head = Head {
        number,
        attempt: 0,
        index: MARK,
        len: 0,
    };
    let content = [MARK_TEXT, &identity.to_le_bytes()].concat();
    sealed(identity, head, &content)
}

/// Reads the block of a store.
pub(super) fn read(identity: u64, block: &[u8; BLOCK]) -> Block<'_> {
    // Files are filled with zeros before entries are written, so zeros are valid and mean that nothing is
    // there.
    if *block == [0; BLOCK] {
        return Block::Zeros;
    }
    if checksum(identity, block).to_le_bytes() != block[..4] {
        return Block::Broken;
    }
    let head = Head {
        number: u64::from_le_bytes(bytes_at(block, 16)),
        attempt: u32::from_le_bytes(bytes_at(block, 4)),
        index: u32::from_le_bytes(bytes_at(block, 8)),
        len: u32::from_le_bytes(bytes_at(block, 12)),
    };
    match head.index {
        MARK => Block::Mark(head.number),
        _ => Block::Part(head, &block[HEAD..]),
    }
}

/// Returns whether a block is the mark of a file of another store.
pub(super) fn is_mark_of_another(identity: u64, block: &[u8; BLOCK]) -> bool {
    let other = u64::from_le_bytes(bytes_at(block, HEAD + MARK_TEXT.len()));
    other != identity && matches!(read(other, block), Block::Mark(_))
}

fn sealed(identity: u64, head: Head, content: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[4..8].copy_from_slice(&head.attempt.to_le_bytes());
    block[8..12].copy_from_slice(&head.index.to_le_bytes());
    block[12..16].copy_from_slice(&head.len.to_le_bytes());
    block[16..HEAD].copy_from_slice(&head.number.to_le_bytes());
    block[HEAD..HEAD + content.len()].copy_from_slice(content);
    let sum = checksum(identity, &block);
    block[..4].copy_from_slice(&sum.to_le_bytes());
    block
}

fn checksum(identity: u64, block: &[u8; BLOCK]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    // With the identity, blocks of another store in a copied or reused file are not taken for this store's.
    sum.update(&identity.to_le_bytes());
    sum.update(&block[4..]);
    sum.finalize()
}

fn bytes_at<const N: usize>(block: &[u8; BLOCK], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(rows: &[u8]) -> Vec<[u8; BLOCK]> {
        let mut out = Vec::new();
        write_entry(&mut out, 7, 9, 2, rows);
        let (blocks, rest) = out.as_chunks::<BLOCK>();
        assert!(rest.is_empty());
        blocks.to_vec()
    }

    #[test]
    fn blocks_give_back_the_rows_of_their_entry() {
        for len in [0, 1, CONTENT, CONTENT + 1, 3 * CONTENT - 1] {
            let rows: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut found = Vec::new();
            for (index, block) in blocks(&rows).iter().enumerate() {
                let Block::Part(head, content) = read(7, block) else {
                    panic!("it is whole");
                };
                let (index, len) = (index as u32, len as u32);
                assert_eq!(
                    head,
                    Head {
                        number: 9,
                        attempt: 2,
                        index,
                        len
                    }
                );
                assert_eq!(head.entry_bytes() as usize, blocks(&rows).len() * BLOCK);
                found.extend_from_slice(content);
            }
            assert!(found.starts_with(&rows) && found[len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_block_with_one_bit_changed_is_broken() {
        for block in [blocks(b"some rows")[0], mark(7, 9), [0; BLOCK]] {
            for bit in 0..BLOCK * 8 {
                let mut changed = block;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(7, &changed), Block::Broken, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_mark_of_another_store_is_told_from_a_broken_one() {
        assert_eq!(read(7, &mark(7, 9)), Block::Mark(9));
        assert_eq!(read(8, &mark(7, 9)), Block::Broken);
        assert!(is_mark_of_another(8, &mark(7, 9)));
        assert!(!is_mark_of_another(7, &mark(7, 9)));
        let mut broken = mark(7, 9);
        broken[20] ^= 1;
        assert!(!is_mark_of_another(7, &broken) && !is_mark_of_another(8, &broken));
    }
}
