//! Completes the advice to a pod that is on the wrong node: the engine is asked about the pod as the advice changes it.

use mullion_api::labels;
use mullion_engine::{
    ModelError,
    model::{PodSpec, label},
    remedy::{Change, Facts},
};

use super::Explainer;
use crate::why::{images::WrongNode, outlook::outlook};

impl Explainer<'_> {
    /// Completes the advice to a bound pod whose node is the wrong one: asks what else it needs to be scheduled once it asks for the right
    /// nodes, or why it gets no place even then. Pods of DaemonSets are tied to their nodes, so nothing is added for them.
    ///
    /// # Errors
    /// A pod or a pool has an impossible amount of a resource, such as a negative one.
    pub(in crate::why) fn complete(
        &mut self,
        wrong: WrongNode,
        pod: &PodSpec,
    ) -> Result<WrongNode, ModelError> {
        let owner = pod.template.owner.as_ref();
        if owner.is_some_and(|owner| owner.kind == "DaemonSet") || self.unserved(pod).is_some() {
            return Ok(wrong);
        }
        // Pods of one template with the same advice lack the same.
        let alike = (pod.template.clone(), wrong.advice.clone());
        if let Some(known) = self.completed.get(&alike) {
            let mut known = known.clone();
            known.reason = wrong.reason;
            return Ok(known);
        }
        let checkpoint = self.cluster.checkpoint();
        // This fails if the pod's node is not in the state; the pod is not in the cluster then.
        let _ = self.cluster.remove_pod(&pod.key());
        let completed = self.complete_without(wrong, pod);
        self.cluster.rollback(checkpoint);
        let completed = completed?;
        self.completed.insert(alike, completed.clone());
        Ok(completed)
    }

    /// Completes the advice while the pod is not in the cluster.
    fn complete_without(
        &mut self,
        mut wrong: WrongNode,
        pod: &PodSpec,
    ) -> Result<WrongNode, ModelError> {
        let mut pod = PodSpec {
            node_name: None,
            nominated_node_name: None,
            ..pod.clone()
        };
        if let Some(Change::Select { key, instead, .. }) = &wrong.change
            && key == label::OS
        {
            if pod.template.os.is_some() {
                pod.template.os.clone_from(instead);
            }
            // Admission asked for the address of a Windows pod, and does not of a Linux pod.
            let template = &mut pod.template;
            let containers = template.containers.iter_mut();
            let all = containers.chain(&mut template.init_containers);
            if instead.as_deref() == Some(labels::OS_LINUX) {
                all.for_each(|own| {
                    own.resources.requests.remove(labels::PRIVATE_IPV4);
                });
            }
        }
        let facts = Facts {
            images: self.table,
            prefixes: &self.pools.prefixes,
            recorded: self.recorded.get(&pod.key()),
        };
        let first = wrong.change.as_slice();
        let pools = &self.pools.templates;
        let found = self
            .cluster
            .remedies_after(first, &pod, pools, facts, 1)?
            .into_iter();
        if let Some(remedy) = found.map(|own| self.change_set(own)).next() {
            return Ok(wrong.and(&remedy.changes));
        }
        if let Some(change) = &wrong.change {
            change.apply(&mut pod.template);
        }
        let said = self.say(&pod, str::to_owned)?;
        let plan = outlook(self.cluster, self.pools, vec![pod.clone()])?;
        let refused = plan.refusals.get(&pod.key()).into_iter().flatten();
        let refused = refused.map(|own| format!("NodePool {}: {}", own.pool, own.reason));
        let nodes = said.refusals.iter();
        let nodes = nodes.map(|group| match group.nodes.as_slice() {
            [only] => format!("{only}: {}", group.reason),
            several => format!("{} nodes: {}", several.len(), group.reason),
        });
        let all: Vec<String> = nodes.chain(refused).collect();
        wrong.remains = Some(format!("Even then nothing takes it: {}", all.join("; ")));
        Ok(wrong)
    }
}
