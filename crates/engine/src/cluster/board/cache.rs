//! A cache of boards, one per pod shape and priority; the least recently used are dropped.

use rustc_hash::FxHashMap;

use crate::class::ShapeId;

/// The maximum number of boards in one cache.
const MOST: usize = 64;

/// The pod shape and priority that a board is for.
pub(super) type BoardKey = (ShapeId, i32);

/// The boards, each with the time of its last use, counted in uses of the cache.
#[derive(Clone, Debug, Default)]
pub(super) struct BoardCache<T> {
    boards: FxHashMap<BoardKey, (u64, Box<T>)>,
    uses: u64,
}

impl<T: Default> BoardCache<T> {
    /// Takes a board out, an empty one if none is kept.
    pub(super) fn take(&mut self, key: BoardKey) -> Box<T> {
        self.boards.remove(&key).unwrap_or_default().1
    }

    /// Puts a board back.
    pub(super) fn keep(&mut self, key: BoardKey, board: Box<T>) {
        self.uses += 1;
        self.boards.insert(key, (self.uses, board));
        // Boards of classes that are no longer asked for would otherwise be kept for ever.
        if self.boards.len() > MOST {
            let oldest = self.boards.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.boards.remove(&oldest);
            }
        }
    }

    /// Drops what is kept for a shape.
    pub(super) fn forget(&mut self, shape: ShapeId) {
        self.boards.retain(|(own, _), _| *own != shape);
    }
}
