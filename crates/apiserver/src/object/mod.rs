//! What all objects have, whatever their kind: their metadata, their apiVersion and kind, and the Scale that can be derived from them.

pub(crate) mod metadata;
pub(crate) mod scale;
pub(crate) mod type_meta;
