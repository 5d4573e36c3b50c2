//! Container images: their names, what they run on, and what their names let one guess about that.
//!
//! A registry says for certain what an image runs on ([`Runs`]). Without it, [`ImageTable`] guesses from usual repositories and tags; a
//! [`Guess`] is never the same type as a fact, so that nothing is refused because of one. Which Windows build runs on which host is the
//! table of [`crate::windows`].

mod known;
mod name;
mod runs;
mod table;

pub use name::{ImageRef, InvalidImage};
pub use runs::{BuildSpan, Host, Platform, PlatformError, Runs, Shape, System};
pub use table::{Guess, ImageRow, ImageTable, Published, Sizes};
