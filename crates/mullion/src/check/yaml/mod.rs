//! Handles YAML text with positions: [`tree`] knows where each field of a document is, and [`edit`] changes fields without touching the
//! rest of the text.

pub(crate) mod edit;
mod editor;
mod render;
pub(super) mod tree;

pub(super) use render::ordered;
