//! What a pod class needs to know about the pods already placed: counts by place, kept up to date.
//!
//! A [`View`] belongs to one pod class. Every placed pod changes only the views its class matters to, by the
//! [`Effect`]s worked out once per pair of classes, so placing costs what it changes and not the size of the cluster.
//! Invariant: a view always equals one built anew from the nodes and pods there are.

mod counts;
mod effect;
mod view;

pub(crate) use counts::{PairCounts, PairScores, SpreadCounts};
pub(crate) use effect::Effect;
pub(crate) use view::{PodPresence, Spot, View};
