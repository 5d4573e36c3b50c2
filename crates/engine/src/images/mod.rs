//! Container images: their names, the platforms that they run on, and guesses about these from the names.
//!
//! An image's registry is the authority on its platforms ([`Runs`]). Without an answer from the registry, [`ImageTable`] guesses from
//! known repositories and tags. A [`Guess`] is a type of its own, so that no pod is refused because of a guess. [`crate::windows`] has
//! the table of Windows builds and the host builds that run them.

mod known;
mod name;
mod runs;
mod table;

pub use name::{ImageRef, InvalidImage};
pub use runs::{BuildSpan, Host, Platform, PlatformError, Runs, Shape, System};
pub use table::{Guess, ImageRow, ImageTable, Published, Sizes};
