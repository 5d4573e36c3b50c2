//! YAML text with positions: where each field of a document stands ([`tree`]), and changes of the text that keep the rest of it as it is ([`edit`]).

pub(crate) mod edit;
mod render;
pub(super) mod tree;

pub(super) use render::ordered;
