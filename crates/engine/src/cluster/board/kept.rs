//! Boards of which there is one per pod shape and priority; those used least are dropped.

use rustc_hash::FxHashMap;

use crate::class::ShapeId;

/// Boards of a sort that are kept.
const MOST: usize = 64;

/// What a board is about.
pub(super) type About = (ShapeId, i32);

/// See the module's words. Boards come with when they were used last.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept<T> {
    boards: FxHashMap<About, (u64, Box<T>)>,
    uses: u64,
}

impl<T: Default> Kept<T> {
    /// Takes a board out, an empty one if none is kept.
    pub(super) fn take(&mut self, about: About) -> Box<T> {
        self.boards.remove(&about).unwrap_or_default().1
    }

    /// Puts a board back.
    pub(super) fn keep(&mut self, about: About, board: Box<T>) {
        self.uses += 1;
        self.boards.insert(about, (self.uses, board));
        if self.boards.len() > MOST {
            let oldest = self.boards.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(about, _)| *about) {
                self.boards.remove(&oldest);
            }
        }
    }

    /// Drops what is kept for a shape.
    pub(super) fn forget(&mut self, shape: ShapeId) {
        self.boards.retain(|(own, _), _| *own != shape);
    }
}
