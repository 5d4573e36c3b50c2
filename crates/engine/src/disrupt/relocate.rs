//! Places the pods of nodes that must be removed whatever it costs.

use super::answer::{Move, StayReason};
use super::question::Consolidation;
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::provision::{NoReplacement, Pools, Values};
use crate::schedule::Decision;

impl Cluster {
    /// Returns where the pods of the candidates go if all candidates are removed: to other nodes and to new ones, at any price. The cluster is
    /// unchanged when this returns.
    ///
    /// # Errors
    /// Returns an error if a node or pool has an invalid amount. If a pod has no place, the inner result says so.
    pub fn relocate(
        &mut self,
        question: &Consolidation,
    ) -> Result<Result<Move, StayReason>, ModelError> {
        let checkpoint = self.checkpoint();
        let made = relocate(self, question);
        self.rollback(checkpoint);
        made
    }
}

fn relocate(
    cluster: &mut Cluster,
    question: &Consolidation,
) -> Result<Result<Move, StayReason>, ModelError> {
    question.make_room_for_pending(cluster)?;
    let moved = question.classes(cluster);
    let mut pools = Pools::compile(&question.market, &moved, cluster)?;
    let mut ids = Vec::with_capacity(question.candidates.len());
    for candidate in &question.candidates {
        pools.give_back(&candidate.pool, &candidate.capacity);
        ids.extend(cluster.node(&candidate.node));
    }
    let pods = cluster.take_out(ids.into_iter());
    // Without values and ceiling: these nodes go at any price.
    let found = pools.replace(&pods, None, &Values::default(), cluster);
    Ok(match found {
        Ok(found) => Ok(Move {
            nodes: question
                .candidates
                .iter()
                .map(|own| own.node.clone())
                .collect(),
            existing: found.existing,
            replacements: found.nodes,
            saving_micro_usd: 0,
        }),
        Err(NoReplacement::MoreCombinations { pod, tried }) => {
            Err(StayReason::MoreCombinations { pod, tried })
        }
        Err(_) => Err(stuck(&pods, question, cluster)),
    })
}

/// Returns the first pod that no node accepts, with the scheduler's reasons.
fn stuck(
    pods: &[(String, PodClassId)],
    question: &Consolidation,
    cluster: &mut Cluster,
) -> StayReason {
    for (pod, class) in pods {
        if let Decision::Unschedulable(why) =
            cluster.schedule_key(*class, pod, question.market.seed)
        {
            return StayReason::PodStuck {
                pod: pod.clone(),
                why: Box::new(why),
            };
        }
    }
    StayReason::NoneCheaper
}
