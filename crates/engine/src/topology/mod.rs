//! The counts by topology domain that a pod class needs about the placed pods, updated with every change.
//!
//! A [`View`] belongs to one viewpoint of pod classes. Every placed pod changes only the views that its class
//! affects, by [`Effect`]s that are computed once per pair of classes. So the cost of placing a pod depends on what
//! it changes and not on the size of the cluster. Invariant: a view always equals one that is built anew from the
//! existing nodes and pods.

mod counts;
mod effect;
mod view;

pub(crate) use counts::{PairCounts, PairScores, SpreadCounts};
pub(crate) use effect::Effect;
pub(crate) use view::{PodPresence, View, ViewedNode};
