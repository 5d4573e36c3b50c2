//! What the head of a request says: the options in its query, what it does, and the protocol that it wants to switch to.

pub(crate) mod attributes;
pub(crate) mod query;
pub(crate) mod upgrade;
