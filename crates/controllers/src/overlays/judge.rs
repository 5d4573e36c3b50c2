//! Decides which overlays apply: those that are valid and do not conflict with another of their weight.
//!
//! Pure. Invariant: an overlay applies to all pools or to none (core: `validateAndUpdateInstanceTypeOverrides`).

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use mullion_api::karpenter::{NodeOverlay, NodePool};
use mullion_cloud::Offering;
use rustc_hash::FxHashMap;

use super::Overlay;
use crate::provisioner::market::Market;

/// The verdict on an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The overlay applies.
    Valid,
    /// The overlay is invalid, for this reason.
    Invalid(String),
    /// Another overlay, of this name and the same weight, changes the same.
    Conflict(String),
}

/// The result of judging overlays.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Those that count, in the order in which they do: greater weight first, then names from the end of the alphabet.
    pub overlays: Vec<Arc<Overlay>>,
    /// The verdict on each, by name.
    pub verdicts: BTreeMap<String, Verdict>,
}

/// Judges overlays for these pools, each given with its machines before overlays.
pub fn judge<'a>(
    all: impl IntoIterator<Item = &'a NodeOverlay>,
    pools: &[(&NodePool, &Market)],
) -> Judgement {
    let mut judgement = Judgement::default();
    let mut sound = Vec::new();
    for overlay in all {
        let name = overlay.metadata.name.clone().unwrap_or_default();
        match Overlay::read(overlay) {
            Ok(overlay) => sound.push(Arc::new(overlay)),
            Err(why) => {
                let invalid = Verdict::Invalid(why.to_string());
                judgement.verdicts.insert(name, invalid);
            }
        }
    }
    // Karpenter's order: in a tie of weights the name that is last in the alphabet applies.
    sound.sort_by_key(|own| (Reverse(own.weight), Reverse(own.name.clone())));
    for group in sound.chunk_by(|a, b| a.weight == b.weight) {
        settle(group, pools, &mut judgement);
    }
    judgement
}

/// Judges overlays of one weight, in the order in which they count.
fn settle(group: &[Arc<Overlay>], pools: &[(&NodePool, &Market)], judgement: &mut Judgement) {
    let reach = match group {
        // Alone in its weight, it is in conflict with none.
        [_] => vec![MatchedOfferings::default()],
        _ => reach_of(group, pools),
    };
    let mut counted: Vec<usize> = Vec::new();
    for (at, overlay) in group.iter().enumerate() {
        let clashes = |other: &&usize| {
            let a: (&Overlay, _) = (overlay, &reach[at]);
            let b: (&Overlay, _) = (&group[**other], &reach[**other]);
            are_in_conflict(a, b)
        };
        let verdict = match counted.iter().find(clashes) {
            Some(other) => Verdict::Conflict(group[*other].name.clone()),
            None => {
                counted.push(at);
                judgement.overlays.push(Arc::clone(overlay));
                Verdict::Valid
            }
        };
        judgement.verdicts.insert(overlay.name.clone(), verdict);
    }
}

/// The offerings that an overlay selects, as bits, by pool and type.
type MatchedOfferings = FxHashMap<(usize, usize), u128>;

fn reach_of(group: &[Arc<Overlay>], pools: &[(&NodePool, &Market)]) -> Vec<MatchedOfferings> {
    let mut reach = vec![MatchedOfferings::default(); group.len()];
    for (pool_at, (pool, market)) in pools.iter().enumerate() {
        for (type_at, (offer, labels)) in market.seen_from(pool).enumerate() {
            let sold: Vec<&Offering> = market.sold_here(offer).collect();
            for (overlay, reach) in group.iter().zip(&mut reach) {
                let bits = overlay.reach(&labels, &sold);
                if bits != 0 {
                    reach.insert((pool_at, type_at), bits);
                }
            }
        }
    }
    reach
}

/// Returns whether two overlays change the price of one offering, or one resource of a type.
fn are_in_conflict(
    (a, of_a): (&Overlay, &MatchedOfferings),
    (b, of_b): (&Overlay, &MatchedOfferings),
) -> bool {
    let both_price = a.price.is_some() && b.price.is_some();
    let share_resource = a.capacity.keys().any(|name| b.capacity.contains_key(name));
    (both_price || share_resource)
        && of_a.iter().any(|(place, bits)| {
            let other = of_b.get(place).copied().unwrap_or_default();
            (both_price && bits & other != 0) || (share_resource && other != 0)
        })
}
